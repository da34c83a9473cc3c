"""EntryBook: what the prompt cache has been promised to hold, prefix by prefix.

An entry is the digest of a scope and of the tokens up to a boundary. It holds no K/V and no text: the engine
has the K/V, and whether it still has it is seen only when a request comes back (`settle.py`). So an entry is a
right to be looked up, never a claim that something is cached.

Entries are put in when the response that writes them has begun, so requests that start together cannot read
each other's. They live in memory; where K/V outlives the process, a journal (`entry_writer.py`) keeps them too.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NewType, Protocol

import numpy as np

from ostinato.cache.retention import ExpiryQueue
from ostinato.cache.types import TenantId, TokenArray
from ostinato.clock import Clock
from ostinato.product.segments import TTLClass

MAX_ENTRIES = 200_000
"""About 100 MB; beyond that, those that expire soonest go first."""

EntryKey = NewType("EntryKey", bytes)
"""Digest of a scope and of a prefix's tokens. 32 bytes."""

_FORMAT = b"ostinato-prompt-cache-v1"


@dataclass(frozen=True, slots=True)
class CacheScope:
    """Who may read an entry: whoever agrees in all of this.

    Attributes:
        tenant: from the API key.
        model: what computes; a name that changes whenever K/V of the same tokens would.
        salt: narrows within the tenant, as for K/V; None and "" differ.
        accounting_key: OpenAI's ``prompt_cache_key``: K/V is shared beyond it, entries are not.
    """

    tenant: TenantId
    model: str
    salt: str | None = None
    accounting_key: str | None = None


class PrefixDigests:
    """Digests of a prompt's prefixes, under a server's secret.

    Args:
        secret: of the server.
        scope: who may read.
        token_ids: ``(num_tokens,)`` of the prompt, and later of its answer.
    """

    def __init__(self, secret: bytes, scope: CacheScope, token_ids: TokenArray) -> None:
        parts = (scope.tenant, scope.model, scope.salt, scope.accounting_key)
        message = _FORMAT + b"".join(map(_tagged, parts))
        self._root = hmac.digest(secret, message, hashlib.sha256)
        self._token_ids = token_ids

    def keys(self, lengths: Iterable[int]) -> dict[int, EntryKey]:
        """The keys of the prefixes of these lengths; the prompt is read once, as far as the longest."""
        digest = hashlib.sha256(self._root)
        tokens = np.ascontiguousarray(self._token_ids, dtype="<u4")
        keys: dict[int, EntryKey] = {}
        done = 0
        for length in sorted(set(lengths)):
            digest.update(tokens[done:length].tobytes())
            done = length
            keys[length] = EntryKey(digest.copy().digest())
        return keys

    def extended(self, token_ids: TokenArray) -> PrefixDigests:
        """Of the prompt with these tokens behind it."""
        longer = object.__new__(PrefixDigests)
        longer._root = self._root
        longer._token_ids = np.concatenate((self._token_ids, token_ids))
        return longer


def _tagged(value: str | None) -> bytes:
    """Length-prefixed; None is not empty."""
    if value is None:
        return b"\x00"
    raw = value.encode()
    return b"\x01" + struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True, slots=True)
class Entry:
    """One cached prefix.

    Attributes:
        key: names it.
        num_tokens: its length.
        ttl_class: as it was written; a later request with another one does not change it.
        ttl: seconds that a hit adds again.
        expires_at: in seconds of `Clock.time()`.
        ends_at: no hit moves `expires_at` beyond this; None: no such bound.
        tenant: whose it is.
    """

    key: EntryKey
    num_tokens: int
    ttl_class: TTLClass
    ttl: float
    expires_at: float
    ends_at: float | None
    tenant: TenantId

    def refreshed(self, started: float) -> Entry:
        """The entry after a hit by a request that began at `started`."""
        until = max(self.expires_at, started + self.ttl)
        if self.ends_at is not None:
            until = min(until, self.ends_at)
        return replace(self, expires_at=until)


class EntryJournal(Protocol):
    """Is told of every change but expiry, which follows from the deadlines. Never waits and never fails."""

    def put(self, entry: Entry) -> None:
        """It is there, or is another now."""
        ...

    def forget(self, key: EntryKey) -> None:
        """It is gone."""
        ...


class NoJournal:
    """Entries end with the process."""

    def put(self, entry: Entry) -> None: ...

    def forget(self, key: EntryKey) -> None: ...


NO_JOURNAL = NoJournal()


class EntryBook:
    """All live entries. Not thread-safe: the event loop owns it.

    Args:
        clock: of lifetimes.
        max_entries: bound; beyond it those go that expire soonest.
        journal: outlives this process.
        kept: what it had from an earlier one.
    """

    def __init__(
        self,
        clock: Clock,
        max_entries: int = MAX_ENTRIES,
        journal: EntryJournal = NO_JOURNAL,
        kept: Iterable[Entry] = (),
    ) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._journal = journal
        self._entries: dict[EntryKey, Entry] = {}
        self._expiry: ExpiryQueue[EntryKey] = ExpiryQueue()
        for entry in kept:
            self._enter(entry)
        self._let_go()

    def __len__(self) -> int:
        self._sweep()
        return len(self._entries)

    def find(self, key: EntryKey) -> Entry | None:
        """The entry, if it has not expired."""
        self._sweep()
        return self._entries.get(key)

    def put(self, entry: Entry) -> None:
        """Write an entry. One that is there already is refreshed: the later deadline counts, and the longer
        lifetime."""
        self._sweep()
        known = self._entries.get(entry.key)
        if known is not None:
            kept = known if known.ttl > entry.ttl else entry
            entry = replace(kept, expires_at=max(known.expires_at, entry.expires_at))
        self._set(entry)
        self._let_go()

    def refresh(self, key: EntryKey, started: float) -> None:
        """A request that began at `started` has read it. One that is gone stays gone."""
        entry = self.find(key)
        if entry is not None:
            self._set(entry.refreshed(started))

    def forget(self, key: EntryKey) -> None:
        """Its K/V is gone."""
        if self._entries.pop(key, None) is not None:
            self._expiry.cancel(key)
            self._journal.forget(key)

    def _set(self, entry: Entry) -> None:
        self._enter(entry)
        self._journal.put(entry)

    def _enter(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        self._expiry.schedule(entry.key, entry.expires_at)

    def _let_go(self) -> None:
        while len(self._entries) > self._max_entries:
            key = self._expiry.pop()
            del self._entries[key]
            self._journal.forget(key)

    def _sweep(self) -> None:
        for key in self._expiry.due(self._clock.time()):
            del self._entries[key]
