"""BlockHashIndex: a dictionary from the chain hash of a full block to the block.

Lookups cost one hash and one dictionary probe a block, there is nothing to restructure, and the same keys
name blocks in other processes and tiers. The price: only whole blocks are reused.

A hash is never believed by itself. An entry also keeps its tokens and its parent's entry, and a match is a
chain of entries in which each one's parent is the entry matched before it. So two different prefixes whose
hashes collide cannot be served each other's K/V; the later one simply stays unindexed.

Why reuse ended is known as far as hashes tell: a miss in a namespace that holds anything is NOT_CACHED,
whether its text parts from a cached one there (DIVERGED in the radix index) or was never stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.hashing import Digest, HashChain, sha256
from ostinato.cache.index.base import IndexMatch, InsertResult, PrefixIndex, SizeInfo
from ostinato.cache.types import BlockHash, MissReason, NamespaceKey, TokenArray
from ostinato.errors import CacheIntegrityError


class _Entry:
    """One indexed block. `block_hash` names the whole prefix that ends in it."""

    __slots__ = ("block", "block_hash", "namespace", "num_children", "parent", "tokens")

    def __init__(
        self,
        block: KVCacheBlock,
        block_hash: BlockHash,
        namespace: NamespaceKey,
        parent: _Entry | None,
        tokens: bytes,
    ) -> None:
        self.block = block
        self.block_hash = block_hash
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens
        self.num_children = 0

    def holds(self, namespace: NamespaceKey, parent: _Entry | None, tokens: bytes) -> bool:
        """Whether this entry really is that block of that prefix."""
        return self.parent is parent and self.tokens == tokens and self.namespace == namespace


class BlockHashIndex(PrefixIndex):
    """Full blocks by chain hash.

    Args:
        block_size: tokens a block.
        digest: hash function; tests pass a weak one to force collisions.
    """

    keeps_partial_blocks = False

    def __init__(self, block_size: int, digest: Digest = sha256) -> None:
        self.block_size = block_size
        self._digest = digest
        self._entries: dict[BlockHash, _Entry] = {}
        self._per_namespace: Counter[NamespaceKey] = Counter()

    def match(
        self, namespace: NamespaceKey, token_ids: TokenArray, hashes: HashChain | None = None
    ) -> IndexMatch:
        if len(token_ids) < self.block_size:
            reason = MissReason.BELOW_BLOCK if len(token_ids) else MissReason.NONE
            return IndexMatch((), None, 0, reason)
        if not self._per_namespace[namespace]:
            return IndexMatch((), None, 0, MissReason.COLD)
        blocks: list[KVCacheBlock] = []
        parent: _Entry | None = None
        chain = (hashes or HashChain(namespace)).hashes(token_ids, self.block_size, self._digest)
        for block_hash, tokens in zip(chain, self._split(token_ids), strict=True):
            entry = self._entries.get(block_hash)
            if entry is None or not entry.holds(namespace, parent, tokens):
                return IndexMatch(blocks, None, 0, MissReason.NOT_CACHED)
            blocks.append(entry.block)
            parent = entry
        rest = len(token_ids) % self.block_size
        return IndexMatch(blocks, None, 0, MissReason.BELOW_BLOCK if rest else MissReason.NONE)

    def insert(
        self,
        namespace: NamespaceKey,
        token_ids: TokenArray,
        blocks: Sequence[KVCacheBlock],
        start: int,
        hashes: HashChain | None = None,
    ) -> InsertResult:
        self._check_offer(token_ids, blocks)
        parent = self._entry_of(blocks[start - 1]) if start else None
        chain = hashes or HashChain(namespace)
        new_hashes = chain.hashes(token_ids, self.block_size, self._digest, start)
        new_tokens = self._split(token_ids[start * self.block_size :])
        indexed: list[KVCacheBlock] = []
        for block, block_hash, tokens in zip(blocks[start:], new_hashes, new_tokens, strict=True):
            entry = self._entries.get(block_hash)
            if entry is None:
                entry = self._add(block, block_hash, namespace, parent, tokens)
            elif not entry.holds(namespace, parent, tokens):
                break  # a collision: what follows stays private
            indexed.append(entry.block)
            parent = entry
        return InsertResult(indexed)

    def is_leaf(self, block: KVCacheBlock) -> bool:
        return self._entry_of(block).num_children == 0

    def evict(self, block: KVCacheBlock) -> None:
        entry = self._entry_of(block)
        if entry.num_children:
            raise CacheIntegrityError(f"{block!r} is followed by {entry.num_children} blocks")
        del self._entries[entry.block_hash]
        self._per_namespace[entry.namespace] -= 1
        if not self._per_namespace[entry.namespace]:
            del self._per_namespace[entry.namespace]
        if entry.parent is not None:
            entry.parent.num_children -= 1
        block.entry = None

    def size_info(self) -> SizeInfo:
        count = len(self._entries)
        return SizeInfo(count, count * self.block_size, len(self._per_namespace))

    def chains(self) -> Iterator[tuple[NamespaceKey, TokenArray, Sequence[KVCacheBlock]]]:
        for leaf in self._entries.values():
            if leaf.num_children:
                continue
            path: list[_Entry] = []
            entry: _Entry | None = leaf
            while entry is not None:
                path.append(entry)
                entry = entry.parent
            path.reverse()
            tokens = np.frombuffer(b"".join(e.tokens for e in path), dtype=np.int32)
            yield leaf.namespace, tokens, [e.block for e in path]

    def check_integrity(self) -> None:
        if self._per_namespace != Counter(entry.namespace for entry in self._entries.values()):
            raise CacheIntegrityError("the entries of a namespace are miscounted")
        children: dict[int, int] = {}
        held: dict[int, int] = {}
        for block_hash, entry in self._entries.items():
            if entry.block.entry is not entry or entry.block_hash != block_hash:
                raise CacheIntegrityError(f"{entry.block!r} and its entry disagree")
            if entry.parent is None:
                continue
            if self._entries.get(entry.parent.block_hash) is not entry.parent:
                raise CacheIntegrityError(f"{entry.block!r} is cached without its predecessor")
            children[id(entry.parent)] = children.get(id(entry.parent), 0) + 1
            held[id(entry.parent)] = held.get(id(entry.parent), 0) + entry.block.ref_cnt
        for entry in self._entries.values():
            if entry.num_children != children.get(id(entry), 0):
                raise CacheIntegrityError(f"{entry.block!r} miscounts its successors")
            if entry.block.ref_cnt < held.get(id(entry), 0):
                raise CacheIntegrityError(f"{entry.block!r} is held less often than its successors")

    def _add(
        self,
        block: KVCacheBlock,
        block_hash: BlockHash,
        namespace: NamespaceKey,
        parent: _Entry | None,
        tokens: bytes,
    ) -> _Entry:
        entry = _Entry(block, block_hash, namespace, parent, tokens)
        self._entries[block_hash] = entry
        self._per_namespace[namespace] += 1
        block.entry = entry
        if parent is not None:
            parent.num_children += 1
        return entry

    def _split(self, token_ids: TokenArray) -> list[bytes]:
        """The bytes of each full block."""
        encoded = np.ascontiguousarray(token_ids, dtype=np.int32).tobytes()
        width = 4 * self.block_size
        return [encoded[end - width : end] for end in range(width, len(encoded) + 1, width)]

    @staticmethod
    def _entry_of(block: KVCacheBlock) -> _Entry:
        if not isinstance(block.entry, _Entry):
            raise CacheIntegrityError(f"{block!r} is not in this index")
        return block.entry
