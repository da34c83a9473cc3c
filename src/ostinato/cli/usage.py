"""``ostinato usage``: what the ledger knows about the requests that were served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import usage_prune
from ostinato.cli.cost_tables import Column, Form, Kind, Value, form_of, show
from ostinato.cli.ledger_access import (
    DataDirFlag,
    LedgerFlag,
    ModelFlag,
    SinceFlag,
    TenantFlag,
    UntilFlag,
    filter_of,
    reading_ledger,
)
from ostinato.ledger.group_by import GroupBy

if TYPE_CHECKING:
    from ostinato.ledger.query import UsageGroup

EPILOG = """
**Examples**

- By day: `ostinato usage`
- The last 24 hours by hour and tenant: `ostinato usage --by hour --by tenant --since 24h`
- Which prompt template is reused how well: `ostinato usage --by template --since 7d`
- Delete what is older than a year: `ostinato usage prune --older-than 365d`
- For a spreadsheet: `ostinato usage --by model --csv > usage.csv`

Days and hours are UTC. A request counts where it arrived. Tokens are the engine's own counts: `cached` is what
was not computed, `read` and `written` what the caller was told under the house rules.
"""

_FIGURES = (
    Column("requests", "requests", Kind.COUNT),
    Column("errors", "errors", Kind.COUNT),
    Column("input_tokens", "input", Kind.COUNT),
    Column("cached_tokens", "cached", Kind.COUNT),
    Column("cached_share", "cached share", Kind.SHARE),
    Column("cache_read_tokens", "read", Kind.COUNT),
    Column("cache_write_short_tokens", "written, short", Kind.COUNT),
    Column("cache_write_long_tokens", "written, long", Kind.COUNT),
    Column("output_tokens", "output", Kind.COUNT),
    Column("total_tokens", "total", Kind.COUNT),
    Column("storage_token_seconds", "", Kind.COUNT),
    Column("ttft_p50_s", "TTFT p50", Kind.SECONDS),
    Column("ttft_p95_s", "TTFT p95", Kind.SECONDS),
)
_STORED = Column("storage_token_hours", "stored token-hours", Kind.COUNT)


app = typer.Typer(rich_markup_mode="markdown")
app.command("prune", epilog=usage_prune.EPILOG)(usage_prune.prune)


@app.callback(invoke_without_command=True)
def usage(
    context: typer.Context,
    by: Annotated[
        list[GroupBy] | None,
        typer.Option(
            help="What to put together; may be repeated. Default: day.", show_default=False
        ),
    ] = None,
    since: SinceFlag = None,
    until: UntilFlag = None,
    tenant: TenantFlag = None,
    model: ModelFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    ledger: LedgerFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Show tokens, cached shares and latencies of the requests that were served, from the ledger."""
    if context.invoked_subcommand is not None:
        _refuse_flags_before(context)
        return
    form = form_of(as_json, as_csv)
    which = filter_of(since, until, tenant, model)
    from ostinato.ledger.query import usage_by

    groups = list(dict.fromkeys(by or (GroupBy.DAY,)))
    with reading_ledger(ledger, data_dir) as connection:
        found = usage_by(connection, groups, which)
        [everything] = usage_by(connection, (), which)
    names = [group.value.replace("-", "_") for group in groups]
    rows = [_row(names, group) for group in found]
    if form is Form.TABLE and len(rows) > 1:
        rows.append(_row(names, everything) | {names[0]: "all"})
    keys = [Column(name, group.value, Kind.TEXT) for name, group in zip(names, groups, strict=True)]
    shown = _figures(everything) if form is Form.TABLE else _FIGURES
    show("Requests served", (*keys, *shown), rows, form)


def _refuse_flags_before(context: typer.Context) -> None:
    """What stands before the name of a subcommand would be ignored without a word.

    Raises:
        typer.BadParameter: naming the flag.
    """
    for name, value in context.params.items():
        if value:
            flag = {"as_json": "--json", "as_csv": "--csv"}.get(name, f"--{name.replace('_', '-')}")
            raise typer.BadParameter(
                f"goes behind the word {context.invoked_subcommand}", param_hint=flag
            )


def _figures(everything: UsageGroup) -> list[Column]:
    """For a table: billed reads and writes only where they say more than what was reused, storage only where
    something was stored."""
    hidden = {"total_tokens"}
    if everything.read == everything.cached:
        hidden.add("cache_read_tokens")
    if not everything.write_short + everything.write_long:
        hidden.update(("cache_write_short_tokens", "cache_write_long_tokens"))
    stored = [_STORED] if everything.storage_token_seconds else []
    return [column for column in _FIGURES if column.key not in hidden] + stored


def _row(names: list[str], group: UsageGroup) -> dict[str, Value]:
    keys: dict[str, Value] = dict.fromkeys(names)
    keys.update(zip(names, group.keys, strict=False))
    return {
        **keys,
        "requests": group.requests,
        "errors": group.errors,
        "input_tokens": group.input,
        "cached_tokens": group.cached,
        "cached_share": group.cached_share,
        "cache_read_tokens": group.read,
        "cache_write_short_tokens": group.write_short,
        "cache_write_long_tokens": group.write_long,
        "output_tokens": group.output,
        "total_tokens": group.total,
        "storage_token_seconds": group.storage_token_seconds,
        "storage_token_hours": group.storage_token_hours,
        "ttft_p50_s": group.ttft_p50,
        "ttft_p95_s": group.ttft_p95,
    }
