"""KVCacheManager: the only part of the cache that the scheduler sees.

The life of a sequence's K/V:

    lookup ──► allocate ──► (compute, publish)* ──► release
                  │   ▲          │
                  │   └─ extend ─┘          fork: a second table over the same blocks

    tokens   0 ─────────────── match ─────────── computed ───────── allocated
    blocks   [ shared, indexed ][ published ][ filling ][ empty … ]
                                             ▲
                                             copied first if the match ended inside it, or if a fork shares it

`lookup` changes nothing, so a waiting request may be looked up as often as its order is asked for. Blocks are
published when they are full; a request that ends also publishes its last, partial block where the index
keeps such. A block that is held more than once is never written. A sequence whose computation failed ends with
`discard` instead of `release`: its K/V may be wrong, so nothing of it is published and what is findable
already is taken out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.block_table import BlockTable
from ostinato.cache.eviction import LRU, EvictionPolicy
from ostinato.cache.expiry import erase_expired, readable_part
from ostinato.cache.hashing import HashChain
from ostinato.cache.identity import identities
from ostinato.cache.index import IndexMatch, PrefixIndex
from ostinato.cache.integrity import check_index, check_references
from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.pool import BlockPool, PoolStats
from ostinato.cache.prefix_match import PrefixMatch
from ostinato.cache.retention import Retention
from ostinato.cache.storage import KVStorage
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.types import DEFAULT_TENANT, MissReason, NamespaceKey, TenantId, TokenArray
from ostinato.clock import Clock, SystemClock
from ostinato.errors import CacheIntegrityError


class KVCacheManager:
    """Facade over pool, index and storage; all bookkeeping, no arithmetic.

    Not thread-safe: the thread that owns the model owns the cache.

    Args:
        spec: shape of a block.
        storage: the bytes behind the blocks.
        index: where prefixes are found; None switches prefix caching off.
        policy: which cached block goes next; LRU if None.
        clock: of promises.
        tiers: what lies below the device; None if nothing does.
    """

    def __init__(
        self,
        spec: KVCacheSpec,
        storage: KVStorage,
        index: PrefixIndex | None,
        policy: EvictionPolicy[KVCacheBlock] | None = None,
        tiers: TierHierarchy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.spec = spec
        self.storage = storage
        self.tiers = tiers
        self._index = index
        policy = LRU() if policy is None else policy
        self._names_blocks = tiers is not None or policy.wants_ghost_keys
        self._clock: Clock = SystemClock() if clock is None else clock
        self._pool = BlockPool(
            storage.num_blocks, policy, self._evict, self._is_leaf, self._clock, storage.wipe_block
        )
        if tiers is not None:
            tiers.attach(self._pool)

    @property
    def block_size(self) -> int:
        return self.spec.block_size

    @property
    def num_blocks(self) -> int:
        """Capacity of the pool."""
        return self._pool.num_blocks

    @property
    def num_available_blocks(self) -> int:
        """Free and cached blocks: what `allocate` and `extend` can still hand out."""
        return self._pool.num_available

    @property
    def min_cacheable_tokens(self) -> int | None:
        """Shortest prefix that can be reused; None if prefix caching is off."""
        if self._index is None:
            return None
        return 1 if self._index.keeps_partial_blocks else self.block_size

    def stats(self) -> PoolStats:
        return self._pool.stats()

    def lookup(
        self,
        namespace: NamespaceKey,
        token_ids: TokenArray,
        hashes: HashChain | None = None,
        tenant: TenantId = DEFAULT_TENANT,
    ) -> PrefixMatch:
        """Find the longest prefix of a prompt that is on the device. Changes nothing.

        Args:
            namespace: scope of the prompt.
            token_ids: the prompt.
            hashes: memo of a sequence that is looked up more than once; a new one if there is none.
            tenant: whose prompt it is; `namespace` is one of theirs.
        """
        if hashes is None:
            hashes = HashChain(namespace)
        if self._index is None:
            found = IndexMatch((), None, 0, MissReason.DISABLED)
        else:
            found = self._index.match(namespace, token_ids[:-1], hashes)
            found = readable_part(found, self._pool)
        num_tokens = len(found.blocks) * self.block_size + found.partial_tokens
        return PrefixMatch(namespace, len(token_ids), found, num_tokens, hashes, tenant)

    def blocks_needed(self, match: PrefixMatch, num_tokens: int) -> int:
        """Available blocks that `allocate` would take, cached ones it adopts included."""
        held = list(match.found.blocks)
        if match.found.partial is not None:
            held.append(match.found.partial)
        adopted = sum(map(_is_idle, held))
        return adopted + self.spec.blocks_for(num_tokens) - len(match.found.blocks)

    def allocate(
        self, match: PrefixMatch, num_tokens: int, *, keep_free: int = 0
    ) -> BlockTable | None:
        """Adopt a match and reserve blocks for `num_tokens` tokens in all.

        A match that ends inside a block is copied into the first reserved block. If all but that copy fits
        and nobody holds the block, the sequence takes it over instead: it would be evicted right after.

        Args:
            match: fresh from `lookup`.
            num_tokens: slots wanted, more than `match.num_tokens`.
            keep_free: available blocks that must be left.

        Returns:
            The table, or None if there is not enough room; then nothing has changed.
        """
        lacking = self.blocks_needed(match, num_tokens) + keep_free - self._pool.num_available
        found = match.found
        if (
            lacking == 1
            and keep_free == 0
            and found.partial is not None
            and _is_idle(found.partial)
        ):
            return self._allocate_in_place(match, found.partial, num_tokens)
        if lacking > 0:
            return None
        self._pool.reuse(found.blocks)
        source = [found.partial] if found.partial is not None else []
        self._pool.reuse(source)  # what is to be copied must outlive the allocation
        fresh = self._pool.allocate(
            self.spec.blocks_for(num_tokens) - len(found.blocks), len(found.blocks), match.tenant
        )
        for block in source:
            self.storage.copy_block(block.block_id, fresh[0].block_id)
        self._pool.release(source)
        if self.tiers is not None and found.blocks:
            self.tiers.reused(found.blocks[-1])
        return self._table(match, [*found.blocks, *fresh])

    def _allocate_in_place(
        self, match: PrefixMatch, source: KVCacheBlock, num_tokens: int
    ) -> BlockTable:
        """`allocate` that makes `source`, in which the match ends, the sequence's own."""
        kept = [*match.found.blocks, source]
        self._pool.reuse(kept)
        fresh = self._pool.allocate(
            self.spec.blocks_for(num_tokens) - len(kept), len(kept), match.tenant
        )
        # That took every block there was, so what followed `source` is evicted and it is a leaf.
        self._evict(source)
        self._pool.forgotten(source)
        return self._table(match, [*kept, *fresh])

    def _table(self, match: PrefixMatch, blocks: Sequence[KVCacheBlock]) -> BlockTable:
        """Over `blocks`, of which those that `match` found in full are indexed."""
        return BlockTable(
            match.namespace, blocks, len(match.found.blocks), match.hashes, match.tenant
        )

    def extend(self, table: BlockTable, num_computed: int, num_tokens: int) -> bool:
        """Make slots ``[num_computed, num_tokens)`` exist and writable.

        A block among them that a fork shares is replaced by a copy.

        Returns:
            False if there is not enough room; then nothing has changed.
        """
        first = num_computed // self.block_size
        shared = [at for at in range(first, table.num_blocks) if table.blocks[at].ref_cnt > 1]
        missing = max(self.spec.blocks_for(num_tokens) - table.num_blocks, 0)
        if len(shared) + missing > self._pool.num_available:
            return False
        copies = self._pool.allocate(len(shared), first, table.tenant)
        for at, copy in zip(shared, copies, strict=True):
            original = table.blocks[at]
            self.storage.copy_block(original.block_id, copy.block_id)
            table.replace(at, copy)
            self._pool.release([original])
        table.append(self._pool.allocate(missing, table.num_blocks, table.tenant))
        return True

    def publish(self, table: BlockTable, token_ids: TokenArray, num_computed: int) -> None:
        """Let others find the full blocks among the first `num_computed` tokens.

        Where an equal block is cached already, the table takes that one and frees its own, so `block_ids`
        must be read anew.

        Args:
            table: of the sequence.
            token_ids: at least `num_computed` tokens of the sequence.
            num_computed: tokens whose K/V is complete and will not change.
        """
        self._insert(table, token_ids, num_computed // self.block_size)

    def fork(self, table: BlockTable) -> BlockTable:
        """A second sequence over the same blocks; whoever writes first copies the block it writes."""
        self._pool.touch(table.blocks)
        return BlockTable(
            table.namespace,
            table.blocks,
            table.num_indexed,
            table.hashes.fork(table.num_indexed),
            table.tenant,
        )

    def keep_promises(
        self, blocks: Sequence[KVCacheBlock], promises: Sequence[Retention | None]
    ) -> None:
        """Findable `blocks`, all held, came from a tier, where these were promised to them: a hit there."""
        for block, promise in zip(blocks, promises, strict=False):
            if promise is not None:
                self._pool.retain([block], promise.refreshed(self._clock.time()))

    def release(self, table: BlockTable, token_ids: TokenArray, num_computed: int) -> None:
        """End a sequence: publish all that was computed, then give the blocks back, tail first."""
        full = num_computed // self.block_size
        self._insert(table, token_ids, full)
        if num_computed % self.block_size and table.num_indexed == full:
            self._publish_tail(table, token_ids[:num_computed], full)
        blocks, table.blocks = table.blocks, []
        self._pool.release(blocks)

    def discard(self, table: BlockTable) -> None:
        """End a sequence whose K/V cannot be trusted: publish nothing and make it unfindable, tail first.

        What another sequence holds, or what another's block follows, stays: those who computed on it fail
        for themselves if it is wrong, and then it goes with the last of them.
        """
        blocks, table.blocks = table.blocks, []
        for block in reversed(blocks[: table.num_indexed]):
            if self._index is None or block.ref_cnt > 1 or not self._index.is_leaf(block):
                break
            self._erase(block)
            self._pool.forgotten(block)
        self._pool.release(blocks)

    def retain(
        self, table: BlockTable, num_tokens: int, ttl: float, expire: Literal["soft", "hard"]
    ) -> Retention:
        """Promise that the findable blocks among the first `num_tokens` tokens stay; a hit refreshes it.

        Args:
            table: of the sequence, after it was published.
            num_tokens: length of the prefix.
            ttl: seconds from now, and from each hit.
            expire: what becomes of them after that: ordinary, or unreadable and then erased.
        """
        retention = Retention.starting(self._clock.time(), ttl, hard=expire == "hard")
        blocks = table.blocks[: self.spec.blocks_for(num_tokens)]
        self._pool.retain([block for block in blocks if block.entry is not None], retention)
        if self.tiers is not None:
            named = [block for block in blocks if block.identity is not None]
            self.tiers.promised(named)
        return retention

    def expire(self) -> int:
        """Erase what may not be read any more, with all that follows it; returns how many blocks that was.

        For every step of the engine: costs nothing while no hard promise is due. What somebody still
        holds is unreadable too, and erased by a later call.
        """
        if self.tiers is not None:
            self.tiers.expire()
        return 0 if self._index is None else erase_expired(self._pool, self._index, self._erase)

    def reset(self) -> bool:
        """Forget everything that is cached. False, and nothing done, while any block is held."""
        stats = self._pool.stats()
        if stats.in_use or stats.in_transfer:
            return False
        for _ in range(stats.cached):
            self._pool.evict_one()
        return True

    def check_integrity(self, tables: Iterable[BlockTable] | None = None) -> None:
        """Verify pool and index, and that they agree. O(blocks).

        Args:
            tables: all live tables, to check the reference counts against; None skips that part.

        Raises:
            CacheIntegrityError: naming what is wrong.
        """
        self._pool.check_integrity()
        if self.tiers is not None:
            self.tiers.check_integrity(self._pool.blocks)
        check_index(self._pool, self._index)
        if tables is not None:
            check_references(self._pool, tables)

    def _insert(self, table: BlockTable, token_ids: TokenArray, full: int) -> None:
        start = table.num_indexed
        if self._index is None or full <= start:
            return
        tokens = token_ids[: full * self.block_size]
        offered = table.blocks[start:full]
        result = self._index.insert(
            table.namespace, tokens, table.blocks[:full], start, table.hashes
        )
        fresh = result.blocks
        if fresh != offered:  # compared far faster than walked through
            self._adopt(table, result.blocks, start)
            fresh = [block for block, own in zip(fresh, offered, strict=False) if block is own]
        table.num_indexed = start + len(result.blocks)
        depth = table.num_indexed - len(fresh)
        if self._names_blocks:
            names = identities(table.hashes, tokens, self.block_size, table.tenant, depth)
            for block, name in zip(fresh, names, strict=False):
                block.identity = name
        self._store(table, fresh, depth)
        if self.tiers is not None:
            self.tiers.published(fresh)
        for block in result.displaced:
            self._pool.forgotten(block)

    def _store(self, table: BlockTable, fresh: Sequence[KVCacheBlock], depth: int) -> None:
        """`fresh`, blocks of `table` from position `depth` on, have become findable."""
        self._pool.stored(fresh, table.blocks[depth - 1] if depth else None)

    def _adopt(self, table: BlockTable, indexed: Sequence[KVCacheBlock], start: int) -> None:
        """From block `start` on, hold the blocks that are indexed in the place of equal ones of its own."""
        for at, block in enumerate(indexed, start):
            own = table.blocks[at]
            if block is not own:
                self._pool.touch([block])
                table.replace(at, block)
                self._pool.release([own])

    def _publish_tail(self, table: BlockTable, token_ids: TokenArray, full: int) -> None:
        """Publish the partial last block, unless a fork that may still write to it shares it."""
        index = self._index
        if index is None or not index.keeps_partial_blocks or table.blocks[full].ref_cnt > 1:
            return
        result = index.insert(table.namespace, token_ids, table.blocks[: full + 1], full)
        if result.blocks[0] is table.blocks[full]:
            self._store(table, result.blocks, full)
        for block in result.displaced:
            self._pool.forgotten(block)

    def _evict(self, block: KVCacheBlock) -> KVCacheBlock | None:
        """`_forget` a block whose content is sound: a lower tier may keep it."""
        if self.tiers is not None:
            self.tiers.evicting(block)
        return self._forget(block)

    def _erase(self, block: KVCacheBlock) -> KVCacheBlock | None:
        """`_forget` a block whose content must not be used again, in no tier."""
        if self.tiers is not None and block.identity is not None:
            self.tiers.erase([block.identity.key])
        return self._forget(block)

    def _forget(self, block: KVCacheBlock) -> KVCacheBlock | None:
        """Make `block` unfindable; returns the block before it if nothing follows that one any more."""
        if self._index is None:
            raise CacheIntegrityError(f"{block!r} is cached but there is no index")
        before = self._index.evict(block)
        if self.tiers is not None:
            self.tiers.forgotten(block)
        block.identity = None
        return before

    def _is_leaf(self, block: KVCacheBlock) -> bool:
        return self._index is not None and self._index.is_leaf(block)


def _is_idle(block: KVCacheBlock) -> bool:
    """Nobody holds it and no copy of it is under way."""
    return block.ref_cnt == 0 and block.transfers == 0
