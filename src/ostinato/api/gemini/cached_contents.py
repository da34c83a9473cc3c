"""CachedContents: the life of cache objects, apart from the computing of their K/V.

    create ─► (find)* ─► set_expiry ─► … ─► delete, or the end of its time ─► erased
                            │                   │
                            └── storage is billed: tokens × seconds ──► ledger

Storage is paid for when an object's end is moved and when it ends, so that each second of its life is in
exactly one record. An object that has expired is never seen again: it is unreadable at that very moment, and
erased by the next call, or by `ExpirySweeper` if there is none.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import secrets
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostinato.api.failure import CACHED_CONTENT_NOT_FOUND, TOO_MANY_CACHED_CONTENTS
from ostinato.api.gemini.cache_store import CachedContent, CacheStore
from ostinato.api.gemini.wire import PrefixFields
from ostinato.api.recording import Ledger
from ostinato.cache.types import TenantId
from ostinato.clock import Clock
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.ledger.record import LedgerRecord, TokenRecord

logger = logging.getLogger("ostinato.api")

PREFIX = "cachedContents/"
DIALECT = "gemini_cache"
"""Of the records that pay for storage."""
DEFAULT_TTL = 3600.0
"""Seconds, as Gemini's."""
MAX_TTL = 366 * 86_400.0
"""Seconds. Gemini names no bound; somebody has to pay for what is never deleted."""
MAX_OBJECTS = 1000
"""Of one tenant."""
MAX_BYTES = 256 * 2**20
"""Of one tenant's objects together, as they lie in the store."""
MAX_PAGE = 1000
DEFAULT_PAGE = 50
SWEEP_SECONDS = 5.0
"""How long the text of an object may lie on disk after its end, while nobody asks for any."""

_ERASED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class NewContent:
    """A cache object that is about to be made."""

    tenant: TenantId
    model: str
    display_name: str | None
    fields: PrefixFields

    def as_json(self) -> str:
        """What is kept of it, in ASCII: JSON may smuggle in lone surrogates, which no file takes."""
        kept = {"contents", "system_instruction", "tools", "tool_config"}
        fields = self.fields.model_dump(include=kept, by_alias=True, exclude_none=True)
        return json.dumps(fields)


class CachedContents:
    """See the module's docstring. Blocks for the time of a small write; safe from any thread.

    Args:
        store: where the objects are.
        clock: of their lives.
        ledger: takes a record of each object that expires; what ends by a request is in that request's record.
        house_rules: their name, for records.
    """

    def __init__(self, store: CacheStore, clock: Clock, ledger: Ledger, house_rules: str) -> None:
        self._store = store
        self._clock = clock
        self._ledger = ledger
        self._house_rules = house_rules

    def require_room(self, new: NewContent) -> None:
        """Refuse an object that would be one too many.

        Raises:
            RequestError: the tenant has as many, or as much, as it may.
        """
        self.sweep()
        held = self._store.holding(new.tenant)
        if held.objects >= MAX_OBJECTS:
            raise RequestError(
                f"there are {held.objects} cache objects already, and {MAX_OBJECTS} is the most: delete one",
                code=TOO_MANY_CACHED_CONTENTS,
            )
        if held.num_bytes + len(new.as_json()) > MAX_BYTES:
            raise RequestError(
                f"cache objects may hold {MAX_BYTES} bytes together; there are {held.num_bytes} already: "
                "delete one",
                code=TOO_MANY_CACHED_CONTENTS,
            )

    def add(self, new: NewContent, num_tokens: int, expires: float) -> CachedContent:
        """Keep an object whose K/V has been computed; its storage is paid for from now on."""
        now = self._clock.time()
        content = CachedContent(
            id=secrets.token_hex(12),
            tenant=new.tenant,
            model=new.model,
            display_name=new.display_name,
            content=new.as_json(),
            num_tokens=num_tokens,
            created=now,
            updated=now,
            expires=expires,
            billed_until=now,
        )
        self._store.add(content)
        return content

    def find(self, tenant: TenantId, name: str) -> CachedContent:
        """The tenant's object of that name, with or without ``cachedContents/``.

        Raises:
            RequestError: there is none, or not any more.
        """
        self.sweep()
        found = self._store.get(tenant, name.removeprefix(PREFIX), self._clock.time())
        if found is None:
            raise _missing(name)
        return found

    def page(
        self, tenant: TenantId, size: int | None, token: str | None
    ) -> tuple[Sequence[CachedContent], str | None]:
        """Some of the tenant's objects, oldest first, and the token of the next page if there is one.

        Raises:
            InvalidRequestError: the token is none of ours, or the size is negative.
        """
        self.sweep()
        if size is not None and size < 0:
            raise InvalidRequestError("pageSize must be at least 0", param="pageSize")
        size = min(size or DEFAULT_PAGE, MAX_PAGE)
        after = _read_token(token) if token else (-1.0, "")
        found = self._store.page(tenant, self._clock.time(), size + 1, after)
        if len(found) <= size:
            return found, None
        return found[:size], _write_token(found[size - 1])

    def set_expiry(self, content: CachedContent, expires: float) -> tuple[CachedContent, int]:
        """Move an object's end.

        Returns:
            The object as it is now, and the token-seconds of storage that are to be billed.

        Raises:
            RequestError: it has ended or is gone, or somebody else moved its end just now.
        """
        now = self._clock.time()
        if not self._store.set_expiry(content, expires, now):
            raise _missing(content.id)
        changed = replace(content, expires=expires, updated=now, billed_until=now)
        return changed, content.token_seconds(now)

    def delete(self, tenant: TenantId, name: str) -> tuple[CachedContent, int]:
        """Erase an object.

        Returns:
            What it was, and the token-seconds of storage that are to be billed.

        Raises:
            RequestError: there is none of that name.
        """
        self.sweep()
        now = self._clock.time()
        gone = self._store.delete(tenant, name.removeprefix(PREFIX), now)
        if gone is None:
            raise _missing(name)
        return gone, gone.token_seconds(now)

    def sweep(self) -> int:
        """Bill and erase what has expired; returns how many that were.

        A record is put before its object is erased, under an id that a second try would use again: a crash
        between the two bills nothing twice.
        """
        count = 0
        while due := self._store.expired(self._clock.time(), _ERASED_AT_ONCE):
            for content in due:
                self._ledger.put(self._last_bill(content))
                count += self._store.erase(content.id)
        return count

    def _last_bill(self, content: CachedContent) -> LedgerRecord:
        name = PREFIX + content.id
        identity = f"{name} {content.billed_until!r}"
        return LedgerRecord(
            record_id=hashlib.sha256(identity.encode()).hexdigest()[:32],
            time=content.expires,
            request_id=name,
            tenant=content.tenant,
            model=content.model,
            dialect=DIALECT,
            house_rules=self._house_rules,
            tokens=TokenRecord(),
            storage_token_seconds=content.token_seconds(content.expires),
            e2e=0.0,
        )


class ExpirySweeper:
    """Erases in the background what has expired while nobody asks for any object.

    The log says once that it cannot, and once that it works again.

    Args:
        contents: to sweep.
        seconds: between two looks.
    """

    def __init__(self, contents: CachedContents, seconds: float = SWEEP_SECONDS) -> None:
        self._contents = contents
        self._seconds = seconds
        self._stopping = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="ostinato-expiry", daemon=True)

    def start(self) -> None:
        """Once; the first look is at once, for what expired while no server ran."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for the thread's end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._sweep()
            if self._stopping.wait(self._seconds):
                return

    def _sweep(self) -> None:
        try:
            self._contents.sweep()
        except sqlite3.Error as error:
            if not self._is_failing:
                logger.error(
                    "expired cache objects cannot be erased, and are tried again: %s", error
                )
            self._is_failing = True
        else:
            if self._is_failing:
                logger.warning("expired cache objects are erased again")
            self._is_failing = False


def _missing(name: str) -> RequestError:
    """One sentence for what never was, is not the caller's, or has expired: nobody learns which."""
    return RequestError(
        f"there is no cache object {name[:80]!r}, or it has expired, or is not yours",
        param="cachedContent",
        code=CACHED_CONTENT_NOT_FOUND,
    )


def _write_token(last: CachedContent) -> str:
    return base64.urlsafe_b64encode(f"{last.created!r} {last.id}".encode()).decode()


def _read_token(token: str) -> tuple[float, str]:
    try:
        created, content_id = base64.urlsafe_b64decode(token.encode()).decode().split(" ")
        return float(created), content_id
    except ValueError:
        raise InvalidRequestError(
            "pageToken must be the nextPageToken of an earlier page", param="pageToken"
        ) from None
