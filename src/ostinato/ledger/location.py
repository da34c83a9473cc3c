"""Where the ledger is: from a setting to a URL. Imports no database, so that a server starts at once."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from ostinato.errors import ConfigError

FILE_NAME = "ledger.sqlite3"
OFF = "off"

_SQLITE = "sqlite:///"
_POSTGRESQL = re.compile(r"postgres(?:ql)?(?:\+psycopg)?://")
_PASSWORD = re.compile(r"(?<=://)([^:/@]*):.*@", re.DOTALL)
"""Up to the last '@', whatever the password holds: more may be hidden than need be, never less."""
_PASSWORD_PARAMETER = re.compile(r"([?&]password=)[^&]*", re.IGNORECASE)


def ledger_url(setting: str | None, data_dir: Path) -> str | None:
    """A URL for `store.LedgerStore`; None if there is to be no ledger.

    Args:
        setting: ``off``, ``sqlite:///FILE``, ``postgresql://…``, or None for a file in the data folder.
        data_dir: that folder.

    Raises:
        ConfigError: it is none of these, or its driver is not installed.
    """
    if setting is None:
        return f"{_SQLITE}{(data_dir / FILE_NAME).absolute()}"
    if setting.strip().lower() == OFF:
        return None
    if setting.startswith(_SQLITE) and len(setting) > len(_SQLITE):
        return f"{_SQLITE}{Path(setting.removeprefix(_SQLITE)).absolute()}"
    if not _POSTGRESQL.match(setting):
        raise ConfigError(
            "the ledger must be off, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE,"
            f" not {shown(setting)!r}"
        )
    _require_readable(setting)
    if find_spec("psycopg") is None:
        raise ConfigError(
            "a ledger in PostgreSQL needs its driver: pip install 'ostinato[postgres]'"
        )
    return _POSTGRESQL.sub("postgresql+psycopg://", setting, count=1)


def _require_readable(url: str) -> None:
    """Refuse at once what the database's library would read otherwise than it was meant, or not at all.

    Raises:
        ConfigError: a user's or password's sign is not escaped, or the port is no number; quotes neither.
    """
    place, _, _ = url.partition("://")[2].partition("?")
    credentials, _, address = place.rpartition("@")
    if re.search(r"[/@?#]", credentials):
        raise ConfigError(
            "in the ledger's URL '/', '@', '?' and '#' of a user or password must be written as %2F, %40, %3F"
            " and %23"
        )
    _, colon, port = address.partition("/")[0].rpartition("]")[2].rpartition(":")
    if colon and port and not (port.isascii() and port.isdigit()):
        raise ConfigError("the port in the ledger's URL must be a number")


def file_of(url: str) -> Path | None:
    """The file of a SQLite URL that `ledger_url` made; None for a server."""
    return Path(url.removeprefix(_SQLITE)) if url.startswith(_SQLITE) else None


def shown(url: str) -> str:
    """A ledger's place for people: a file's path, or a URL without its password."""
    file = file_of(url)
    if file is not None:
        return str(file)
    return _PASSWORD_PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))
