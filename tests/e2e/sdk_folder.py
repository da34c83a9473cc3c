"""Other versions of SDKs than the installed one: each in a folder of its own, used by scripts in processes of
their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_SCRIPT_SECONDS = 900


def install(requirement: str, cache: Path) -> Path:
    """A folder with this package and what it needs, fetched once.

    Args:
        requirement: pinned, e.g. ``openai==1.109.1``.
        cache: where such folders are kept.
    """
    folder = cache / requirement
    done = folder / ".complete"
    if not done.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        subprocess.run([*command, "--upgrade", requirement], check=True)
        done.touch()
    return folder


def run_script(script: Path, folder: Path, *arguments: str) -> str:
    """What a script prints that sees `folder` before everything that is installed.

    Raises:
        AssertionError: it fails; with what it printed.
    """
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SCRIPT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
