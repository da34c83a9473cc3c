"""LedgerStore: records in a database. SQLite in one file (WAL, so that readers and a second server do no harm),
or PostgreSQL.

Importing this takes a fifth of a second: a server does it in the writer's thread.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from ostinato.errors import LedgerError
from ostinato.ledger import schema
from ostinato.ledger.location import file_of, shown
from ostinato.ledger.pruning import delete_records
from ostinato.ledger.query import UsageFilter
from ostinato.ledger.record import LedgerRecord
from ostinato.ledger.schema import REQUESTS, Migration, row_of

logger = logging.getLogger("ostinato.ledger")

LOCK_SECONDS = 1.0
"""How long one attempt waits for another writer of the same file."""
CONNECT_SECONDS = 5
"""How long one attempt waits for a server."""
PRUNED_AT_ONCE = 10_000
"""Records deleted in one transaction: a fraction of a second."""

_WRITES = "ostinato_writes"
_REFUSALS = (StatementError, OverflowError, ValueError)
"""Raised when a row is written; the latter two by drivers that cannot send it."""


class LedgerStore:
    """One database. Not thread-safe: one thread opens, uses and closes it.

    Args:
        url: from `location.ledger_url`.

    Attributes:
        engine: SQLAlchemy's; to look into.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.engine = _engine(url)
        self._insert: Any = (
            sqlite.insert(REQUESTS) if file_of(url) else postgresql.insert(REQUESTS)
        ).on_conflict_do_nothing()

    def open(self, migrations: Sequence[Migration] = schema.MIGRATIONS) -> None:
        """Make the tables, or bring them to this version.

        Raises:
            LedgerError: the database cannot be reached or is of a newer version.
        """
        with self._explained("opened"):
            file = file_of(self._url)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                # It names tenants: for its owner only. SQLite gives its side files the same mode.
                os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
            with self._writing() as connection:
                schema.upgrade(connection, migrations)

    def write(self, records: Sequence[LedgerRecord]) -> int:
        """Store records, each once however often it is written; returns how many could be stored.

        Raises:
            LedgerError: the database cannot take any now; nothing was stored.
        """
        rows = [row_of(record) for record in records]
        with self._explained("written"):
            try:
                self._write_rows(rows)
                return len(rows)
            except _REFUSALS as error:
                if _is_about_the_database(error):
                    raise
            return sum(self._try_row(row) for row in rows)

    def prune(self, which: UsageFilter, at_most: int = PRUNED_AT_ONCE) -> int:
        """Delete records that `which` selects, in one transaction.

        Returns:
            How many. Fewer than `at_most`: none is left.

        Raises:
            LedgerError: the database cannot delete any now; nothing was deleted.
        """
        with self._explained("pruned"), self._writing() as connection:
            return delete_records(connection, which, at_most)

    def prune_before(self, moment: float, at_most: int) -> int:
        """`prune` what is older than `moment`, in Unix seconds."""
        return self.prune(UsageFilter(until=moment), at_most)

    def give_room_back(self) -> bool:
        """Make a SQLite file as small as what it holds; False if somebody writes to it just now. PostgreSQL
        looks after that itself."""
        if file_of(self._url) is None:
            return True
        connection = self.engine.raw_connection()
        try:
            cursor = connection.cursor()
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state and holds nobody up.

        Raises:
            LedgerError: the database cannot be read.
        """
        with self._explained("read"), self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Give the connection back. Idempotent."""
        self.engine.dispose()

    def _write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        with self._writing() as connection:
            connection.execute(self._insert, rows)

    def _try_row(self, row: Mapping[str, Any]) -> bool:
        """False if this row is what the database refuses, whatever is tried."""
        try:
            self._write_rows([row])
        except _REFUSALS as error:
            if _is_about_the_database(error):
                raise
            cause = error.orig if isinstance(error, StatementError) else error
            logger.error("the ledger refuses the record %s: %s", row["record_id"], cause)
            return False
        return True

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.engine.execution_options(**{_WRITES: True}).begin() as connection:
            yield connection

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            cause = error.orig if isinstance(error, StatementError) else error
            raise LedgerError(
                f"the ledger {shown(self._url)} cannot be {verb}: {str(cause or error).strip()}"
            ) from error


def _is_about_the_database(error: Exception) -> bool:
    """Locked, full, gone, damaged, of another version; and not that this one row cannot be stored."""
    return isinstance(error, DBAPIError) and not isinstance(error, DataError | IntegrityError)


def _engine(url: str) -> Engine:
    if file_of(url) is None:
        # One connection; tested before use, since a server may have been restarted in between.
        connect = {"connect_timeout": CONNECT_SECONDS, "application_name": "ostinato"}
        return create_engine(
            url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=connect
        )
    engine = create_engine(url, pool_size=1, max_overflow=0, connect_args={"timeout": LOCK_SECONDS})
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # we say when a transaction begins
    cursor = connection.cursor()
    _keep_a_log_of_writes(cursor)
    # With WAL a killed process loses nothing that was committed; a power cut may, but breaks nothing.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _keep_a_log_of_writes(cursor: sqlite3.Cursor) -> None:
    """SQLite waits for a lock in every statement but this one: two servers could not make one file at once."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
        time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its lock at once: one that began as a reader could not wait for it."""
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
