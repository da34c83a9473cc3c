"""BlockHashIndex: a dictionary from the chain hash of a full block to the run of blocks that begins there.

    "… system …"  hash(b0) ─► [b0 b1 b2 b3 b4]
                                     └─ after b2:  hash(b7) ─► [b7 b8]        (another continuation)

A prompt is looked up by the hash of its first block; the run found there is compared token by token, and where
the prompt parts from it, the hash of the next block may name another run. So there is one entry, one probe and
one comparison for each fork and not for each block, nothing is ever restructured, and the names are those by
which blocks are known in other processes and tiers. The price: only whole blocks are reused.

A hash is never believed by itself: a run also knows what it continues, and its tokens are compared. So two
different prefixes whose hashes collide cannot be served each other's K/V; the later one simply stays unindexed.

Why reuse ended is known as far as hashes tell: a miss in a namespace that holds anything is NOT_CACHED,
whether its text parts from a cached one there (DIVERGED in the radix index) or was never stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.hashing import Digest, HashChain, sha256
from ostinato.cache.index.base import IndexMatch, InsertResult, PrefixIndex, SizeInfo
from ostinato.cache.index.hash_run import HashRun
from ostinato.cache.types import BlockHash, MissReason, NamespaceKey, TokenArray
from ostinato.errors import CacheIntegrityError


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
        self._runs: dict[BlockHash, HashRun] = {}
        self._blocks_of: Counter[NamespaceKey] = Counter()

    def match(
        self, namespace: NamespaceKey, token_ids: TokenArray, hashes: HashChain | None = None
    ) -> IndexMatch:
        full, rest = divmod(len(token_ids), self.block_size)
        if not full:
            reason = MissReason.BELOW_BLOCK if rest else MissReason.NONE
            return IndexMatch((), None, 0, reason)
        if namespace not in self._blocks_of:
            return IndexMatch((), None, 0, MissReason.COLD)
        chain = hashes or HashChain(namespace)
        blocks: list[KVCacheBlock] = []
        run: HashRun | None = None
        at = 0
        while len(blocks) < full:
            run = self._find(namespace, run, at, token_ids, len(blocks), chain)
            if run is None:
                return IndexMatch(blocks, None, 0, MissReason.NOT_CACHED)
            at = run.shared(0, token_ids[len(blocks) * self.block_size :], self.block_size)
            blocks.extend(run.blocks[:at])
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
        chain = hashes or HashChain(namespace)
        run = self._run_of(blocks[start - 1]) if start else None
        at = start - run.depth if run is not None else 0
        indexed: list[KVCacheBlock] = []
        while (done := start + len(indexed)) < len(blocks):
            rest = token_ids[done * self.block_size :]
            if run is not None and at < len(run.blocks):
                same = run.shared(at, rest, self.block_size)
                indexed += run.blocks[at : at + same]
                at += same
                if same:
                    continue
            child = self._find(namespace, run, at, token_ids, done, chain)
            if child is not None:
                run, at = child, 0
                continue
            if run is None or run.branches[at] or at < len(run.blocks):
                name = self._name(token_ids, done, chain)
                if name in self._runs:
                    break  # a collision: what follows stays private
                run = self._branch(name, namespace, run, at)
            run.extend(rest, blocks[done:])
            self._blocks_of[namespace] += len(blocks) - done
            indexed += blocks[done:]
        return InsertResult(indexed)

    def is_leaf(self, block: KVCacheBlock) -> bool:
        return self._run_of(block).is_last(block)

    def evict(self, block: KVCacheBlock) -> KVCacheBlock | None:
        run = self._run_of(block)
        if not run.is_last(block):
            raise CacheIntegrityError(f"{block!r} is followed by other blocks")
        run.drop_last(self.block_size)
        self._blocks_of[run.namespace] -= 1
        if not self._blocks_of[run.namespace]:
            del self._blocks_of[run.namespace]
        if not run.blocks:
            del self._runs[run.name]
            return run.leave()
        return run.blocks[-1] if not run.branches[len(run.blocks)] else None

    def size_info(self) -> SizeInfo:
        count = self._blocks_of.total()
        return SizeInfo(count, count * self.block_size, len(self._blocks_of))

    def chains(self) -> Iterator[tuple[NamespaceKey, TokenArray, Sequence[KVCacheBlock]]]:
        for run in self._runs.values():
            if run.branches[len(run.blocks)]:
                continue
            tokens, blocks = [run.tokens], run.blocks
            step = run
            while step.parent is not None:
                tokens.append(step.parent.tokens[: step.offset * self.block_size])
                blocks = step.parent.blocks[: step.offset] + blocks
                step = step.parent
            yield run.namespace, np.concatenate(tokens[::-1]), blocks

    def check_integrity(self) -> None:
        counted: Counter[NamespaceKey] = Counter()
        branches: Counter[tuple[BlockHash, int]] = Counter()
        held: Counter[tuple[BlockHash, int]] = Counter()
        for name, run in self._runs.items():
            counted[run.namespace] += len(run.blocks)
            if run.name != name or not run.blocks:
                raise CacheIntegrityError("a run is empty, or not where its name says")
            if len(run.tokens) != len(run.blocks) * self.block_size:
                raise CacheIntegrityError(f"{len(run.tokens)} tokens in {len(run.blocks)} blocks")
            if any(block.entry is not run for block in run.blocks):
                raise CacheIntegrityError("a block and its run disagree")
            if (parent := run.parent) is not None:
                known = self._runs.get(parent.name) is parent and run.offset <= len(parent.blocks)
                if not known or run.depth != parent.depth + run.offset:
                    raise CacheIntegrityError(
                        f"{run.blocks[0]!r} is cached without what it follows"
                    )
                branches[parent.name, run.offset] += 1
                held[parent.name, run.offset] += run.blocks[0].ref_cnt
        if counted != self._blocks_of:
            raise CacheIntegrityError("the blocks of a namespace are miscounted")
        for name, run in self._runs.items():
            for at, count in run.branches.items():
                if count != branches[name, at]:
                    raise CacheIntegrityError(f"a run miscounts what follows its block {at}")
            counts = [block.ref_cnt for block in run.blocks]
            after = [held[name, at] for at in range(1, len(counts) + 1)]
            if any(
                a < b + more for (a, b), more in zip(pairwise([*counts, 0]), after, strict=True)
            ):
                raise CacheIntegrityError(
                    f"a block is held less often than its successors: {counts}"
                )

    def _name(self, token_ids: TokenArray, at: int, chain: HashChain) -> BlockHash:
        """Chain hash of block `at`."""
        return next(chain.hashes(token_ids, self.block_size, self._digest, at))

    def _find(
        self,
        namespace: NamespaceKey,
        parent: HashRun | None,
        offset: int,
        token_ids: TokenArray,
        at: int,
        chain: HashChain,
    ) -> HashRun | None:
        """The run after the first `offset` blocks of `parent` that begins with block `at` of `token_ids`."""
        if parent is not None and not parent.branches[offset]:
            return None
        run = self._runs.get(self._name(token_ids, at, chain))
        if run is None or not run.continues(namespace, parent, offset):
            return None
        block = token_ids[at * self.block_size : (at + 1) * self.block_size]
        return run if run.shared(0, block, self.block_size) else None

    def _branch(
        self, name: BlockHash, namespace: NamespaceKey, parent: HashRun | None, offset: int
    ) -> HashRun:
        """A new, empty run after the first `offset` blocks of `parent`."""
        run = self._runs[name] = HashRun(name, namespace, parent, offset)
        return run

    @staticmethod
    def _run_of(block: KVCacheBlock) -> HashRun:
        if not isinstance(block.entry, HashRun):
            raise CacheIntegrityError(f"{block!r} is not in this index")
        return block.entry
