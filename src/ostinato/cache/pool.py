"""BlockPool: who owns each block.

A block is in exactly one of four states:

    free         nobody holds it, nobody can find it
    in use       ref_cnt > 0; findable or not
    in transfer  no request holds it, a copy to or from another tier does
    cached       findable, held by nobody: the only evictable state

        allocate            release                     release
    free ───────► in use ───────────► free    in use ───────────► cached   (the index has an entry)
      ▲                                         ▲                  │  │
      │                                         └───── touch ──────┘  │
      └──────────────────── evict (lazily, by allocate) ──────────────┘

    free + in use + cached + in transfer = total, after every call.

Eviction is lazy: a cached block keeps its content until `allocate` finds no free block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ostinato.cache.block import FreeKVCacheBlockQueue, KVCacheBlock
from ostinato.cache.eviction import EvictionPolicy
from ostinato.cache.types import BlockId
from ostinato.errors import CacheIntegrityError, ConfigError


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Blocks by state, and what eviction has cost so far."""

    total: int
    free: int
    in_use: int
    cached: int
    in_transfer: int
    evicted_total: int


class BlockPool:
    """Owner of every block's reference counts and of the free queue.

    Args:
        num_blocks: capacity.
        policy: orders the cached blocks.
        forget: called with a victim before it is reused; must make it unfindable (`entry` becomes None).

    Raises:
        ConfigError: if `num_blocks` is not positive.
    """

    def __init__(
        self, num_blocks: int, policy: EvictionPolicy, forget: Callable[[KVCacheBlock], None]
    ) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a K/V pool needs at least one block, not {num_blocks}")
        self._blocks = tuple(KVCacheBlock(BlockId(i)) for i in range(num_blocks))
        self._free = FreeKVCacheBlockQueue()
        for block in self._blocks:
            self._free.append(block)
        self._evictable = policy
        self._forget = forget
        self._in_transfer = 0
        self._evicted_total = 0

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached ones."""
        return len(self._free) + len(self._evictable)

    def stats(self) -> PoolStats:
        free, cached = len(self._free), len(self._evictable)
        return PoolStats(
            total=self.num_blocks,
            free=free,
            in_use=self.num_blocks - free - cached - self._in_transfer,
            cached=cached,
            in_transfer=self._in_transfer,
            evicted_total=self._evicted_total,
        )

    def allocate(self, count: int) -> list[KVCacheBlock]:
        """Hand out `count` blocks with one reference each, evicting cached ones if none is free.

        Raises:
            ValueError: if fewer than `count` are available; then nothing has changed.
        """
        if count > self.num_available:
            raise ValueError(f"{count} blocks wanted, {self.num_available} available")
        while len(self._free) < count:
            self.evict_one()
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            block.ref_cnt = 1
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to each block, which must be cached or in use."""
        for block in blocks:
            if block.ref_cnt == 0 and block.transfers == 0:
                self._evictable.remove(block)
            elif block.ref_cnt == 0:
                self._in_transfer -= 1
            block.ref_cnt += 1

    def release(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Drop a reference of each block, last one first, so that the head of a prefix is evicted last.

        Raises:
            CacheIntegrityError: if a block was not held.
        """
        for block in reversed(blocks):
            if block.ref_cnt < 1:
                raise CacheIntegrityError(f"{block!r} is released but nobody holds it")
            block.ref_cnt -= 1
            if block.ref_cnt == 0:
                if block.transfers:
                    self._in_transfer += 1
                else:
                    self._settle(block)

    def begin_transfer(self, blocks: Sequence[KVCacheBlock]) -> None:
        """A copy of `blocks` starts. Until `end_transfer` none is reused, whatever its requests do.

        Args:
            blocks: from the first of the prefix on, since a block that stays must stay reachable: if only a
                tail were kept, its head would be evicted first.

        Raises:
            CacheIntegrityError: if one is free.
        """
        for block in blocks:
            if block.ref_cnt == 0 and block.transfers == 0:
                if block.entry is None:
                    raise CacheIntegrityError(f"{block!r} is free and cannot be transferred")
                self._evictable.remove(block)
                self._in_transfer += 1
            block.transfers += 1

    def end_transfer(self, blocks: Sequence[KVCacheBlock]) -> None:
        """The copy of what was given to `begin_transfer` has finished or failed; last block first.

        Raises:
            CacheIntegrityError: if no transfer of a block is under way.
        """
        for block in reversed(blocks):
            if block.transfers < 1:
                raise CacheIntegrityError(f"{block!r} has no transfer that could end")
            block.transfers -= 1
            if block.transfers == 0 and block.ref_cnt == 0:
                self._in_transfer -= 1
                self._settle(block)

    def displaced(self, block: KVCacheBlock) -> None:
        """The index replaced `block` by one that holds more: free it unless somebody still holds it."""
        if block.entry is not None:
            raise CacheIntegrityError(f"{block!r} can still be found and is not displaced")
        if block.ref_cnt == 0 and block.transfers == 0:
            self._evictable.remove(block)
            self._free.append(block)

    def evict_one(self) -> None:
        """Turn the policy's next victim into a free block.

        Raises:
            IndexError: if nothing is cached.
        """
        victim = self._evictable.pop_victim()
        self._forget(victim)
        self._free.append(victim)
        self._evicted_total += 1

    def _settle(self, block: KVCacheBlock) -> None:
        if block.entry is not None:
            self._evictable.add(block)
        else:
            self._free.append(block)

    def check_integrity(self) -> None:
        """Verify that every block is in exactly the place its state asks for. O(total).

        Raises:
            CacheIntegrityError: naming the first block that is not.
        """
        free = {block.block_id for block in self._free}
        evictable = {block.block_id for block in self._evictable}
        if len(free) != len(self._free) or len(evictable) != len(self._evictable):
            raise CacheIntegrityError("a queue's length differs from its members")
        in_transfer = 0
        for block in self._blocks:
            held = block.ref_cnt > 0 or block.transfers > 0
            in_transfer += block.ref_cnt == 0 and block.transfers > 0
            if (block.block_id in free) != (not held and block.entry is None):
                raise CacheIntegrityError(
                    f"{block!r} is wrongly placed with respect to the free queue"
                )
            if (block.block_id in evictable) != (not held and block.entry is not None):
                raise CacheIntegrityError(
                    f"{block!r} is wrongly placed with respect to the evictable"
                )
        if in_transfer != self._in_transfer:
            raise CacheIntegrityError(
                f"{in_transfer} blocks are in transfer, {self._in_transfer} counted"
            )

    @property
    def blocks(self) -> tuple[KVCacheBlock, ...]:
        """All blocks by id, for checks."""
        return self._blocks
