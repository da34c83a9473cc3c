"""Adaptive replacement cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from ostinato.cache.eviction.base import E, EvictionPolicy
from ostinato.cache.eviction.lru import LRU


class ARC(EvictionPolicy[E]):
    """Two LRU lists, of what was used once and what was used again, and a share between them that adapts.

    Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003; names as there:
    T1 and T2 are the stored items used once and more than once, B1 and B2 the ghosts (names only) of what was
    evicted from each, p the size that T1 should have. A ghost that comes back says which list was too short.

    Two departures. Candidates are leaves only, so a list that should shrink but has no candidate leaves the
    choice to the other. And capacity is what is stored at most at one time, since a pool shares its
    room with blocks that are in use. An item without a `ghost_key` leaves no ghost.
    """

    wants_ghost_keys = True

    def __init__(self) -> None:
        self._recent: set[E] = set()  # T1
        self._frequent: set[E] = set()  # T2
        self._recent_candidates: LRU[E] = LRU()
        self._frequent_candidates: LRU[E] = LRU()
        self._recent_ghosts: OrderedDict[Hashable, None] = OrderedDict()  # B1
        self._frequent_ghosts: OrderedDict[Hashable, None] = OrderedDict()  # B2
        self._target = 0.0  # p
        self._capacity = 0  # c

    def add(self, item: E) -> None:
        if item in self._frequent:
            self._frequent_candidates.add(item)
        else:
            self._recent_candidates.add(item)

    def remove(self, item: E) -> None:
        if item in self._recent_candidates:
            self._recent_candidates.remove(item)
        else:
            self._frequent_candidates.remove(item)

    def pop_victim(self) -> E:
        from_recent = len(self._recent) > self._target
        if (from_recent and len(self._recent_candidates)) or not len(self._frequent_candidates):
            victim = self._recent_candidates.pop_victim()
            self._leave_ghost(victim, self._recent_ghosts)
        else:
            victim = self._frequent_candidates.pop_victim()
            self._leave_ghost(victim, self._frequent_ghosts)
        return victim

    def on_store(self, items: Sequence[E]) -> None:
        for item in items:
            if self._recall(item.ghost_key):
                self._frequent.add(item)
            else:
                self._recent.add(item)
        self._capacity = max(self._capacity, len(self._recent) + len(self._frequent))

    def on_reuse(self, items: Sequence[E], now: float) -> None:
        for item in items:
            if item in self._recent:
                self._recent.remove(item)
                self._frequent.add(item)

    def on_drop(self, item: E) -> None:
        self._recent.discard(item)
        self._frequent.discard(item)

    def _recall(self, key: Hashable | None) -> bool:
        """Whether `key` is a ghost's. It is one no longer, and the target moves towards its list."""
        recent, frequent = len(self._recent_ghosts), len(self._frequent_ghosts)
        if key in self._recent_ghosts:
            del self._recent_ghosts[key]
            self._target = min(self._capacity, self._target + max(1.0, frequent / recent))
            return True
        if key in self._frequent_ghosts:
            del self._frequent_ghosts[key]
            self._target = max(0.0, self._target - max(1.0, recent / frequent))
            return True
        return False

    def _leave_ghost(self, item: E, ghosts: OrderedDict[Hashable, None]) -> None:
        if item.ghost_key is None:
            return
        ghosts[item.ghost_key] = None
        while len(self._recent_ghosts) + len(self._recent) > max(self._capacity, 1):
            if not self._recent_ghosts:
                break
            self._recent_ghosts.popitem(last=False)
        while len(self._recent_ghosts) + len(self._frequent_ghosts) > self._capacity:
            oldest = self._frequent_ghosts or self._recent_ghosts
            oldest.popitem(last=False)

    def __len__(self) -> int:
        return len(self._recent_candidates) + len(self._frequent_candidates)

    def __iter__(self) -> Iterator[E]:
        yield from self._recent_candidates
        yield from self._frequent_candidates
