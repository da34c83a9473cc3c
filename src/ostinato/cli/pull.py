"""``ostinato pull``: fetch a model, so that it can be named afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import console
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.cli.console import ProgressBar

EPILOG = """
**Examples**

- The default model (93 MB): `ostinato pull smollm2-135m-instruct`
- A repository of the Hugging Face hub: `ostinato pull Qwen/Qwen2.5-0.5B-Instruct`
- One GGUF file of a repository: `ostinato pull ORG/REPO:Q4_K_M`
- What is known and what is here: `ostinato pull --list`
"""

NameArgument = Annotated[
    str | None,
    typer.Argument(
        help="A known name, ORG/REPO, or ORG/REPO:PART-OF-A-FILE'S-NAME.", show_default=False
    ),
]
ListFlag = Annotated[bool, typer.Option("--list", help="List known and pulled models.")]
DataDirFlag = Annotated[
    Path | None,
    typer.Option(
        help="Data folder. Default: the platform's usual place.",
        metavar="FOLDER",
        show_default=False,
    ),
]


def pull(name: NameArgument = None, list_: ListFlag = False, data_dir: DataDirFlag = None) -> None:
    """Fetch a model; does nothing if it is here already."""
    from ostinato.config import load_config
    from ostinato.models import registry

    folder = load_config({} if data_dir is None else {"data_dir": data_dir}).data_dir
    if list_:
        _print_models(folder)
        return
    if name is None:
        raise ConfigError(
            f"say which model: ostinato pull {next(iter(registry.KNOWN_MODELS))}"
            " (`ostinato pull --list` shows what is known)"
        )
    with console.download_bar() as bar:
        reporter = _Reporter(name, bar)
        path = registry.pull(name, folder, reporter)
    what = "Fetched" if reporter.fetched else "Already here:"
    typer.echo(f"{what} {name} ({path})")


class _Reporter:
    """Shows how a pull goes; a `PullReporter`. Says nothing when nothing has to be fetched."""

    def __init__(self, name: str, bar: ProgressBar) -> None:
        self._name = name
        self._bar = bar
        self.fetched = False

    def started(self, total_bytes: int) -> None:
        self.fetched = True
        self._bar.expect(total_bytes)
        self._bar.stage(f"Fetching {self._name} ({total_bytes / 1e6:.0f} MB)")

    def advanced(self, num_bytes: int) -> None:
        self._bar.advance(num_bytes)

    def finished(self) -> None:
        self._bar.stage("")


def _print_models(data_dir: Path) -> None:
    from ostinato.errors import ModelError
    from ostinato.models import registry

    for model in registry.KNOWN_MODELS.values():
        try:
            here = "here" if registry.find_installed(model, data_dir) else "not here"
        except ModelError:
            here = "damaged"
        size = f"{model.download_bytes / 1e6:.0f} MB"
        typer.echo(f"{model.name}  ({here}, {size}, {model.licence})\n    {model.description}")
    for name in registry.pulled_repositories(data_dir):
        typer.echo(f"{name}  (here, from the hub)")
