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

Eviction is lazy: a cached block keeps its content until `allocate` finds no free block. The policy is offered
only candidates: cached blocks that no findable block follows, which the index knows. Whoever holds a block
holds all before it, and so does a transfer; hence what follows a cached block is cached too, and as long as
anything is cached there is a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ostinato.cache.block import FreeKVCacheBlockQueue, KVCacheBlock
from ostinato.cache.eviction import EvictionPolicy
from ostinato.cache.retention import ExpiryQueue, Retention, is_readable
from ostinato.cache.types import BlockId, TenantId
from ostinato.clock import Clock, SystemClock
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
    """Owner of every block's reference counts, of the free queue and of what eviction knows of a block.

    Args:
        num_blocks: capacity.
        policy: ranks the candidates.
        forget: called with a victim before it is reused; must make it unfindable (`entry` becomes None).
            Returns the block before it if that one is findable and nothing follows it any more.
        is_leaf: whether no findable block follows this findable one.
        clock: of promises.
        wipe: overwrites the content of a block that was promised to be erased.

    Raises:
        ConfigError: if `num_blocks` is not positive.
    """

    def __init__(
        self,
        num_blocks: int,
        policy: EvictionPolicy[KVCacheBlock],
        forget: Callable[[KVCacheBlock], KVCacheBlock | None],
        is_leaf: Callable[[KVCacheBlock], bool],
        clock: Clock | None = None,
        wipe: Callable[[BlockId], None] = lambda block_id: None,
    ) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a K/V pool needs at least one block, not {num_blocks}")
        self._blocks = tuple(KVCacheBlock(BlockId(i)) for i in range(num_blocks))
        self._free = FreeKVCacheBlockQueue()
        for block in self._blocks:
            self._free.append(block)
        self._policy = policy
        self._forget = forget
        self._is_leaf = is_leaf
        self._clock: Clock = SystemClock() if clock is None else clock
        self._wipe = wipe
        self._hard_promises: ExpiryQueue[KVCacheBlock] = ExpiryQueue()
        self._uses = 0  # what `last_used` counts
        self._cached = 0
        self._in_transfer = 0
        self._evicted_total = 0

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free and cached ones."""
        return len(self._free) + self._cached

    def stats(self) -> PoolStats:
        free = len(self._free)
        return PoolStats(
            total=self.num_blocks,
            free=free,
            in_use=self.num_blocks - free - self._cached - self._in_transfer,
            cached=self._cached,
            in_transfer=self._in_transfer,
            evicted_total=self._evicted_total,
        )

    def allocate(
        self, count: int, depth: int = 0, tenant: TenantId | None = None
    ) -> list[KVCacheBlock]:
        """Hand out `count` blocks with one reference each, evicting cached ones if none is free.

        Args:
            count: blocks for consecutive places of one sequence.
            depth: blocks of the sequence before them.
            tenant: whose budget they will count against.

        Raises:
            ValueError: if fewer than `count` are available; then nothing has changed.
        """
        if count > self.num_available:
            raise ValueError(f"{count} blocks wanted, {self.num_available} available")
        free = self._free
        taken = [free.popleft() for _ in range(min(count, len(free)))]
        if len(taken) < count:
            taken += self._evict(count - len(taken))
        for at, block in enumerate(taken, depth):
            block.ref_cnt = 1
            block.depth = at
            block.tenant = tenant
            block.hits = 0
            block.fan_out = (
                1  # as all but the last of what is stored at once; `stored` corrects that one
            )
            block.last_used = self._uses
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to each block, which must be cached or in use."""
        for block in blocks:
            if block.ref_cnt == 0:
                if block.transfers == 0:
                    self._uncache(block)
                else:
                    self._in_transfer -= 1
            block.ref_cnt += 1

    def reuse(self, blocks: Sequence[KVCacheBlock]) -> None:
        """`touch` findable blocks for another request that needs what they hold.

        Args:
            blocks: consecutive ones of one prefix.
        """
        self._policy.on_reuse(blocks, self._uses)
        self.touch(blocks)
        now = self._clock.time()
        for block in blocks:
            block.hits += 1
            if block.retention is not None:
                self._promise(block, block.retention.refreshed(now))

    def retain(self, blocks: Iterable[KVCacheBlock], retention: Retention) -> None:
        """Promise that `blocks`, which are held, stay; a longer promise that one has stays in force."""
        for block in blocks:
            known = block.retention
            self._promise(block, retention if known is None else known.merged(retention))

    def is_readable(self, block: KVCacheBlock) -> bool:
        """Whether no hard promise for `block` has expired."""
        return is_readable(block.retention, self._clock.time())

    @property
    def has_hard_promises(self) -> bool:
        """Whether any block may become unreadable."""
        return len(self._hard_promises) > 0

    def take_expired(self) -> list[KVCacheBlock]:
        """Cached blocks whose hard promise has expired, deepest first; the caller erases them.

        Those that somebody still holds come later, once they are given back.
        """
        now = self._clock.time()
        due = self._hard_promises.due(now)
        for block in due:
            if block.ref_cnt or block.transfers:
                self._hard_promises.schedule(block, now)
        idle = [block for block in due if not block.ref_cnt and not block.transfers]
        return sorted(idle, key=lambda block: -block.depth)

    def _promise(self, block: KVCacheBlock, retention: Retention) -> None:
        block.retention = retention
        self._policy.on_promise(block)
        if retention.hard:
            self._hard_promises.schedule(block, retention.until)

    def _drop(self, block: KVCacheBlock) -> None:
        """Nobody can find `block` any more."""
        self._policy.on_drop(block)
        if block.retention is not None:
            self._hard_promises.cancel(block)
            block.must_wipe |= block.retention.hard
            block.retention = None

    def stored(self, blocks: Sequence[KVCacheBlock], previous: KVCacheBlock | None) -> None:
        """`blocks`, all held, have become findable just now.

        Args:
            blocks: consecutive ones of one prefix.
            previous: the block of the prefix before them.
        """
        if blocks:
            blocks[-1].fan_out = 0
            if previous is not None:
                previous.fan_out += 1
            self._policy.on_store(blocks)

    def release(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Drop a reference of each block, last one first, so that the head of a prefix is evicted last.

        Args:
            blocks: consecutive ones of one sequence.

        Raises:
            CacheIntegrityError: if a block was not held.
        """
        self._uses += 1
        followed = False
        for block in reversed(blocks):
            if block.ref_cnt < 1:
                raise CacheIntegrityError(f"{block!r} is released but nobody holds it")
            block.ref_cnt -= 1
            block.last_used = self._uses
            if block.ref_cnt == 0:
                if block.transfers:
                    self._in_transfer += 1
                elif followed and block.entry is not None:
                    self._cached += 1
                else:
                    self._settle(block)
            followed = block.entry is not None

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
                self._uncache(block)
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

    def forgotten(self, block: KVCacheBlock, leaf: KVCacheBlock | None = None) -> None:
        """Nobody can find `block` any more: free it unless somebody still holds it.

        Args:
            block: that the index has just forgotten.
            leaf: the block before it if nothing follows that one any more.

        Raises:
            CacheIntegrityError: if it can be found.
        """
        if block.entry is not None:
            raise CacheIntegrityError(f"{block!r} can still be found and is not forgotten")
        idle = block.ref_cnt == 0 and block.transfers == 0
        if idle:
            self._uncache(block)
        self._drop(block)
        if idle:
            self._set_free(block)
        if leaf is not None and leaf.ref_cnt == 0 and leaf.transfers == 0:
            self._offer(leaf)

    def erased(self, block: KVCacheBlock, leaf: KVCacheBlock | None = None) -> None:
        """`forgotten`, and nothing of its content may be left lying."""
        block.must_wipe = True
        self.forgotten(block, leaf)

    def evict_one(self) -> None:
        """Turn the policy's next victim into a free block.

        Raises:
            IndexError: if nothing is cached.
        """
        (victim,) = self._evict(1)
        self._free.append(victim)

    def _evict(self, count: int) -> list[KVCacheBlock]:
        """Make the next `count` victims unfindable; they are in no queue then."""
        policy = self._policy
        victims = []
        leaf: KVCacheBlock | None = None
        for _ in range(count):
            if leaf is None:
                victim = policy.pop_victim()
            else:
                leaf.is_candidate = True
                victim = policy.exchange(leaf)
            victim.is_candidate = False
            leaf = self._forget(victim)
            if leaf is not None and (leaf.ref_cnt or leaf.transfers):
                leaf = None
            self._drop(victim)
            self._wipe_if_due(victim)
            victims.append(victim)
        if leaf is not None:
            self._offer(leaf)
        self._cached -= count
        self._evicted_total += count
        return victims

    def _settle(self, block: KVCacheBlock) -> None:
        """Nobody holds `block` any more."""
        if block.entry is None:
            self._set_free(block)
            return
        self._cached += 1
        if self._is_leaf(block):
            self._offer(block)

    def _set_free(self, block: KVCacheBlock) -> None:
        self._wipe_if_due(block)
        self._free.append(block)

    def _wipe_if_due(self, block: KVCacheBlock) -> None:
        """Nobody holds `block`, which nobody can find: its content goes if that was promised."""
        if block.must_wipe:
            block.must_wipe = False
            self._wipe(block.block_id)

    def _offer(self, block: KVCacheBlock) -> None:
        block.is_candidate = True
        self._policy.add(block)

    def _uncache(self, block: KVCacheBlock) -> None:
        """Somebody holds the cached `block` again, or nobody can find it any more."""
        self._cached -= 1
        if block.is_candidate:
            block.is_candidate = False
            self._policy.remove(block)

    def check_integrity(self) -> None:
        """Verify that every block is in exactly the place its state asks for. O(total).

        Raises:
            CacheIntegrityError: naming the first block that is not.
        """
        free = {block.block_id for block in self._free}
        candidates = {block.block_id for block in self._policy}
        if len(free) != len(self._free) or len(candidates) != len(self._policy):
            raise CacheIntegrityError("a queue's length differs from its members")
        in_transfer = cached = 0
        for block in self._blocks:
            held = block.ref_cnt > 0 or block.transfers > 0
            in_transfer += block.ref_cnt == 0 and block.transfers > 0
            cached += not held and block.entry is not None
            if (block.block_id in free) != (not held and block.entry is None):
                raise CacheIntegrityError(
                    f"{block!r} is wrongly placed with respect to the free queue"
                )
            evictable = not held and block.entry is not None and self._is_leaf(block)
            if (block.block_id in candidates, block.is_candidate) != (evictable, evictable):
                raise CacheIntegrityError(
                    f"{block!r} is wrongly placed with respect to the candidates for eviction"
                )
        if (in_transfer, cached) != (self._in_transfer, self._cached):
            raise CacheIntegrityError(
                f"{in_transfer} blocks are in transfer and {cached} cached,"
                f" {self._in_transfer} and {self._cached} counted"
            )

    @property
    def blocks(self) -> tuple[KVCacheBlock, ...]:
        """All blocks by id, for checks."""
        return self._blocks
