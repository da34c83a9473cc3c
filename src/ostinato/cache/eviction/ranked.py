"""RankedPolicy: a policy whose order is a number per candidate, fixed while it is one."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Iterator

from ostinato.cache.eviction.base import E, EvictionPolicy

Rank = tuple[float, ...]


class RankedPolicy(EvictionPolicy[E]):
    """Gives up the candidate of the lowest rank; of equal ones the one that became a candidate first.

    A heap with lazy removal: what was taken out stays in it until it surfaces or until such entries
    are the majority. O(log n) a call, amortised.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, E]] = []
        self._serials: dict[E, int] = {}
        self._serial = 0

    @abstractmethod
    def rank(self, item: E) -> Rank:
        """Lowest goes first. Asked once each time that `item` becomes a candidate."""

    def add(self, item: E) -> None:
        self._serial = serial = self._serial + 1
        self._serials[item] = serial
        heapq.heappush(self._heap, (self.rank(item), serial, item))

    def remove(self, item: E) -> None:
        del self._serials[item]
        if len(self._heap) > 2 * len(self._serials) + 64:
            current = self._serials
            self._heap = [entry for entry in self._heap if current.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def pop_victim(self) -> E:
        while True:
            _, serial, item = heapq.heappop(self._heap)
            if self._serials.get(item) == serial:
                del self._serials[item]
                return item

    def exchange(self, item: E) -> E:
        # What surfaces may have been taken out already: then `item` goes the long way.
        if not self._heap or self.rank(item) < self._heap[0][0]:
            return item
        return super().exchange(item)

    def rank_again(self) -> None:
        """Ranks depend on more than the candidates, and that has changed. O(candidates)."""
        self._heap = [(self.rank(item), serial, item) for item, serial in self._serials.items()]
        heapq.heapify(self._heap)

    def __contains__(self, item: object) -> bool:
        return item in self._serials

    def __len__(self) -> int:
        return len(self._serials)

    def __iter__(self) -> Iterator[E]:
        return iter(self._serials)
