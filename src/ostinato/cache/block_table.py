"""BlockTable: the blocks of one sequence in token order, and the array of their ids that kernels read."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.hashing import HashChain
from ostinato.cache.types import DEFAULT_TENANT, NamespaceKey, TenantId


class BlockTable:
    """Made and changed only by the manager; the engine reads `block_ids`.

    Attributes:
        namespace: under which its blocks are published.
        tenant: whose budget they count against.
        blocks: in token order; each is held (one reference) by this table.
        num_indexed: this many leading blocks are the prefix index's own.
        hashes: memo of the sequence's block hashes.
    """

    __slots__ = ("_ids", "blocks", "hashes", "namespace", "num_indexed", "tenant")

    def __init__(
        self,
        namespace: NamespaceKey,
        blocks: Iterable[KVCacheBlock],
        num_indexed: int,
        hashes: HashChain,
        tenant: TenantId = DEFAULT_TENANT,
    ) -> None:
        self.namespace = namespace
        self.tenant = tenant
        self.blocks = list(blocks)
        self.num_indexed = num_indexed
        self.hashes = hashes
        self._ids = np.array([block.block_id for block in self.blocks], dtype=np.int32)

    @property
    def block_ids(self) -> npt.NDArray[np.int32]:
        """``(num_blocks,)``; a view that is stale after the manager's next change of this table."""
        return self._ids[: len(self.blocks)]

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    def append(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add blocks at the end."""
        for block in blocks:
            at = len(self.blocks)
            if at == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros(max(8, at), dtype=np.int32)))
            self._ids[at] = block.block_id
            self.blocks.append(block)

    def replace(self, at: int, block: KVCacheBlock) -> None:
        """Put another block in position `at`."""
        self.blocks[at] = block
        self._ids[at] = block.block_id
