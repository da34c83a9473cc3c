"""CacheStore: the cache objects of all tenants, in one SQLite file.

It holds what clients put into their objects, in their words, since a prompt that begins with an object must be
rendered whole. So the file is readable by its owner only, an object's text is overwritten when it ends
(``secure_delete``), and there is no write-ahead log in which a copy could stay.

All calls block for the time of a small write; they are safe from any thread.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ostinato.cache.types import TenantId
from ostinato.errors import ConfigError

_VERSION = 1
_BUSY_SECONDS = 10.0
_SCHEMA = """
CREATE TABLE cached_contents (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    display_name TEXT,
    content TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    num_tokens INTEGER NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    expires REAL NOT NULL,
    billed_until REAL NOT NULL
);
CREATE INDEX by_tenant ON cached_contents (tenant, created, id);
CREATE INDEX by_expiry ON cached_contents (expires);
"""
_COLUMNS = (
    "id, tenant, model, display_name, content, num_tokens, created, updated, expires, billed_until"
)


@dataclass(frozen=True, slots=True)
class CachedContent:
    """One cache object. Times in Unix seconds.

    Attributes:
        id: without the ``cachedContents/`` of its name.
        tenant: whose it is.
        model: with which alone it can be used.
        display_name: the client's name for it.
        content: JSON of a `wire.PrefixFields`.
        num_tokens: of the prefix that it stands for.
        created: when it was made.
        updated: when its expiry was last set.
        expires: from then on it is gone.
        billed_until: storage is paid for up to here.
    """

    id: str
    tenant: TenantId
    model: str
    display_name: str | None
    content: str
    num_tokens: int
    created: float
    updated: float
    expires: float
    billed_until: float

    def token_seconds(self, until: float) -> int:
        """Storage that is not paid for yet, up to `until` or the object's end."""
        seconds = min(until, self.expires) - self.billed_until
        return round(self.num_tokens * max(seconds, 0.0))


@dataclass(frozen=True, slots=True)
class Holding:
    """What a tenant has in the store."""

    objects: int
    num_bytes: int


class CacheStore:
    """See the module's docstring.

    Args:
        file: of the database, made if it is not there; None keeps all in memory.

    Raises:
        ConfigError: the file cannot be used, or a newer Ostinato has made it.
    """

    def __init__(self, file: Path | None) -> None:
        try:
            self._database = _opened(file)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the cache objects' file {file} cannot be used: {error}") from error
        self._lock = threading.Lock()

    def close(self) -> None:
        """The objects stay where they are."""
        with self._lock:
            self._database.close()

    def add(self, content: CachedContent) -> None:
        """Keep a new object."""
        self._run(
            "INSERT INTO cached_contents (id, tenant, model, display_name, content, num_bytes, num_tokens,"
            " created, updated, expires, billed_until) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            content.id,
            content.tenant,
            content.model,
            content.display_name,
            content.content,
            len(content.content.encode()),
            content.num_tokens,
            content.created,
            content.updated,
            content.expires,
            content.billed_until,
        )

    def get(self, tenant: TenantId, content_id: str, now: float) -> CachedContent | None:
        """The tenant's object of that name, if it has not expired."""
        rows = self._run(
            f"SELECT {_COLUMNS} FROM cached_contents WHERE id = ? AND tenant = ? AND expires > ?",
            content_id,
            tenant,
            now,
        )
        return rows[0] if rows else None

    def page(
        self, tenant: TenantId, now: float, limit: int, after: tuple[float, str] = (-1.0, "")
    ) -> Sequence[CachedContent]:
        """The tenant's objects that have not expired, oldest first: those behind the one that was made at
        `after[0]` and is called `after[1]`."""
        return self._run(
            f"SELECT {_COLUMNS} FROM cached_contents WHERE tenant = ? AND expires > ?"
            " AND (created, id) > (?, ?) ORDER BY created, id LIMIT ?",
            tenant,
            now,
            *after,
            limit,
        )

    def set_expiry(self, content: CachedContent, expires: float, now: float) -> bool:
        """Give an object another end; its storage is paid for up to `now`. False if it has ended, is gone or
        was changed: what has ended is being billed and erased."""
        changed = self._run(
            "UPDATE cached_contents SET expires = ?, updated = ?, billed_until = ?"
            f" WHERE id = ? AND billed_until = ? AND expires > ? RETURNING {_COLUMNS}",
            expires,
            now,
            now,
            content.id,
            content.billed_until,
            now,
        )
        return bool(changed)

    def delete(self, tenant: TenantId, content_id: str, now: float) -> CachedContent | None:
        """Erase an object; None if the tenant has none of that name."""
        rows = self._run(
            "DELETE FROM cached_contents WHERE id = ? AND tenant = ? AND expires > ?"
            f" RETURNING {_COLUMNS}",
            content_id,
            tenant,
            now,
        )
        return rows[0] if rows else None

    def expired(self, now: float, limit: int) -> Sequence[CachedContent]:
        """Objects of any tenant that have expired and are to be erased."""
        return self._run(
            f"SELECT {_COLUMNS} FROM cached_contents WHERE expires <= ? ORDER BY expires LIMIT ?",
            now,
            limit,
        )

    def erase(self, content_id: str) -> bool:
        """Erase an object that has expired; False if somebody else has."""
        return bool(
            self._run(f"DELETE FROM cached_contents WHERE id = ? RETURNING {_COLUMNS}", content_id)
        )

    def holding(self, tenant: TenantId) -> Holding:
        """How much the tenant has here."""
        with (
            self._lock,
            closing(
                self._database.execute(
                    "SELECT count(*), coalesce(sum(num_bytes), 0) FROM cached_contents WHERE tenant = ?",
                    (tenant,),
                )
            ) as rows,
        ):
            return Holding(*rows.fetchone())

    def _run(self, statement: str, *values: object) -> list[CachedContent]:
        with self._lock, closing(self._database.execute(statement, values)) as rows:
            return [CachedContent(*row) for row in rows.fetchall()]


def _opened(file: Path | None) -> sqlite3.Connection:
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(
        ":memory:" if file is None else file,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    database.execute("PRAGMA secure_delete = ON")
    database.execute("PRAGMA journal_mode = DELETE")
    [version] = database.execute("PRAGMA user_version").fetchone()
    if version == 0:
        database.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
    elif version != _VERSION:
        database.close()
        raise ConfigError(
            f"{file} was written by another version of Ostinato (format {version}, not {_VERSION}): "
            "use that one, or move the file away"
        )
    return database
