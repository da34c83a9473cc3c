"""Least recently used."""

from __future__ import annotations

from ostinato.cache.eviction.base import E
from ostinato.cache.eviction.ranked import Rank, RankedPolicy


class LRU(RankedPolicy[E]):
    """The candidate whose last use is longest ago; of one prefix the deepest.

    As candidates are leaves only, this is the exact order of a list of all items in which each use of
    a prefix moves its items to the end, tail first.
    """

    def rank(self, item: E) -> Rank:
        return item.last_used, -item.depth
