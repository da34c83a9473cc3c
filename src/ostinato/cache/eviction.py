"""Which cached block is given up next. Policies only order blocks; the pool does the bookkeeping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from ostinato.cache.block import FreeKVCacheBlockQueue, KVCacheBlock


class EvictionPolicy(ABC):
    """An order over the evictable blocks: those that are findable and held by nobody.

    Contract: a victim is never an ancestor of another evictable block, so that what stays cached can always
    be reached from the start of its prompt. The pool adds the blocks of a request tail first, and whoever
    holds a block holds all blocks before it; a policy may rely on both.
    """

    @abstractmethod
    def add(self, block: KVCacheBlock) -> None:
        """`block` became evictable; this is the most recent use of it."""

    @abstractmethod
    def remove(self, block: KVCacheBlock) -> None:
        """`block` is no longer evictable: somebody holds it again, or the index forgot it."""

    @abstractmethod
    def pop_victim(self) -> KVCacheBlock:
        """Take out the block to give up next.

        Raises:
            IndexError: if nothing is evictable.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Evictable blocks."""

    @abstractmethod
    def __iter__(self) -> Iterator[KVCacheBlock]:
        """All evictable blocks, for checks."""


class LRU(EvictionPolicy):
    """Least recently used first.

    Leaf first and tail first come for free: every use of a block is a use of all blocks before it, and a
    request gives its blocks back tail first, so a block always lies behind all its descendants.
    """

    def __init__(self) -> None:
        self._queue = FreeKVCacheBlockQueue()

    def add(self, block: KVCacheBlock) -> None:
        self._queue.append(block)

    def remove(self, block: KVCacheBlock) -> None:
        self._queue.remove(block)

    def pop_victim(self) -> KVCacheBlock:
        return self._queue.popleft()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        return iter(self._queue)
