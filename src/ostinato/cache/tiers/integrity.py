"""What must hold for the entries of a `TierDirectory` at any moment."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ostinato.cache.tiers.entry import EntryState, TierEntry
from ostinato.cache.tiers.slots import SlotAllocator
from ostinato.cache.types import BlockHash
from ostinato.errors import CacheIntegrityError


def check_slots(slots: SlotAllocator, entries: Sequence[TierEntry]) -> None:
    """Each of `entries` has a slot of its own, and all others are free.

    Raises:
        CacheIntegrityError: naming what is wrong.
    """
    taken = [entry.slot for entry in entries]
    free = slots.free_slots()
    if len(set(taken)) != len(taken) or free & set(taken):
        raise CacheIntegrityError("a slot has two owners")
    if len(taken) + len(free) != slots.end or slots.end > slots.capacity:
        raise CacheIntegrityError(
            f"{len(taken)} slots are used and {len(free)} free of {slots.end}"
        )


def check_entries(entries: Mapping[BlockHash, TierEntry], deadlines: Container[TierEntry]) -> None:
    """`entries` stand under their own names, behind their parents, and those with a hard promise will expire.

    Raises:
        CacheIntegrityError: naming what is wrong.
    """
    for key, entry in entries.items():
        if entry.key != key or entry.state is EntryState.GONE:
            raise CacheIntegrityError(f"{entry!r} is found under a key that is not its own")
        parent = entries.get(entry.identity.parent) if entry.identity.parent else None
        if entry.parent is not parent or (parent is not None and entry not in parent.children):
            raise CacheIntegrityError(f"{entry!r} is stored without the block before it")
        hard = entry.retention is not None and entry.retention.hard
        if hard != (entry in deadlines):
            raise CacheIntegrityError(f"{entry!r} will not expire when it should")
