"""HashRun: blocks that follow each other and were stored one after the other, under the name of the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import BlockHash, NamespaceKey, TokenArray


class HashRun:
    """Some full blocks of one prefix. Where another prefix parts from it, a run of its own begins.

    Attributes:
        name: chain hash of the first block: names the whole prefix up to there.
        namespace: of the prefix.
        parent: the run that this one continues; None if it begins a prompt.
        offset: this many blocks of the parent come before it.
        depth: blocks of the prefix before it.
        tokens: what the blocks hold.
        blocks: one per `block_size` tokens.
        branches: how many runs have this one as parent, by their offset.
    """

    __slots__ = (
        "blocks",
        "branches",
        "depth",
        "name",
        "namespace",
        "offset",
        "parent",
        "tokens",
    )

    def __init__(
        self, name: BlockHash, namespace: NamespaceKey, parent: HashRun | None, offset: int
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.parent = parent
        self.offset = offset
        self.depth: int = offset + (parent.depth if parent is not None else 0)
        self.tokens: TokenArray = np.empty(0, dtype=np.int32)
        self.blocks: list[KVCacheBlock] = []
        self.branches: Counter[int] = Counter()
        if parent is not None:
            parent.branches[offset] += 1

    def leave(self) -> KVCacheBlock | None:
        """The run is empty and gives its place after its parent up.

        Returns:
            The block before it if nothing follows that one any more, else None.
        """
        parent = self.parent
        if parent is None:
            return None
        parent.branches[self.offset] -= 1
        if parent.branches[self.offset]:
            return None
        del parent.branches[self.offset]
        return parent.blocks[-1] if self.offset == len(parent.blocks) else None

    def continues(self, namespace: NamespaceKey, parent: HashRun | None, offset: int) -> bool:
        """Whether it really comes after the first `offset` blocks of `parent`."""
        return self.parent is parent and self.offset == offset and self.namespace == namespace

    def shared(self, at: int, tokens: TokenArray, block_size: int) -> int:
        """How many whole blocks from its own block `at` on hold what `tokens` begin with."""
        return common_prefix(self.tokens[at * block_size :], tokens) // block_size

    def extend(self, tokens: TokenArray, blocks: Sequence[KVCacheBlock]) -> None:
        """Append blocks; `tokens` are copied."""
        self.tokens = np.concatenate((self.tokens, tokens))
        self.blocks.extend(blocks)
        for block in blocks:
            block.entry = self

    def drop_last(self, block_size: int) -> None:
        """Forget the last block."""
        self.blocks.pop().entry = None
        # A view, not a copy: evicting a long run block by block would copy it again and again.
        self.tokens = self.tokens[: len(self.blocks) * block_size]

    def is_last(self, block: KVCacheBlock) -> bool:
        """Whether no other block follows `block`, one of its own."""
        return self.blocks[-1] is block and not self.branches[len(self.blocks)]
