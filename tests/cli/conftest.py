"""A tiny model and real `ostinato serve` processes, for the tests of the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tiny import write_tiny_model

ENDLESS_CONTEXT = 131_072
"""Of the tiny model: no answer that fills it ends while a test runs, however fast the kernels are."""

READY = "Ostinato is ready on "


@dataclass(frozen=True, slots=True)
class ServeProcess:
    """A server that said it is ready.

    Attributes:
        process: for signals.
        url: the address that it printed.
        summary: what it printed before.
    """

    process: subprocess.Popen[str]
    url: str
    summary: str


def clean_environment(data_dir: Path) -> dict[str, str]:
    """Ours, without settings of Ostinato that whoever runs the tests may have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")}
    ours = {"OSTINATO_DATA_DIR": str(data_dir), "OSTINATO_CACHE__KV_MEMORY_BYTES": str(2**26)}
    return {**kept, **ours, "NO_COLOR": "1", "COLUMNS": "100"}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("models") / "tiny", max_position=ENDLESS_CONTEXT
    )


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def run_ostinato(data_dir: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs ``ostinato ARGUMENTS`` as a process of its own, to its end."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ostinato.cli", *arguments],
            input=stdin,
            env=clean_environment(data_dir),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    return run


@pytest.fixture
def start_server(tiny_model: Path, data_dir: Path) -> Iterator[Callable[..., ServeProcess]]:
    """Starts ``ostinato serve`` with the tiny model on a free port; what still runs is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> ServeProcess:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ostinato.cli", "serve", "--port", "0"),
                *("--model", str(tiny_model), *arguments),
            ],
            env=clean_environment(data_dir),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        summary = ""
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(READY):
                return ServeProcess(process, line.removeprefix(READY).strip(), summary)
            summary += line
        pytest.fail(f"the server did not start: {process.communicate()[1]}")

    yield start
    for process in started:
        process.kill()
        process.communicate()
