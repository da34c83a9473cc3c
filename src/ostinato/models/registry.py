"""From what a user calls a model to the files of it.

A name is looked up in this order: a known model (`known_models.py`), a file or folder, a repository pulled
before. Nothing here touches the network except `pull`.
"""

from __future__ import annotations

import difflib
import importlib.metadata
from pathlib import Path

from ostinato.errors import ModelFormatError, ModelNotFoundError
from ostinato.models.known_models import KNOWN_MODELS, PackagedModel
from ostinato.models.pull import (
    PullReporter,
    models_folder,
    pull_packaged,
    pull_repository,
    repository_folder,
)
from ostinato.models.weights.files import DigestMemo

__all__ = [
    "KNOWN_MODELS",
    "PackagedModel",
    "PullReporter",
    "display_name",
    "find_installed",
    "pull",
    "pulled_repositories",
    "resolve_model",
]


def resolve_model(name: str, data_dir: Path) -> Path:
    """The GGUF file or the folder of a model that is on this machine.

    Args:
        name: a known name (upper or lower case), a GGUF file, a folder, or ``org/repo`` pulled before.
        data_dir: the data folder.

    Raises:
        ModelNotFoundError: there is none; says which command gets it, or which name was meant.
        ModelFormatError: the file of a known model is not the one that was pinned.
    """
    if not name.strip():
        raise ModelNotFoundError("the name of the model is empty")
    known = KNOWN_MODELS.get(name.lower())
    if known is not None:
        installed = find_installed(known, data_dir)
        if installed is None:
            raise ModelNotFoundError(
                f"{known.name} is not installed ({known.download_bytes / 1e6:.0f} MB): "
                f"run `ostinato pull {known.name}`"
            )
        return installed
    path = Path(name).expanduser()
    if path.is_file() or path.is_dir():
        return path
    pulled = repository_folder(name, data_dir)
    if pulled.is_dir():
        return pulled
    raise ModelNotFoundError(_explain_missing(name, data_dir))


def pull(name: str, data_dir: Path, report: PullReporter) -> Path:
    """Fetch a model, unless it is here and intact, and say where it is.

    Args:
        name: a known name, ``org/repo``, or ``org/repo:part-of-a-GGUF-file's-name``.
        data_dir: the data folder.
        report: told of progress; nothing is reported when nothing has to be fetched.

    Raises:
        ModelNotFoundError: no such name or repository.
        ModelError: it cannot be fetched here and now; says what to do.
    """
    known = KNOWN_MODELS.get(name.lower())
    if known is not None:
        if (installed := _find_intact(known, data_dir)) is not None:
            return installed
        pull_packaged(known, data_dir, report)
        return resolve_model(known.name, data_dir)
    if name.partition(":")[0].count("/") == 1 and not name.startswith(("/", ".", "~")):
        pulled = repository_folder(name, data_dir)
        return pulled if pulled.is_dir() else pull_repository(name, data_dir, report)
    raise ModelNotFoundError(_explain_missing(name, data_dir))


def find_installed(model: PackagedModel, data_dir: Path) -> Path | None:
    """The file of a known model, its SHA-256 checked; None where it is not installed.

    Raises:
        ModelFormatError: a file is there, but it is not the pinned one.
    """
    path = (
        _installed_package_file(model) if model.is_one_package else _assembled_file(model, data_dir)
    )
    if path is None:
        return None
    found = DigestMemo(data_dir).sha256(path).hex()
    if found != model.sha256:
        raise ModelFormatError(
            f"{path} is damaged or another version: its SHA-256 is {found}, {model.name} has "
            f"{model.sha256}. Run `ostinato pull {model.name}`"
        )
    return path


def pulled_repositories(data_dir: Path) -> list[str]:
    """Names of the repositories that have been pulled, in order."""
    folder = models_folder(data_dir)
    if not folder.is_dir():
        return []
    found = (path.name for path in folder.iterdir() if path.is_dir())
    return sorted(_repository_name(name) for name in found if not name.startswith("."))


def display_name(path: Path, sha256: bytes) -> str:
    """What a loaded model is called: its known name, its repository, or its file's or folder's name."""
    for model in KNOWN_MODELS.values():
        if model.sha256 == sha256.hex():
            return model.name
    if path.is_file():
        return path.stem
    return _repository_name(path.resolve().name)


def _find_intact(model: PackagedModel, data_dir: Path) -> Path | None:
    try:
        return find_installed(model, data_dir)
    except ModelFormatError:
        return None


def _installed_package_file(model: PackagedModel) -> Path | None:
    """Found through the package's metadata: importing the package would run its code."""
    (part,) = model.parts
    try:
        files = importlib.metadata.files(part.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files or []:
        if str(file) == part.path:
            path = Path(str(file.locate()))
            return path if path.is_file() else None
    return None


def _assembled_file(model: PackagedModel, data_dir: Path) -> Path | None:
    path = models_folder(data_dir) / model.file_name
    return path if path.is_file() else None


def _repository_name(folder_name: str) -> str:
    organisation, dashes, rest = folder_name.partition("--")
    if not dashes:
        return folder_name
    repository, dashes, selector = rest.partition("--")
    return f"{organisation}/{repository}" + (f":{selector}" if dashes else "")


def _explain_missing(name: str, data_dir: Path) -> str:
    if name.lower().endswith(".gguf"):
        return f"there is no file {name}"
    names = [*KNOWN_MODELS, *pulled_repositories(data_dir)]
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    if near:
        return f"there is no model {name!r}; did you mean {near[0]}?"
    if name.count("/") == 1 and not name.startswith(("/", ".", "~")):
        return f"{name} is neither a folder here nor pulled: run `ostinato pull {name}`"
    return (
        f"there is no model {name!r}; known are {', '.join(names)}. "
        "A GGUF file, a folder or a repository (`ostinato pull org/repo`) works too"
    )
