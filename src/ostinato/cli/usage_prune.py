"""``ostinato usage prune``: delete old records from the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import console
from ostinato.cli.ledger_access import (
    DataDirFlag,
    LedgerFlag,
    ModelFlag,
    TenantFlag,
    filter_of,
    opened_ledger,
)

if TYPE_CHECKING:
    from ostinato.ledger.pruning import RecordSpan

EPILOG = """
**Examples**

- What is older than a quarter of a year: `ostinato usage prune --older-than 90d`
- Before a day, without being asked: `ostinato usage prune --before 2026-09-01 --yes`
- All of a tenant that has left: `ostinato usage prune --older-than 0d --tenant acme`

Works while a server runs. `ostinato serve --ledger-keep 90d` does it by itself.
"""


def prune(
    before: Annotated[
        str,
        typer.Option(
            "--before",
            "--older-than",
            metavar="TIME",
            help="Delete records of requests that arrived before: 2026-09-01, 2026-09-01T14:00 (UTC unless it"
            " has an offset), or an age such as 36h or 90d.",
            show_default=False,
        ),
    ],
    tenant: TenantFlag = None,
    model: ModelFlag = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    ledger: LedgerFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Delete old records from the ledger, after saying which. What was deleted is in no bill any more."""
    which = filter_of(None, before, tenant, model, until_flag="--before")
    from ostinato.ledger.pruning import span_of
    from ostinato.ledger.store import PRUNED_AT_ONCE

    with opened_ledger(ledger, data_dir) as (store, place):
        with store.reading() as connection:
            span = span_of(connection, which)
        if not span.records:
            typer.echo(f"No record in {place} is that old.")
            return
        typer.echo(f"{_described(span)}, in {place}.")
        if not yes:
            typer.confirm("Delete them?", abort=True)
        deleted = 0
        with console.ProgressBar("Deleting", span.records) as bar:
            while (count := store.prune(which)) == PRUNED_AT_ONCE:
                deleted += count
                bar.advance(count)
        deleted += count
        is_small = store.give_room_back()
    typer.echo(f"Deleted {_records(deleted)}.")
    if not is_small:
        console.messages().print(
            "Somebody writes to the file just now, so it keeps its size; new records use the room."
        )


def _records(number: int) -> str:
    return f"{number:,} record{'' if number == 1 else 's'}"


def _described(span: RecordSpan) -> str:
    assert span.first is not None
    assert span.last is not None
    first, last = (
        datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")
        for moment in (span.first, span.last)
    )
    tenants = "1 tenant" if span.tenants == 1 else f"{span.tenants:,} tenants"
    return f"{_records(span.records)} of {tenants}, from {first} to {last} UTC"
