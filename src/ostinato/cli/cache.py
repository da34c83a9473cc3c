"""``ostinato cache``: see, check and tidy what the disk tier has kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli import console
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.cache.tiers.disk_check import FolderContent, Verdict
    from ostinato.cache.tiers.disk_folder import FormatFolder

EPILOG = """
**Examples**

- What is kept, by model and K/V format: `ostinato cache ls`
- Read every block and check it: `ostinato cache verify`
- Take out what is damaged: `ostinato cache verify --repair`
- Shrink it to 2 GiB: `ostinato cache prune --to 2GiB`
- Delete everything: `ostinato cache clear --yes`

All but `ls` need the folder for themselves: stop the server first.
"""

EXIT_DAMAGED = 1

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

FolderFlag = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="FOLDER",
        help="Folder of the disk tier. Default: the one that `ostinato serve` uses.",
        show_default=False,
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RepairFlag = Annotated[
    bool,
    typer.Option("--repair", help="Take out what is damaged, with all that stands behind it."),
]
SizeFlag = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="SIZE",
        help="Also give up what was used least recently, until this is left, e.g. 2GiB.",
        show_default=False,
    ),
]
NameFlag = Annotated[
    str | None,
    typer.Option(
        "--folder",
        metavar="NAME",
        help="Only this one, as `ostinato cache ls` names it.",
        show_default=False,
    ),
]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("ls")
def list_(dir_: FolderFlag = None, json_: JsonFlag = False) -> None:
    """List what is kept, by model and K/V format. Works while a server runs."""
    from ostinato.cache.tiers.disk_check import list_contents
    from ostinato.cache.tiers.disk_folder import lock_holder

    root = _root(dir_)
    with _file_errors(root):
        contents = list_contents(root, _now())
    holder = lock_holder(root)
    if json_:
        folders = [_content_json(content) for content in contents]
        typer.echo(
            json.dumps({"dir": str(root), "in_use_by": holder, "folders": folders}, indent=2)
        )
        return
    if contents:
        console.output().print(_contents_table(contents))
    else:
        typer.echo(f"Nothing is kept in {root}.")
    for content in contents:
        if content.error is not None:
            console.messages().print(f"Cannot be read: {console.escape(content.error)}")
    if holder:
        console.messages().print(f"In use by {holder}; what it is writing just now may be missing.")


@app.command()
def verify(dir_: FolderFlag = None, repair: RepairFlag = False, json_: JsonFlag = False) -> None:
    """Read every block and compare it with its checksum. Exit status 1 if something is damaged."""
    from ostinato.cache.tiers import disk_check

    root = _root(dir_)
    check = disk_check.repair if repair else disk_check.verify
    with _file_errors(root), disk_check.locked(root):
        found = disk_check.list_contents(root, _now())
        contents = [c for c in found if c.folder.readable and c.error is None]
        with _bytes_bar(sum(content.num_bytes for content in contents)) as advance:
            verdicts = [check(content.folder, _now(), advance) for content in contents]
    if json_:
        typer.echo(json.dumps([_verdict_json(verdict) for verdict in verdicts], indent=2))
    else:
        for verdict in verdicts:
            console.output().print(console.escape(_verdict_text(verdict)))
        if not found:
            typer.echo(f"Nothing is kept in {root}.")
    unreadable = [content.folder for content in found if not content.folder.readable]
    for folder in unreadable:
        console.messages().print(
            f"{folder.path.name} cannot be checked ({console.escape(_describe(folder)[1])}):"
            " `ostinato cache prune` takes it out."
        )
    broken = [content.error for content in found if content.error is not None]
    for error in broken:
        console.messages().print(f"Cannot be read: {console.escape(error)}")
    has_damage = not all(verdict.sound for verdict in verdicts)
    if has_damage or broken or any(folder.manifest is None for folder in unreadable):
        if has_damage and not json_:
            console.messages().print("`ostinato cache verify --repair` takes it out.")
        raise typer.Exit(EXIT_DAMAGED)


@app.command()
def prune(dir_: FolderFlag = None, to: SizeFlag = None, json_: JsonFlag = False) -> None:
    """Take out what is of no use (expired, cut off, of other versions' leftovers) and give its room back."""
    from ostinato.cache.tiers import disk_check
    from ostinato.sizes import format_size, parse_size

    root = _root(dir_)
    max_bytes = None if to is None else parse_size(to)
    with _file_errors(root), disk_check.locked(root):
        before = _total(disk_check.list_contents(root, _now()))
        disk_check.prune(root, max_bytes, _now())
        after = _total(disk_check.list_contents(root, _now()))
    if json_:
        typer.echo(json.dumps({"bytes_before": before, "bytes_after": after}))
    else:
        typer.echo(f"{format_size(before)} before, {format_size(after)} now.")


@app.command()
def clear(
    dir_: FolderFlag = None, folder: NameFlag = None, yes: YesFlag = False, json_: JsonFlag = False
) -> None:
    """Delete all that is kept, or one folder of it."""
    from ostinato.cache.tiers import disk_check

    root = _root(dir_)
    with _file_errors(root), disk_check.locked(root):
        contents = disk_check.list_contents(root, _now())
        names = [content.folder.path.name for content in contents]
        if folder is not None and folder not in names:
            raise ConfigError(
                f"there is no folder {folder!r} in {root}: `ostinato cache ls` lists them"
            )
        if not yes and names:
            typer.confirm(f"Delete {folder or 'everything'} in {root}?", abort=True)
        num_deleted = disk_check.clear(root, folder)
    if json_:
        typer.echo(json.dumps({"folders_deleted": num_deleted}))
    else:
        typer.echo(f"Deleted {num_deleted} folder{'' if num_deleted == 1 else 's'}.")


def _root(given: Path | None) -> Path:
    from ostinato.config import load_config

    root = given or load_config({}).disk_tier_dir
    if not root.is_dir():
        raise ConfigError(
            f"there is no K/V cache in {root}: `ostinato serve` makes it; name another with --dir"
        )
    return root


def _now() -> float:
    from ostinato.clock import SystemClock

    return SystemClock().time()


@contextmanager
def _file_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename or root}: {error.strerror}") from error


@contextmanager
def _bytes_bar(total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import DownloadColumn, TransferSpeedColumn

    columns = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    with console.ProgressBar("Reading every block", total, *columns) as bar:
        yield bar.advance


def _total(contents: list[FolderContent]) -> int:
    return sum(content.folder.num_bytes for content in contents)


def _describe(folder: FormatFolder) -> tuple[str, str]:
    """Model and K/V format, as far as the manifest says."""
    if folder.manifest is None:
        return "?", "no manifest"
    model = str(folder.manifest.get("model", "?"))
    if not folder.readable:
        return model, f"format version {folder.manifest.get('format_version')}, not readable"
    return model, str(folder.manifest.get("kv_dtype", "?"))


def _contents_table(contents: list[FolderContent]) -> Any:
    from rich.table import Table

    from ostinato.sizes import format_size

    table = Table(
        "Folder", "Model", "K/V", "Blocks", "Size", "Tenants", "Kept by promise", "Newest"
    )
    table.add_column("Of no use")
    for content in contents:
        model, kv = _describe(content.folder)
        newest = datetime.fromtimestamp(content.newest).strftime("%Y-%m-%d %H:%M")
        table.add_row(
            content.folder.path.name,
            console.escape(model),
            console.escape(kv),
            f"{content.num_blocks:,}",
            format_size(content.folder.num_bytes),
            str(len(content.tenants)),
            f"{content.num_retained:,}",
            newest if content.newest else "–",
            ", ".join(f"{count} {why}" for why, count in content.dropped.items()) or "–",
        )
    return table


def _content_json(content: FolderContent) -> dict[str, Any]:
    return {
        "folder": content.folder.path.name,
        "manifest": content.folder.manifest,
        "readable": content.folder.readable and content.error is None,
        "error": content.error,
        "blocks": content.num_blocks,
        "file_bytes": content.folder.num_bytes,
        "block_bytes": content.num_bytes,
        "tenants": dict(content.tenants),
        "retained_blocks": content.num_retained,
        "newest": content.newest or None,
        "of_no_use": dict(content.dropped),
    }


def _verdict_text(verdict: Verdict) -> str:
    model, kv = _describe(verdict.folder)
    behind = len(verdict.lost) - len(verdict.damaged)
    text = f"{verdict.folder.path.name} ({model}, {kv}): {verdict.num_sound:,} blocks sound"
    if verdict.damaged:
        text += f", {len(verdict.damaged):,} damaged, {behind:,} behind them"
    for why, count in verdict.dropped.items():
        text += f", {count:,} {why}"
    return text + (" (taken out)" if verdict.repaired and (verdict.lost or verdict.dropped) else "")


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "folder": verdict.folder.path.name,
        "sound_blocks": verdict.num_sound,
        "damaged_blocks": len(verdict.damaged),
        "lost_blocks": len(verdict.lost),
        "of_no_use": dict(verdict.dropped),
        "repaired": verdict.repaired,
    }
