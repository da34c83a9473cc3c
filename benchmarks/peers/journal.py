"""What has been measured so far, on disk after every turn, so that a run that was broken off can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.runner import Turn


class JournalError(Exception):
    """There is no run to go on with, or it is another one; the message says which."""


class Journal:
    """A file of JSON lines: first what is being measured, then every finished turn.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, facts: Mapping[str, Any], seed: int) -> None:
        """Start anew; what was there is gone.

        Args:
            facts: what is being measured.
            seed: of the prompts.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"facts": facts, "seed": seed}) + "\n")

    def resume(self, facts: Mapping[str, Any]) -> tuple[int, list[Turn]]:
        """The seed and the turns of a run that was broken off.

        Args:
            facts: as `begin` got them; those of that run must be equal.

        Raises:
            JournalError: there is none, or it measured something else.
        """
        if not self._path.exists():
            raise JournalError(f"there is no {self._path.name}: run without --resume")
        first, *lines = self._path.read_text().splitlines(keepends=True)
        begun = json.loads(first)
        if begun["facts"] != facts:
            raise JournalError(
                f"{self._path.name} is of another run ({begun['facts']}): run without --resume"
            )
        whole = [line for line in lines if line.endswith("\n")]  # the last may have been cut off
        self._path.write_text("".join([first, *whole]))
        return begun["seed"], [Turn(**json.loads(line)) for line in whole]

    def add(self, turn: Turn) -> None:
        """Write a turn down; it is on disk when this returns."""
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(turn)) + "\n")

    def remove(self) -> None:
        """The run is complete and saved elsewhere."""
        self._path.unlink(missing_ok=True)
