"""EntryFile: the entries of a prompt cache on disk, for the next process. One SQLite file.

A row is a digest, a length, lifetimes and a tenant's name; never a token or a text. Nothing here is worth an
error: an entry that is lost is a read that is billed as a write. So a file that is damaged, or was written in
another format, is put away and begun anew, and a row that does not match its check sum is dropped; both are
counted and logged once.

Deadlines are Unix seconds, which mean the same in the next process. A machine's clock that was set back in
between would lengthen lives, so each row says when it was written: what was left then is all that can be left.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path

from ostinato.cache.types import TenantId
from ostinato.product.entries import MAX_ENTRIES, Entry, EntryKey
from ostinato.product.segments import TTLClass

logger = logging.getLogger("ostinato.product")

FILE_NAME = "prompt_cache.sqlite3"

_VERSION = 1
_SCHEMA = """
CREATE TABLE entries (
    key BLOB PRIMARY KEY, num_tokens INTEGER, ttl_class TEXT, ttl REAL, expires_at REAL, ends_at REAL,
    tenant TEXT, saved_at REAL, checksum INTEGER
) WITHOUT ROWID;
CREATE INDEX by_expiry ON entries (expires_at);
"""
_SIDE_FILES = ("-wal", "-shm", "-journal")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_IN_USE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

Row = tuple[bytes, int, str, float, float, float | None, str, float]


class EntryFileInUseError(Exception):
    """Another process has the file."""


class EntryFile:
    """See the module's docstring. For one thread at a time, and one process: it keeps the file locked.

    Args:
        path: made if it is not there, for its owner alone.

    Attributes:
        damaged: files and rows that had to be dropped.

    Raises:
        EntryFileInUseError: another process has it.
        OSError: it can be neither opened nor made.
        sqlite3.Error: the same, as SQLite says it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damaged = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._database = self._open()
        except sqlite3.Error as error:
            if _code(error) in _IN_USE:
                raise EntryFileInUseError(str(path)) from error
            if _code(error) not in _DAMAGED:
                raise
            self._put_away(error)
            self._database = self._open()

    def load(self, now: float, most: int = MAX_ENTRIES) -> list[Entry]:
        """The entries that have not expired; those that last longest if there are too many.

        Args:
            now: Unix seconds.
            most: of them.

        Raises:
            sqlite3.Error: the file cannot be read.
        """
        try:
            rows = self._database.execute(
                "SELECT * FROM entries WHERE expires_at > ? ORDER BY expires_at DESC LIMIT ?",
                (now, most),
            ).fetchall()
        except sqlite3.Error as error:
            if _code(error) not in _DAMAGED:
                raise
            self._begin_anew(error)
            return []
        read = [_entry(row[:-1], row[-1], now) for row in rows]
        entries = [entry for entry in read if entry is not None]
        if len(entries) < len(rows):
            self._count(f"{len(rows) - len(entries)} rows are damaged", len(rows) - len(entries))
        return entries

    def write(self, changes: Mapping[EntryKey, Entry | None], now: float) -> None:
        """All of `changes` or none: entries as they are now, None where they are gone. Drops what has expired.

        Raises:
            sqlite3.Error: not possible now. A file that is found damaged has been begun anew: try again.
        """
        puts = [_row(entry, now) for entry in changes.values() if entry is not None]
        gone = [(key,) for key, entry in changes.items() if entry is None]
        try:
            with self._database as database:
                database.execute("BEGIN IMMEDIATE")
                marks = ", ".join("?" * 9)
                database.executemany(f"INSERT OR REPLACE INTO entries VALUES ({marks})", puts)
                database.executemany("DELETE FROM entries WHERE key = ?", gone)
                database.execute("DELETE FROM entries WHERE expires_at <= ?", (now,))
        except sqlite3.Error as error:
            if _code(error) in _DAMAGED:
                self._begin_anew(error)
            raise

    def close(self) -> None:
        """Give the file free. Idempotent."""
        self._database.close()

    # ------------------------------------------------------------------ the file

    def _open(self) -> sqlite3.Connection:
        # SQLite gives its side files the same mode.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        database = sqlite3.connect(
            self._path, timeout=0.0, isolation_level=None, check_same_thread=False
        )
        try:
            _set_up(database)
        except BaseException:
            database.close()
            raise
        return database

    def _begin_anew(self, error: sqlite3.Error) -> None:
        self._database.close()
        self._put_away(error)
        self._database = self._open()

    def _put_away(self, error: sqlite3.Error) -> None:
        self._count(str(error), 1)
        for suffix in ("", *_SIDE_FILES):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def _count(self, what: str, number: int) -> None:
        if not self.damaged:
            logger.warning(
                "%s: %s. What is affected is billed as a write once more; further damage is counted and not"
                " logged.",
                self._path,
                what,
            )
        self.damaged += number


def _set_up(database: sqlite3.Connection) -> None:
    """Lock it, and make its table if it has none.

    Raises:
        sqlite3.Error: it cannot be used; with code SQLITE_NOTADB if it is of another format.
    """
    database.execute("PRAGMA locking_mode = EXCLUSIVE")
    # With WAL a killed process loses nothing that was committed; a power cut may, but breaks nothing.
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA secure_delete = ON")
    [version] = database.execute("PRAGMA user_version").fetchone()
    if version == 0:
        database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version != _VERSION:
        error = sqlite3.DatabaseError(f"format {version}, where this version writes {_VERSION}")
        error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise error


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _row(entry: Entry, now: float) -> tuple[object, ...]:
    row: Row = (
        entry.key,
        entry.num_tokens,
        entry.ttl_class.value,
        float(entry.ttl),  # as they come back
        float(entry.expires_at),
        None if entry.ends_at is None else float(entry.ends_at),
        entry.tenant,
        float(now),
    )
    return (*row, _checksum(row))


def _checksum(row: Row) -> int:
    return zlib.crc32(repr(row).encode())


def _entry(row: Row, checksum: int | None, now: float) -> Entry | None:
    """The entry of a row, with no more time left than when that was written; None if it is damaged."""
    if checksum != _checksum(row):
        return None
    key, num_tokens, ttl_class, ttl, expires_at, ends_at, tenant, saved_at = row
    set_back = max(0.0, saved_at - now)
    return Entry(
        EntryKey(key),
        num_tokens,
        TTLClass(ttl_class),
        ttl,
        expires_at - set_back,
        None if ends_at is None else ends_at - set_back,
        TenantId(tenant),
    )
