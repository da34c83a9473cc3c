"""Least frequently used."""

from __future__ import annotations

from ostinato.cache.eviction.base import E
from ostinato.cache.eviction.ranked import Rank, RankedPolicy


class LFU(RankedPolicy[E]):
    """The candidate with the fewest reuses since it was stored; of equals the least recently used.

    Counts never age: what was popular once stays for long.
    """

    def rank(self, item: E) -> Rank:
        return item.hits, item.last_used, -item.depth
