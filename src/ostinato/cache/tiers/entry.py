"""TierEntry: what a tier's directory knows of one block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum, auto

from ostinato.cache.identity import BlockIdentity
from ostinato.cache.retention import Retention
from ostinato.cache.types import BlockHash, TenantId


class EntryState(Enum):
    """Where an entry is in its life."""

    WRITING = auto()
    """Reserved; nobody can read it yet."""
    READY = auto()
    """Committed."""
    GONE = auto()
    """Evicted, expired, erased or given up: nobody finds it. Its slot is free once nobody moves bytes of it."""


class Removal(Enum):
    """Why an entry went."""

    EVICTED = auto()
    EXPIRED = auto()
    ERASED = auto()
    ABORTED = auto()
    """Its store failed or was given up."""


def must_wipe(retention: Retention | None, removal: Removal) -> bool:
    """Whether the bytes of an entry that is gone must not be left lying until others are written over them."""
    promised = retention is not None and retention.hard
    return promised or removal in (Removal.EXPIRED, Removal.ERASED)


class TierEntry:
    """Bookkeeping of one block in one tier; satisfies `eviction.base.Evictable`. Compared by identity.

    Attributes:
        identity: name, parent, depth and tenant.
        slot: where its bytes lie.
        state: see `EntryState`.
        parent: entry of the block before, or None for the first of a prompt.
        children: entries of the blocks behind it.
        users: readers, a writer, and calls that need it to stay.
        candidate: whether the eviction policy holds it.
        retention, hits, fan_out, last_used: see `Evictable`.
    """

    __slots__ = (
        "candidate",
        "children",
        "fan_out",
        "hits",
        "identity",
        "last_used",
        "parent",
        "retention",
        "slot",
        "state",
        "users",
    )

    def __init__(
        self,
        identity: BlockIdentity,
        retention: Retention | None,
        parent: TierEntry | None,
        slot: int,
        last_used: float,
    ) -> None:
        self.identity = identity
        self.retention = retention
        self.parent = parent
        self.slot = slot
        self.last_used = last_used
        self.state = EntryState.WRITING
        self.children: set[TierEntry] = set()
        self.users = 0
        self.hits = 0
        self.fan_out = 0
        self.candidate = False

    @property
    def key(self) -> BlockHash:
        return self.identity.key

    @property
    def depth(self) -> int:
        return self.identity.depth

    @property
    def tenant(self) -> TenantId:
        return self.identity.tenant

    @property
    def ghost_key(self) -> BlockHash:
        return self.identity.key

    @property
    def evictable(self) -> bool:
        """A leaf that is ready and that nobody uses."""
        return self.state is EntryState.READY and not self.users and not self.children

    def would_end_too_early(self) -> Iterator[TierEntry]:
        """Entries before this one with a hard deadline that would take it along before its promise ends.

        A promise to a block is one to its whole prefix, but an older, shorter one may stand in the record.
        """
        before = self.parent
        while self.retention is not None and before is not None:
            known = before.retention
            if known is not None and known.until >= self.retention.until:
                return
            if known is not None and known.hard:
                yield before
            before = before.parent

    def prolong(self, other: TierEntry) -> float:
        """Last as long as `other`; both are promised to stay. Returns the new deadline."""
        assert self.retention is not None
        assert other.retention is not None
        self.retention = replace(self.retention, until=other.retention.until)
        return self.retention.until

    def cover_head(self) -> bool:
        """Extend the promise to the block before, as each use of this one did. Whether that changed it."""
        before = self.parent
        if before is None or before.retention is None or self.retention is None:
            return False
        known, before.retention = before.retention, before.retention.covering(self.retention)
        return before.retention != known

    def __repr__(self) -> str:
        return f"TierEntry({self.key.hex()[:12]}, slot {self.slot}, {self.state.name.lower()})"
