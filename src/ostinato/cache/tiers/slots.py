"""Numbered places of equal size. The lowest free ones are handed out first, so that what is stored together
mostly lies together, and what is in use stays at the front."""

from __future__ import annotations

import heapq


class SlotAllocator:
    """Slots ``0 … capacity - 1``.

    Args:
        capacity: slots.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._growth_limit = capacity
        self._end = 0
        self._free: list[int] = []

    @property
    def end(self) -> int:
        """One more than the highest slot that was ever used: what the backing store has grown to."""
        return self._end

    @property
    def num_free(self) -> int:
        """Slots that `take` can hand out now."""
        return len(self._free) + max(0, self._growth_limit - self._end)

    def limit_growth(self, slots: int) -> None:
        """Until further notice no slot from `slots` on is used for the first time."""
        self._growth_limit = min(slots, self.capacity)

    def take(self, count: int) -> list[int]:
        """`count` slots, ascending.

        Raises:
            ValueError: if fewer are free.
        """
        if count > self.num_free:
            raise ValueError(f"{count} slots wanted, {self.num_free} free")
        taken = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        fresh = count - len(taken)
        taken += range(self._end, self._end + fresh)
        self._end += fresh
        return taken

    def give_back(self, slot: int) -> None:
        """`slot`, from `take` or `occupy`, is free again."""
        heapq.heappush(self._free, slot)

    def occupy(self, slots: set[int], end: int) -> None:
        """Start with `slots` in use and all others below `end` free; for a store that was there before."""
        self._end = end
        self._free = [slot for slot in range(end) if slot not in slots]
        heapq.heapify(self._free)

    def free_slots(self) -> set[int]:
        """Those that were used once and are free now; for checks."""
        return set(self._free)
