"""The ledger, as the commands use it: `serve` writes it, `usage` and `cost` read it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ostinato.clock import Clock
    from ostinato.config import OstinatoConfig
    from ostinato.ledger.query import UsageFilter
    from ostinato.ledger.store import LedgerStore
    from ostinato.ledger.ttl_choice import UseHistory
    from ostinato.ledger.writer import LedgerWriter

LedgerFlag = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="sqlite:///FILE or postgresql://…, as given to `ostinato serve`."
        " Default: ledger.sqlite3 in the data folder.",
        show_default=False,
    ),
]
DataDirFlag = Annotated[
    Path | None,
    typer.Option(help="The server's data folder.", metavar="FOLDER", show_default=False),
]
SinceFlag = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only requests from then on: 2026-11-30, 2026-11-30T14:00 (UTC unless it has an offset),"
        " or an age such as 90m, 24h or 7d.",
        show_default=False,
    ),
]
UntilFlag = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only requests before; written alike.", show_default=False),
]
TenantFlag = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only this tenant's requests.", show_default=False),
]
ModelFlag = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only requests to this model.", show_default=False),
]

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


@contextlib.contextmanager
def ledger_of(config: OstinatoConfig, clock: Clock) -> Iterator[LedgerWriter | None]:
    """A server's writer, not started yet; None if there is to be no ledger. In the end writes what is left.

    Raises:
        ConfigError: the setting names no ledger that can be.
    """
    from ostinato.ledger.location import ledger_url
    from ostinato.ledger.writer import LedgerWriter, RecordStore

    url = ledger_url(config.ledger.url, config.data_dir)
    if url is None:
        yield None
        return

    def make_store() -> RecordStore:
        from ostinato.ledger.store import LedgerStore

        return LedgerStore(url)

    writer = LedgerWriter(make_store, keep_seconds=config.ledger.keep, clock=clock)
    try:
        yield writer
    finally:
        writer.close()


def place_of(config: OstinatoConfig) -> str:
    """Where the ledger is, for people."""
    from ostinato.ledger.location import ledger_url, shown

    url = ledger_url(config.ledger.url, config.data_dir)
    return "off: no request leaves a record" if url is None else shown(url)


@contextlib.contextmanager
def reading_ledger(setting: str | None, data_dir: Path | None) -> Iterator[Connection]:
    """To read in the ledger; see `opened_ledger`.

    Raises:
        ConfigError: there is none, or it is switched off.
        LedgerError: it cannot be read.
    """
    with opened_ledger(setting, data_dir) as (store, _), store.reading() as connection:
        yield connection


@contextlib.contextmanager
def opened_ledger(setting: str | None, data_dir: Path | None) -> Iterator[tuple[LedgerStore, str]]:
    """The ledger that the flags, or else the settings of `ostinato serve`, name, and its place for people.

    Raises:
        ConfigError: there is none, or it is switched off.
        LedgerError: it cannot be opened.
    """
    from ostinato.config import load_config
    from ostinato.ledger.location import file_of, ledger_url, shown

    config = load_config({} if data_dir is None else {"data_dir": data_dir})
    url = ledger_url(setting or config.ledger.url, config.data_dir)
    if url is None:
        raise ConfigError("the ledger is switched off; name one with --ledger URL")
    file = file_of(url)
    if file is not None and not file.is_file():
        raise ConfigError(
            f"there is no ledger {file}: `ostinato serve` begins one; --ledger or --data-dir name another"
        )
    from ostinato.ledger.store import LedgerStore

    store = LedgerStore(url)
    try:
        store.open()
        yield store, shown(url)
    finally:
        store.close()


def history_in_ledger(setting: str | None, data_dir: Path | None, which: UsageFilter) -> UseHistory:
    """The gaps between the uses of each ``prompt_cache_key``.

    Raises:
        ConfigError: no request in the ledger had one.
    """
    from ostinato.ledger.query import use_history

    with reading_ledger(setting, data_dir) as connection:
        history = use_history(connection, which)
    if not history.prefixes:
        raise ConfigError(
            "no request in the ledger has a prompt_cache_key, so nothing says which belong together:"
            " send one a conversation, or give the gaps with --gaps"
        )
    return history


def filter_of(
    since: str | None,
    until: str | None,
    tenant: str | None,
    model: str | None,
    *,
    until_flag: str = "--until",
) -> UsageFilter:
    """What the flags of the same names select.

    Raises:
        typer.BadParameter: for what is no time.
    """
    from ostinato.clock import SystemClock
    from ostinato.ledger.query import UsageFilter

    now = datetime.fromtimestamp(SystemClock().time(), UTC)
    return UsageFilter(
        since=_seconds(since, now, "--since"),
        until=_seconds(until, now, until_flag),
        tenant=tenant,
        model=model,
    )


def _seconds(text: str | None, now: datetime, flag: str) -> float | None:
    if text is None:
        return None
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS and number.isdigit():
            return (now - timedelta(**{_UNITS[unit]: int(number)})).timestamp()
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(
            f"{error}; e.g. 2026-11-30, 2026-11-30T14:00 or 24h", param_hint=flag
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
