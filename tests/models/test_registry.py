"""Guards names: what a user types must lead to the pinned file, or to the command that fetches it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from pathlib import Path

import pytest

from ostinato.config import DEFAULT_MODEL
from ostinato.errors import ModelFormatError, ModelNotFoundError
from ostinato.models import registry
from ostinato.models.known_models import KNOWN_MODELS, PackagedModel, WheelFile
from ostinato.models.registry import display_name, pull, pulled_repositories, resolve_model

QWEN = "qwen2.5-coder-0.5b-instruct"


class NoReport:
    """Fails when anything is fetched."""

    def started(self, total_bytes: int) -> None:
        raise AssertionError("something is being fetched")

    def advanced(self, num_bytes: int) -> None:
        raise AssertionError("something is being fetched")

    def finished(self) -> None:
        raise AssertionError("something was fetched")


@pytest.fixture
def tiny_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A known model in a package that is installed, by its metadata, in a folder of its own."""
    site = tmp_path / "site"
    (site / "tiny_weights").mkdir(parents=True)
    (site / "tiny_weights" / "tiny.gguf").write_bytes(b"weights")
    (site / "tiny_weights" / "__init__.py").write_text("raise SystemExit('imported')")
    info = site / "tiny_weights-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny_weights/__init__.py,,\ntiny_weights/tiny.gguf,,\n")
    monkeypatch.syspath_prepend(str(site))
    model = PackagedModel(
        name="tiny",
        file_name="tiny.gguf",
        parts=(WheelFile("tiny-weights", "1.0", "tiny_weights/tiny.gguf", 100),),
        sha256=hashlib.sha256(b"weights").hexdigest(),
        num_bytes=7,
        licence="CC0-1.0",
        description="for tests",
    )
    monkeypatch.setitem(KNOWN_MODELS, "tiny", model)
    return model


def test_the_default_model_is_known_and_installed(tmp_path: Path) -> None:
    path = resolve_model(DEFAULT_MODEL, tmp_path)
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.stat().st_size == KNOWN_MODELS[DEFAULT_MODEL].num_bytes
    assert resolve_model("SmolLM2-135M-Instruct", tmp_path) == path


def test_a_package_is_found_by_its_metadata_and_never_imported(
    tiny_package: PackagedModel, tmp_path: Path
) -> None:
    assert resolve_model("tiny", tmp_path).read_bytes() == b"weights"
    assert "tiny_weights" not in sys.modules


def test_an_installed_model_is_not_fetched_again(
    tiny_package: PackagedModel, tmp_path: Path
) -> None:
    assert pull("tiny", tmp_path, NoReport()) == resolve_model("tiny", tmp_path)


def test_a_file_with_another_sha256_is_refused_with_the_command_that_repairs_it(
    tiny_package: PackagedModel, tmp_path: Path
) -> None:
    file = resolve_model("tiny", tmp_path)
    file.write_bytes(b"tampered")
    with pytest.raises(ModelFormatError, match="Run `ostinato pull tiny`"):
        resolve_model("tiny", tmp_path)


def test_a_package_whose_file_is_gone_counts_as_not_installed(
    tiny_package: PackagedModel, tmp_path: Path
) -> None:
    resolve_model("tiny", tmp_path).unlink()
    with pytest.raises(ModelNotFoundError, match="not installed"):
        resolve_model("tiny", tmp_path)


def test_a_known_model_that_is_not_here_says_how_to_get_it_and_how_large_it_is(
    tmp_path: Path,
) -> None:
    with pytest.raises(ModelNotFoundError, match=rf"478 MB.*`ostinato pull {QWEN}`"):
        resolve_model(QWEN, tmp_path)


def test_without_its_package_the_default_model_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(ModelNotFoundError, match=f"`ostinato pull {DEFAULT_MODEL}`"):
        resolve_model(DEFAULT_MODEL, tmp_path)


def test_files_and_folders_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.gguf").touch()
    (tmp_path / "org" / "repo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(str(tmp_path / "some.gguf"), tmp_path) == tmp_path / "some.gguf"
    assert resolve_model("some.gguf", tmp_path) == Path("some.gguf")
    assert resolve_model("org/repo", tmp_path) == Path("org/repo")


def test_a_pulled_repository_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "models" / "org--repo").mkdir(parents=True)
    (tmp_path / "models" / "org--repo--Q4").mkdir()
    (tmp_path / "models" / ".pull-unfinished").mkdir()
    assert resolve_model("org/repo", tmp_path) == tmp_path / "models" / "org--repo"
    assert resolve_model("org/repo:Q4", tmp_path) == tmp_path / "models" / "org--repo--Q4"
    assert pull("org/repo", tmp_path, NoReport()) == tmp_path / "models" / "org--repo"
    assert pulled_repositories(tmp_path) == ["org/repo", "org/repo:Q4"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2-135m", "did you mean smollm2-135m-instruct"),
        ("qwen2.5-coder", "did you mean qwen2.5-coder-0.5b-instruct"),
        ("org/never-pulled", "`ostinato pull org/never-pulled`"),
        ("missing.gguf", r"no file missing\.gguf"),
        ("zzz", "known are smollm2-135m-instruct"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_would(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        resolve_model(name, tmp_path)


@pytest.mark.parametrize("name", ["zzz", "./folder", "/absolute/path", "missing.gguf"])
def test_what_is_neither_a_name_nor_a_repository_cannot_be_pulled(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ModelNotFoundError):
        pull(name, tmp_path, NoReport())


def test_a_loaded_model_is_called_by_its_known_name_its_repository_or_its_file(
    tmp_path: Path,
) -> None:
    known = bytes.fromhex(KNOWN_MODELS[DEFAULT_MODEL].sha256)
    assert display_name(tmp_path / "x.gguf", known) == DEFAULT_MODEL
    (tmp_path / "My-Model.Q8_0.gguf").touch()
    assert display_name(tmp_path / "My-Model.Q8_0.gguf", b"") == "My-Model.Q8_0"
    (tmp_path / "org--repo").mkdir()
    assert display_name(tmp_path / "org--repo", b"") == "org/repo"
    (tmp_path / "folder").mkdir()
    assert display_name(tmp_path / "folder" / ".." / "folder", b"") == "folder"


def test_the_known_models_are_pinned_completely() -> None:
    for name, model in KNOWN_MODELS.items():
        assert name == model.name == name.lower()
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.download_bytes > 0.9 * model.num_bytes
        assert registry.KNOWN_MODELS[name] is model
