"""Where the commands print: results on standard output, progress and errors on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn


def output() -> Console:
    """Results. Plain text when it is not a terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def messages() -> Console:
    """Progress, notes and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def print_error(message: str) -> None:
    """One clear message, on standard error; never a traceback."""
    messages().print(f"[bold red]Error:[/] {escape(message)}")


def escape(text: str) -> str:
    """`text` with everything that rich would read as markup made literal."""
    from rich.markup import escape as escape_markup

    return escape_markup(text)


class ProgressBar:
    """One bar on standard error that disappears when it is done; a line a stage where there is no terminal.

    Args:
        description: the first stage.
        total: of whatever `advance` counts; None until it is known.
        columns: what stands behind the bar.
    """

    def __init__(self, description: str, total: float | None, *columns: ProgressColumn) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        console = messages()
        self._on_terminal = console.is_terminal
        self._progress: Progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *columns,
            console=console,
            transient=True,
            disable=not self._on_terminal,
        )
        self._task = self._progress.add_task(escape(description), total=total)
        self._description = description

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        self._tell()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def stage(self, description: str) -> None:
        """Say what is done now."""
        self._description = description
        self._progress.update(self._task, description=escape(description))
        self._tell()

    def expect(self, total: float) -> None:
        """Say how much it will be."""
        self._progress.update(self._task, total=total)

    def advance(self, amount: float = 1) -> None:
        """Say how much more is done."""
        self._progress.advance(self._task, amount)

    def _tell(self) -> None:
        if not self._on_terminal and self._description:
            messages().print(escape(self._description))


def download_bar() -> ProgressBar:
    """Counts bytes. Says nothing until its first stage."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    return ProgressBar("", None, DownloadColumn(binary_units=True), TransferSpeedColumn())


def steps_bar(description: str, total: int) -> ProgressBar:
    """Counts steps."""
    from rich.progress import MofNCompleteColumn, TimeElapsedColumn

    return ProgressBar(description, total, MofNCompleteColumn(), TimeElapsedColumn())


@contextlib.contextmanager
def loading_bar(description: str, total_elements: int) -> Iterator[Callable[[str, int], None]]:
    """Counts a model's parameters; gives a `LoadProgress`."""
    from rich.progress import TaskProgressColumn, TimeElapsedColumn

    columns = (TaskProgressColumn(), TimeElapsedColumn())
    with ProgressBar(description, total_elements, *columns) as bar:

        def loaded(tensor: str, elements: int) -> None:
            bar.advance(elements)

        yield loaded
