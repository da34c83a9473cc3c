"""The evictable entries of a tier, kept in step with an eviction policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ostinato.cache.eviction.base import EvictionPolicy
from ostinato.cache.tiers.entry import EntryState, TierEntry
from ostinato.errors import CacheIntegrityError


class Candidates:
    """Owner of `TierEntry.candidate`. The policy holds exactly the entries that are evictable.

    Args:
        policy: ranks them.
    """

    def __init__(self, policy: EvictionPolicy[TierEntry]) -> None:
        self._policy = policy

    def __len__(self) -> int:
        return len(self._policy)

    def suspend(self, entry: TierEntry) -> None:
        """Take `entry` out while what a policy reads of it changes; `refresh` brings it back."""
        if entry.candidate:
            self._policy.remove(entry)
            entry.candidate = False

    def refresh(self, entry: TierEntry) -> None:
        """`entry` or what it depends on has changed: make it a candidate exactly if it is evictable."""
        if not entry.evictable:
            self.suspend(entry)
        elif not entry.candidate:
            entry.candidate = True
            self._policy.add(entry)

    def pop_victim(self) -> TierEntry:
        """Take out the one to give up next; to be dropped, or brought back by `refresh`.

        Raises:
            IndexError: if there is none.
        """
        victim = self._policy.pop_victim()
        victim.candidate = False
        return victim

    def stored(self, entries: Sequence[TierEntry]) -> None:
        """`entries`, heads first, became ready; none of them where a whole store has failed."""
        if entries:
            self._policy.on_store(entries)
        for entry in entries:
            self.refresh(entry)

    def reused(self, entries: Sequence[TierEntry], now: float) -> None:
        """`entries`, heads first, are used at `now`."""
        for entry in entries:
            self.suspend(entry)
        self._policy.on_reuse(entries, now)
        for entry in reversed(entries):
            entry.hits += 1
            entry.last_used = now
            self.refresh(entry)

    def promised(self, entry: TierEntry) -> None:
        """The promise to `entry`, which is no candidate, has changed. `stored` says so of one being written."""
        if entry.state is EntryState.READY:
            self._policy.on_promise(entry)

    def dropped(self, entry: TierEntry) -> None:
        """`entry`, which was stored, is not any more."""
        self.suspend(entry)
        self._policy.on_drop(entry)

    def check(self, entries: Iterable[TierEntry]) -> None:
        """Verify that of `entries`, all there are, the policy holds what is evictable.

        Raises:
            CacheIntegrityError: if not.
        """
        evictable = set()
        for entry in entries:
            if entry.candidate != entry.evictable:
                raise CacheIntegrityError(
                    f"{entry!r} is wrongly placed with respect to the candidates"
                )
            if entry.candidate:
                evictable.add(entry)
        held = list(self._policy)
        if len(held) != len(evictable) or set(held) != evictable:
            raise CacheIntegrityError("the policy's candidates are not those of the directory")
