"""What must hold between pool, index and block tables; each part checks itself."""

from __future__ import annotations

from collections.abc import Iterable

from ostinato.cache.block_table import BlockTable
from ostinato.cache.index import PrefixIndex
from ostinato.cache.pool import BlockPool
from ostinato.errors import CacheIntegrityError


def check_index(pool: BlockPool, index: PrefixIndex | None) -> None:
    """Every block that believes that it can be found is in the index, and the index is sound. O(blocks).

    Raises:
        CacheIntegrityError: naming what is wrong.
    """
    findable = sum(block.entry is not None for block in pool.blocks)
    indexed = 0
    if index is not None:
        index.check_integrity()
        indexed = index.size_info().num_blocks
    if findable != indexed:
        raise CacheIntegrityError(f"{indexed} blocks are indexed, {findable} believe they are")


def check_references(pool: BlockPool, tables: Iterable[BlockTable]) -> None:
    """Every block is held by as many of `tables`, which are all there are, as it believes. O(blocks).

    Raises:
        CacheIntegrityError: naming the first block that is not.
    """
    counts = [0] * pool.num_blocks
    for table in tables:
        for block in table.blocks:
            counts[block.block_id] += 1
    for block, count in zip(pool.blocks, counts, strict=True):
        if block.ref_cnt != count:
            raise CacheIntegrityError(f"{block!r} is held by {count} tables")
