"""RadixIndex: a tree over token runs whose nodes own whole blocks, matched to the token.

    root ── "You are a helpful …" [b0 b1 b2] ─┬─ "… user: hi …"  [b3 b4]
                                               └─ "… user: 你好 …" [b7]        (b7 only partly filled)

Every node is a run of blocks; runs are split where prompts part, at block boundaries, and a leaf grows in
place while its request decodes. A leaf's last block may be partial, so a finished request leaves all its
tokens behind. A match may end *inside* a block: two prompts that differ in the middle of a block share it up
to there, and the reader copies that part (copy-on-write). Tokens are compared, never hashed: there are no
collisions.

Children are kept in a dictionary by the tokens of their first block, and those keys also in a sorted list:
the child that shares the most tokens with a query is always a lexicographic neighbour of it, so a partial
match costs a binary search however many children there are. Keys are prefix-free: of two blocks of which one
begins with the other, only the longer is kept.

The tree is SGLang's RadixCache in idea; pages, locking and eviction differ: reference counts on the blocks
are the locks, and the pool's policy orders eviction (see `base.py` for the two rules).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.hashing import HashChain
from ostinato.cache.index.base import IndexMatch, InsertResult, PrefixIndex, SizeInfo
from ostinato.cache.index.radix_node import RadixNode
from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import MissReason, NamespaceKey, TokenArray
from ostinato.errors import CacheIntegrityError


class RadixIndex(PrefixIndex):
    """One tree a namespace.

    Args:
        block_size: tokens a block.
    """

    keeps_partial_blocks = True

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._roots: dict[NamespaceKey, RadixNode] = {}

    def match(
        self, namespace: NamespaceKey, token_ids: TokenArray, hashes: HashChain | None = None
    ) -> IndexMatch:
        node = self._roots.get(namespace)
        if node is None:
            return IndexMatch((), None, 0, MissReason.COLD if len(token_ids) else MissReason.NONE)
        blocks: list[KVCacheBlock] = []
        rest = token_ids
        while len(rest):
            child, shared = node.closest_child(rest, self.block_size)
            if child is None:
                parted = bool(node.children and blocks)
                reason = MissReason.DIVERGED if parted else MissReason.NOT_CACHED
                return IndexMatch(blocks, None, 0, reason)
            full, partial = divmod(shared, self.block_size)
            blocks.extend(child.blocks[:full])
            rest = rest[shared:]
            if partial or shared < len(child.tokens):
                source = child.blocks[full] if partial else None
                stored_on = shared < len(child.tokens)
                reason = MissReason.DIVERGED if stored_on else MissReason.NOT_CACHED
                return IndexMatch(blocks, source, partial, reason if len(rest) else MissReason.NONE)
            node = child
        return IndexMatch(blocks, None, 0, MissReason.NONE)

    def insert(
        self,
        namespace: NamespaceKey,
        token_ids: TokenArray,
        blocks: Sequence[KVCacheBlock],
        start: int,
        hashes: HashChain | None = None,
    ) -> InsertResult:
        self._check_offer(token_ids, blocks)
        new_blocks = list(blocks[start:])
        if not new_blocks:
            return InsertResult(())
        node = self._node_of(blocks[start - 1]) if start else self._root(namespace)
        rest = token_ids[start * self.block_size :]
        return self._insert_below(node, start - node.depth, rest, new_blocks)

    def _root(self, namespace: NamespaceKey) -> RadixNode:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode.root(namespace)
        return root

    def _insert_below(
        self, node: RadixNode, offset: int, rest: TokenArray, offered: list[KVCacheBlock]
    ) -> InsertResult:
        """Insert `offered`, which hold `rest`, behind the first `offset` blocks of `node`."""
        size = self.block_size
        kept: list[KVCacheBlock] = []
        while len(rest):
            if offset == len(node.blocks):
                child, shared = node.closest_child(rest, size)
                if child is None or self._part(shared, child.tokens, rest):
                    self._grow(node, rest, offered)
                    return InsertResult(kept + offered)
                node, offset = child, 0
            shared = common_prefix(node.tokens[offset * size :], rest)
            full = shared // size
            kept.extend(node.blocks[offset : offset + full])
            offset += full
            rest, offered = rest[full * size :], offered[full:]
            if not len(rest) or offset == len(node.blocks):
                continue
            stored = node.tokens[offset * size :]
            if self._part(shared - full * size, stored, rest):
                self._grow(node.split(offset, size), rest, offered)
                return InsertResult(kept + offered)
            if len(rest) <= len(stored):
                return InsertResult([*kept, node.blocks[offset]])
            displaced = self._replace_tail(node, rest, offered)
            return InsertResult(kept + offered, displaced)
        return InsertResult(kept)

    def _part(self, shared: int, stored: TokenArray, rest: TokenArray) -> bool:
        """Whether two runs that share `shared` tokens differ within their first block.

        They do not if one's first block merely begins with the other's.
        """
        return shared < min(self.block_size, len(stored), len(rest))

    def _grow(self, node: RadixNode, rest: TokenArray, offered: list[KVCacheBlock]) -> None:
        """Put a run behind the last block of `node`: in place if it is a leaf, else as a new child."""
        if node.children or not node.blocks:
            depth = node.depth + len(node.blocks)
            node.attach(RadixNode(rest.copy(), offered, depth), self.block_size)
        else:
            node.extend(rest, offered)

    def _replace_tail(
        self, leaf: RadixNode, rest: TokenArray, offered: list[KVCacheBlock]
    ) -> Sequence[KVCacheBlock]:
        """Put `offered` in the place of the leaf's partial last block, whose tokens they begin with."""
        old = leaf.blocks[-1]
        old.entry = None
        parent = leaf.parent
        assert parent is not None
        parent.detach(leaf, self.block_size)
        leaf.truncate(len(leaf.blocks) - 1, self.block_size)
        leaf.extend(rest, offered)
        parent.attach(leaf, self.block_size)
        return () if old is offered[0] else (old,)

    def is_leaf(self, block: KVCacheBlock) -> bool:
        node = self._node_of(block)
        return node.blocks[-1] is block and not node.children

    def evict(self, block: KVCacheBlock) -> KVCacheBlock | None:
        node = self._node_of(block)
        if node.blocks[-1] is not block or node.children:
            raise CacheIntegrityError(f"{block!r} is followed by other blocks")
        block.entry = None
        if len(node.blocks) > 1:
            node.truncate(len(node.blocks) - 1, self.block_size)
            return node.blocks[-1]
        parent = node.parent
        assert parent is not None
        parent.detach(node, self.block_size)
        if parent.children:
            return None
        if parent.namespace is not None:
            del self._roots[parent.namespace]
            return None
        return parent.blocks[-1]

    def size_info(self) -> SizeInfo:
        nodes = [node for _, node in self._walk()]
        return SizeInfo(
            num_blocks=sum(len(node.blocks) for node in nodes),
            num_tokens=sum(len(node.tokens) for node in nodes),
            num_namespaces=len(self._roots),
        )

    def chains(self) -> Iterator[tuple[NamespaceKey, TokenArray, Sequence[KVCacheBlock]]]:
        for namespace, node in self._walk():
            if node.children:
                continue
            path: list[RadixNode] = []
            step: RadixNode | None = node
            while step is not None:
                path.append(step)
                step = step.parent
            path.reverse()
            tokens = np.concatenate([part.tokens for part in path])
            yield namespace, tokens, [block for part in path for block in part.blocks]

    def check_integrity(self) -> None:
        for root in self._roots.values():
            if root.blocks or not root.children:
                raise CacheIntegrityError("a root has blocks of its own, or nothing below it")
        for _, node in self._walk():
            self._check_node(node)

    def _check_node(self, node: RadixNode) -> None:
        size = self.block_size
        full, rest = divmod(len(node.tokens), size)
        if not node.blocks or len(node.blocks) != full + bool(rest) or (rest and node.children):
            raise CacheIntegrityError(f"{len(node.tokens)} tokens in {len(node.blocks)} blocks")
        if any(block.entry is not node for block in node.blocks):
            raise CacheIntegrityError("a block and its node disagree")
        if node.keys != sorted(node.children):
            raise CacheIntegrityError("a node's keys are out of order")
        if any(b.startswith(a) for a, b in pairwise(node.keys)):
            raise CacheIntegrityError("of two children one begins with the other")
        for key, child in node.children.items():
            depth = node.depth + len(node.blocks)
            if child.parent is not node or child.key(size) != key or child.depth != depth:
                raise CacheIntegrityError("a child is linked wrongly")
        counts = [block.ref_cnt for block in node.blocks]
        counts.append(sum(child.blocks[0].ref_cnt for child in node.children.values()))
        if any(before < after for before, after in pairwise(counts)):
            raise CacheIntegrityError(f"a block is held less often than its successors: {counts}")

    def _walk(self) -> Iterator[tuple[NamespaceKey, RadixNode]]:
        """All nodes but the roots."""
        for namespace, root in self._roots.items():
            stack = list(root.children.values())
            while stack:
                node = stack.pop()
                yield namespace, node
                stack.extend(node.children.values())

    @staticmethod
    def _node_of(block: KVCacheBlock) -> RadixNode:
        if not isinstance(block.entry, RadixNode):
            raise CacheIntegrityError(f"{block!r} is not in this index")
        return block.entry
