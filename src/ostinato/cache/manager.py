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

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.block_table import BlockTable
from ostinato.cache.eviction import LRU
from ostinato.cache.hashing import HashChain
from ostinato.cache.index import BlockHashIndex, IndexMatch, PrefixIndex, RadixIndex
from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.pool import BlockPool, PoolStats
from ostinato.cache.report import CacheReport
from ostinato.cache.storage import KVStorage
from ostinato.cache.types import MissReason, NamespaceKey, Tier, TokenArray
from ostinato.errors import CacheIntegrityError


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What `lookup` found; valid until the next call that changes the cache.

    Attributes:
        namespace: that was asked.
        prompt_tokens: length of the query.
        found: the index's answer, at most `prompt_tokens` - 1 tokens long, since at least one token must be
            computed for there to be logits.
        num_tokens: tokens that can be reused.
        hashes: the sequence's memo of block hashes.
    """

    namespace: NamespaceKey
    prompt_tokens: int
    found: IndexMatch
    num_tokens: int
    hashes: HashChain

    def report(self) -> CacheReport:
        """The report of a request that is admitted with this match."""
        return CacheReport(
            prompt_tokens=self.prompt_tokens,
            read_by_tier={Tier.DEVICE: self.num_tokens} if self.num_tokens else {},
            copied_tokens=self.found.partial_tokens,
            miss_reason=self.found.reason,
        )


class KVCacheManager:
    """Facade over pool, index and storage; all bookkeeping, no arithmetic.

    Not thread-safe: the thread that owns the model owns the cache.

    Args:
        spec: shape of a block.
        storage: the bytes behind the blocks.
        index: where prefixes are found; None switches prefix caching off.
    """

    def __init__(self, spec: KVCacheSpec, storage: KVStorage, index: PrefixIndex | None) -> None:
        self.spec = spec
        self.storage = storage
        self._index = index
        self._pool = BlockPool(storage.num_blocks, LRU(), self._forget)

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
        self, namespace: NamespaceKey, token_ids: TokenArray, hashes: HashChain | None = None
    ) -> PrefixMatch:
        """Find the longest reusable prefix of a prompt. Changes nothing.

        Args:
            namespace: scope of the prompt.
            token_ids: the prompt.
            hashes: memo of a sequence that is looked up more than once; a new one if there is none.
        """
        if hashes is None:
            hashes = HashChain(namespace)
        if self._index is None:
            found = IndexMatch((), None, 0, MissReason.DISABLED)
        else:
            found = self._index.match(namespace, token_ids[:-1], hashes)
        num_tokens = len(found.blocks) * self.block_size + found.partial_tokens
        return PrefixMatch(namespace, len(token_ids), found, num_tokens, hashes)

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
        self._pool.touch(found.blocks)
        source = [found.partial] if found.partial is not None else []
        self._pool.touch(source)  # what is to be copied must outlive the allocation
        fresh = self._pool.allocate(self.spec.blocks_for(num_tokens) - len(found.blocks))
        for block in source:
            self.storage.copy_block(block.block_id, fresh[0].block_id)
        self._pool.release(source)
        return BlockTable(match.namespace, [*found.blocks, *fresh], len(found.blocks), match.hashes)

    def _allocate_in_place(
        self, match: PrefixMatch, source: KVCacheBlock, num_tokens: int
    ) -> BlockTable:
        """`allocate` that makes `source`, in which the match ends, the sequence's own."""
        kept = [*match.found.blocks, source]
        self._pool.touch(kept)
        fresh = self._pool.allocate(self.spec.blocks_for(num_tokens) - len(kept))
        # That took every block there was, so what followed `source` is evicted and it is a leaf.
        self._forget(source)
        return BlockTable(match.namespace, [*kept, *fresh], len(kept) - 1, match.hashes)

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
        for at, copy in zip(shared, self._pool.allocate(len(shared)), strict=True):
            original = table.blocks[at]
            self.storage.copy_block(original.block_id, copy.block_id)
            table.replace(at, copy)
            self._pool.release([original])
        table.append(self._pool.allocate(missing))
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
        return BlockTable(table.namespace, table.blocks, table.num_indexed, table.hashes.fork())

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
            self._index.evict(block)
        self._pool.release(blocks)

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
        findable = sum(block.entry is not None for block in self._pool.blocks)
        indexed = 0
        if self._index is not None:
            self._index.check_integrity()
            indexed = self._index.size_info().num_blocks
        if findable != indexed:
            raise CacheIntegrityError(f"{indexed} blocks are indexed, {findable} believe they are")
        if tables is None:
            return
        counts = [0] * self.num_blocks
        for table in tables:
            for block in table.blocks:
                counts[block.block_id] += 1
        for block, count in zip(self._pool.blocks, counts, strict=True):
            if block.ref_cnt != count:
                raise CacheIntegrityError(f"{block!r} is held by {count} tables")

    def _insert(self, table: BlockTable, token_ids: TokenArray, full: int) -> None:
        start = table.num_indexed
        if self._index is None or full <= start:
            return
        tokens = token_ids[: full * self.block_size]
        result = self._index.insert(
            table.namespace, tokens, table.blocks[:full], start, table.hashes
        )
        for at, indexed in enumerate(result.blocks, start):
            own = table.blocks[at]
            if indexed is not own:
                self._pool.touch([indexed])
                table.replace(at, indexed)
                self._pool.release([own])
        table.num_indexed = start + len(result.blocks)
        for block in result.displaced:
            self._pool.displaced(block)

    def _publish_tail(self, table: BlockTable, token_ids: TokenArray, full: int) -> None:
        """Publish the partial last block, unless a fork that may still write to it shares it."""
        index = self._index
        if index is None or not index.keeps_partial_blocks or table.blocks[full].ref_cnt > 1:
            return
        result = index.insert(table.namespace, token_ids, table.blocks[: full + 1], full)
        for block in result.displaced:
            self._pool.displaced(block)

    def _forget(self, block: KVCacheBlock) -> None:
        if self._index is None:
            raise CacheIntegrityError(f"{block!r} is cached but there is no index")
        self._index.evict(block)


def _is_idle(block: KVCacheBlock) -> bool:
    """Nobody holds it and no copy of it is under way."""
    return block.ref_cnt == 0 and block.transfers == 0


def build_manager(
    spec: KVCacheSpec,
    storage: KVStorage,
    prefix_index: Literal["radix", "block_hash", "none"],
) -> KVCacheManager:
    """A manager with the index of that name."""
    index: PrefixIndex | None = None
    if prefix_index == "radix":
        index = RadixIndex(spec.block_size)
    elif prefix_index == "block_hash":
        index = BlockHashIndex(spec.block_size)
    return KVCacheManager(spec, storage, index)
