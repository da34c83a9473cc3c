"""RadixNode: one run of blocks in the tree, and the few operations that keep its links right."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import NamespaceKey, TokenArray


class RadixNode:
    """A run of blocks. The root is a node without tokens.

    Attributes:
        tokens: what the blocks hold; only a leaf's last block may be short.
        blocks: one per `block_size` tokens.
        depth: blocks between the root and this node.
        parent: None for a root and for a node that has left the tree.
        children: by the bytes of the tokens of their first block.
        keys: the keys of `children`, sorted.
        namespace: of a root; None elsewhere.
    """

    __slots__ = ("blocks", "children", "depth", "keys", "namespace", "parent", "tokens")

    def __init__(self, tokens: TokenArray, blocks: Sequence[KVCacheBlock], depth: int = 0) -> None:
        self.tokens = tokens
        self.blocks = list(blocks)
        self.depth = depth
        self.parent: RadixNode | None = None
        self.children: dict[bytes, RadixNode] = {}
        self.keys: list[bytes] = []
        self.namespace: NamespaceKey | None = None
        for block in self.blocks:
            block.entry = self

    @classmethod
    def root(cls, namespace: NamespaceKey) -> RadixNode:
        """An empty tree."""
        node = cls(np.empty(0, dtype=np.int32), ())
        node.namespace = namespace
        return node

    def key(self, block_size: int) -> bytes:
        """Under which the parent keeps this node."""
        return self.tokens[:block_size].tobytes()

    def closest_child(self, rest: TokenArray, block_size: int) -> tuple[RadixNode | None, int]:
        """The child that shares the most leading tokens with `rest`, and how many it shares.

        None and 0 if no child shares even one.
        """
        key = rest[:block_size].tobytes()
        child = self.children.get(key)
        if child is not None:
            return child, common_prefix(child.tokens, rest)
        at = bisect_left(self.keys, key)
        head = rest[:block_size]
        best: RadixNode | None = None
        most = 0
        for neighbour in self.keys[max(at - 1, 0) : at + 1]:
            shared = common_prefix(np.frombuffer(neighbour, dtype=np.int32), head)
            if shared > most:
                best, most = self.children[neighbour], shared
        return best, most

    def attach(self, child: RadixNode, block_size: int) -> None:
        """Make `child` a child of this node."""
        key = child.key(block_size)
        self.children[key] = child
        insort(self.keys, key)
        child.parent = self

    def detach(self, child: RadixNode, block_size: int) -> None:
        """Take `child` out again."""
        key = child.key(block_size)
        del self.children[key]
        del self.keys[bisect_left(self.keys, key)]
        child.parent = None

    def extend(self, tokens: TokenArray, blocks: Sequence[KVCacheBlock]) -> None:
        """Append to a leaf whose blocks are all full."""
        self.tokens = np.concatenate((self.tokens, tokens))
        self.blocks.extend(blocks)
        for block in blocks:
            block.entry = self

    def truncate(self, num_blocks: int, block_size: int) -> None:
        """Drop the blocks from `num_blocks` on; the caller settles their entries."""
        del self.blocks[num_blocks:]
        # A view, not a copy: evicting a long run block by block would copy it again and again.
        self.tokens = self.tokens[: num_blocks * block_size]

    def split(self, num_blocks: int, block_size: int) -> RadixNode:
        """Cut the node after `num_blocks` blocks; returns the new upper part.

        This object stays the lower part, so that only the entries of the upper blocks change.
        """
        parent = self.parent
        assert parent is not None
        parent.detach(self, block_size)
        cut = num_blocks * block_size
        upper = RadixNode(self.tokens[:cut].copy(), self.blocks[:num_blocks], self.depth)
        self.tokens = self.tokens[cut:].copy()
        self.blocks = self.blocks[num_blocks:]
        self.depth += num_blocks
        upper.attach(self, block_size)
        parent.attach(upper, block_size)
        return upper
