"""The Debian Administrator's Handbook in several languages, as plain text: long, technical, freely licensed."""

from __future__ import annotations

import re
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from benchmarks.quality.text import Corpus

_PACKAGE = "debian-handbook"
_PAGES = Path("usr/share/doc/debian-handbook/html")
_BLOCKS = {"p", "div", "li", "dt", "dd", "tr", "pre", "h1", "h2", "h3", "h4", "h5"}
_VOID = {"br", "hr", "img", "input", "link", "meta", "col"}
_SKIPPED_CLASSES = {"docnav", "toc"}
_SKIPPED_IDS = {"banner", "title"}


class TextMissingError(Exception):
    """A text cannot be had here; says why."""


def load_handbook(folder: Path, language: str) -> Corpus:
    """The book in one language, e.g. ``en-US`` or ``zh-CN`` (GPL-2+ or CC BY-SA 3.0).

    Args:
        folder: where the text is kept. It is taken from the installed package, else from one that apt fetches.
        language: a folder of the package.

    Raises:
        TextMissingError: no such package here, and none to be fetched.
    """
    kept = folder / f"handbook-{language}.txt"
    if not kept.is_file():
        installed = Path("/") / _PAGES / language
        text = read_pages(installed) if installed.is_dir() else _fetch(language)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    return Corpus(f"Debian's handbook, {language}", kept.read_text(encoding="utf-8"))


def _fetch(language: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            for command in (
                ["apt-get", "--quiet=2", "download", _PACKAGE],
                ["dpkg-deb", "--extract", f"{_PACKAGE}.deb", "."],
            ):
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
                for package in folder.glob(f"{_PACKAGE}_*.deb"):
                    package.rename(folder / f"{_PACKAGE}.deb")
        except (OSError, subprocess.CalledProcessError) as error:
            raise TextMissingError(
                f"the package {_PACKAGE} is neither installed nor can apt fetch it ({error})"
            ) from error
        return read_pages(folder / _PAGES / language)


def read_pages(folder: Path) -> str:
    """The text of a folder of HTML pages, in the order of their names."""
    return "\n\n".join(
        plain_text(page.read_text(encoding="utf-8")) for page in sorted(folder.glob("*.html"))
    )


def plain_text(html: str) -> str:
    """What a reader sees of a page's body, one line a paragraph, without navigation and tables of contents."""
    parser = _Reader()
    parser.feed(html)
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(parser.pieces).split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    """Collects text; `_hidden` is the number of open elements from the outermost skipped one on."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0
        self._in_listing = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            return
        given = dict(attrs)
        classes = set((given.get("class") or "").split())
        skipped = tag == "head" or classes & _SKIPPED_CLASSES or given.get("id") in _SKIPPED_IDS
        if self._hidden or skipped:
            self._hidden += 1
        elif tag in _BLOCKS:
            self.pieces.append("\n")
            self._in_listing |= tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if self._hidden:
            self._hidden -= 1
        elif tag in _BLOCKS:
            self.pieces.append("\n")
            self._in_listing &= tag != "pre"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """``<a />`` opens nothing."""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            # Line breaks inside a paragraph are only where the source was wrapped.
            self.pieces.append(data if self._in_listing else data.replace("\n", " "))
