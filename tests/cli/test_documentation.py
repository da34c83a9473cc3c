"""Guards the manual against the program: a flag, a setting or a link that one has and the other does not."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer
from pydantic import BaseModel

from ostinato.cli.main import app
from ostinato.config import OstinatoConfig

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
MANUAL = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def flags() -> list[tuple[str, str]]:
    group = typer.main.get_command(app)
    return [
        (name, option)
        for name, command in group.commands.items()  # type: ignore[attr-defined]
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    ]


def settings(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            names += settings(kind, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names


def section(command: str) -> str:
    if command == "serve":
        return MANUAL
    return MANUAL.split(f"## `ostinato {command}`")[1].split("\n## ")[0]


@pytest.mark.parametrize(("command", "flag"), flags())
def test_every_flag_is_in_its_section_of_the_manual(command: str, flag: str) -> None:
    assert f"{flag}`" in section(command)


@pytest.mark.parametrize("name", settings(OstinatoConfig))
def test_every_setting_is_in_the_manual(name: str) -> None:
    assert f"| `{name}` |" in MANUAL


def test_the_manual_s_configuration_file_is_valid() -> None:
    example = MANUAL.split("```toml\n")[1].split("```")[0]
    OstinatoConfig.model_validate(tomllib.loads(example))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
            }
            assert anchor in slugs, target
