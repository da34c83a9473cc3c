"""ResponseStore: responses that clients may continue, read again and delete. One SQLite file, by tenant.

Holds conversations in full, so its file is its owner's alone (mode 0600), and ages and sizes are bounded:

| bound                         | what goes                              |
|-------------------------------|----------------------------------------|
| `max_age`                     | what is older, at every write          |
| `max_bytes`, of compressed    | the oldest of all, at every write      |
| responses                     |                                        |

Every response holds the whole conversation before it, so that one may be deleted and the next still continued.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ostinato.api.openai_responses.continuation import Continuation
from ostinato.cache.types import TenantId
from ostinato.clock import Clock
from ostinato.errors import ConfigError

T = TypeVar("T")

logger = logging.getLogger("ostinato.api")

FILE_NAME = "responses.sqlite3"
DAY = 86_400.0
MAX_AGE = 30 * DAY
"""Seconds, as OpenAI keeps them."""
MAX_BYTES = 2**30

_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL, size INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created);
"""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response and what it takes to continue it.

    Attributes:
        response: as it was sent.
        items: the conversation before it, in Responses' own form, each with an id; without instructions.
        continuation: its token ids; None if it can only be rendered anew.
    """

    response: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    continuation: Continuation | None

    def to_bytes(self) -> bytes:
        value = {
            "response": self.response,
            "items": self.items,
            "continuation": None if self.continuation is None else self.continuation.to_json(),
        }
        return zlib.compress(json.dumps(value, ensure_ascii=False).encode())

    @classmethod
    def from_bytes(cls, raw: bytes) -> StoredResponse:
        value = json.loads(zlib.decompress(raw))
        left = value["continuation"]
        return cls(
            value["response"],
            value["items"],
            None if left is None else Continuation.from_json(left),
        )


class ResponseStore:
    """See the module's docstring. Its methods are for the event loop; a thread of its own does the work.

    Args:
        file: made at the first use if it is not there; None keeps everything in memory.
        clock: of ages.
        max_age: seconds.
        max_bytes: of all responses.
    """

    def __init__(
        self,
        file: Path | None,
        clock: Clock,
        *,
        max_age: float = MAX_AGE,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._clock = clock
        self._max_age = max_age
        self._max_bytes = max_bytes
        self._file = file
        self._opened: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, "ostinato-responses")

    def open(self) -> None:
        """Open the file now, where its first use would.

        Raises:
            ConfigError: it cannot be opened.
        """
        self._thread.submit(lambda: self._database).result()

    async def put(self, tenant: TenantId, stored: StoredResponse) -> None:
        """Keep a response, and let go of what is too old or too much. Never fails: the client has its answer
        all the same, and the log says what went wrong."""
        try:
            await self._do(lambda: self._put(tenant, stored))
        except sqlite3.Error as error:
            logger.error("response %s is not stored: %s", stored.response["id"], error)

    async def get(self, tenant: TenantId, response_id: str) -> StoredResponse | None:
        """The tenant's own; None if it is not there, or no more."""
        return await self._do(lambda: self._get(tenant, response_id))

    async def delete(self, tenant: TenantId, response_id: str) -> bool:
        """Whether there was such a response."""
        return await self._do(lambda: self._delete(tenant, response_id))

    def close(self) -> None:
        """Wait for what is being written."""
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _database(self) -> sqlite3.Connection:
        """For the thread."""
        if self._opened is None:
            try:
                self._opened = _open(self._file)
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"responses cannot be kept in {self._file}: {error}") from error
        return self._opened

    async def _do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _put(self, tenant: TenantId, stored: StoredResponse) -> None:
        body, now = stored.to_bytes(), self._clock.time()
        with self._database as database:
            database.execute(
                "INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?)",
                (tenant, stored.response["id"], now, len(body), body),
            )
            database.execute("DELETE FROM responses WHERE created <= ?", (now - self._max_age,))
            self._let_go(database)

    def _let_go(self, database: sqlite3.Connection) -> None:
        [(held,)] = database.execute("SELECT coalesce(sum(size), 0) FROM responses")
        if held <= self._max_bytes:
            return
        oldest = database.execute("SELECT tenant, id, size FROM responses ORDER BY created, id")
        for tenant, response_id, size in oldest.fetchall():
            if held <= self._max_bytes:
                return
            database.execute(
                "DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, response_id)
            )
            held -= size

    def _get(self, tenant: TenantId, response_id: str) -> StoredResponse | None:
        row = self._database.execute(
            "SELECT body FROM responses WHERE tenant = ? AND id = ? AND created > ?",
            (tenant, response_id, self._clock.time() - self._max_age),
        ).fetchone()
        return None if row is None else StoredResponse.from_bytes(row[0])

    def _delete(self, tenant: TenantId, response_id: str) -> bool:
        with self._database as database:
            deleted = database.execute(
                "DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, response_id)
            )
        return deleted.rowcount > 0


def _open(file: Path | None) -> sqlite3.Connection:
    """A database with its table; what is deleted from it is overwritten."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        # SQLite gives its side files the same mode.
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(":memory:" if file is None else file, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA secure_delete = ON")
    database.executescript(_SCHEMA)
    database.execute(f"PRAGMA user_version = {_VERSION}")
    return database
