"""Guards the front door: help that answers at once, errors that are one message and not a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from ostinato.cli.main import app

COMMANDS = ("serve", "chat", "demo", "plan", "pull")
HEAVY = ("numpy", "uvicorn", "fastapi", "openai", "pydantic", "tokenizers")


def test_help_names_every_command_and_the_first_steps() -> None:
    output = CliRunner().invoke(app, ["--help"]).output
    for command in COMMANDS:
        assert f" {command} " in output
    assert "First steps" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert f"ostinato {command}" in result.output.split("Examples")[1]


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['ostinato', '--help']\n"
        "from ostinato.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_is_the_package_s() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.strip() == f"ostinato {version('ostinato')}"


def test_without_arguments_the_help_is_shown() -> None:
    assert "Usage: ostinato" in CliRunner().invoke(app, [], prog_name="ostinato").output


def test_an_error_is_one_message_with_status_2_and_no_traceback(
    run_ostinato: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_ostinato("serve", "--model", "no-such-model", "--port", "0")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "no-such-model" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_message_with_brackets_is_printed_as_it_is() -> None:
    result = CliRunner().invoke(app, ["plan", "--model", "[bold]x[/bold]"])
    assert "[bold]x[/bold]" in result.stderr
