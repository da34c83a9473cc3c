"""Guards the page of routes against the server: a route that one has and the other does not."""

from __future__ import annotations

import re
from pathlib import Path

from ostinato.api.app import create_app
from ostinato.api.gemini.routes import VERSIONS
from ostinato.clock import ManualClock
from tests.api.fake import FakeBackend

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
Routes = set[tuple[str, str]]


def plain(path: str) -> str:
    """Without the names of its parameters."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def served() -> Routes:
    app = create_app(FakeBackend(), clock=ManualClock())
    paths = app.openapi()["paths"].items()
    return {(method.upper(), plain(path)) for path, methods in paths for method in methods}


def documented() -> Routes:
    """Of the table's first column: `GET, DELETE /path`, where {v} stands for each version of Gemini's API."""
    found: Routes = set()
    for row in re.findall(
        r"^\| (`[A-Z]+[ ,][^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    ):
        for methods, path in re.findall(r"`([A-Z, ]+) (/[^`]*)`", row):
            versions = VERSIONS if "{v}" in path else ("",)
            for method in methods.split(", "):
                found |= {(method, plain(path.replace("{v}", version))) for version in versions}
    return found


def test_every_route_that_is_served_is_on_the_page_and_no_other() -> None:
    assert served() == documented()
