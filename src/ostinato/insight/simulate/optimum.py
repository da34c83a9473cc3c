"""Belady's optimum: the policy that knows the future, as the upper bound that real ones are held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.eviction.ranked import Rank, RankedPolicy
from ostinato.insight.simulate.trace import TraceRequest

NEVER = 2**31


class Belady(RankedPolicy[KVCacheBlock]):
    """Gives up the block whose next use is farthest away.

    Source: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966. Whoever uses
    a block uses all blocks before it, so what comes before is never needed later than what follows: the
    farthest next use is always a leaf's, and the rule that only leaves may go costs the optimum nothing.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self._next_use = [NEVER] * num_blocks

    def foresee(self, blocks: Sequence[KVCacheBlock], next_uses: Sequence[int]) -> None:
        """`blocks` are needed again by the requests of these numbers."""
        for block, next_use in zip(blocks, next_uses, strict=True):
            self._next_use[block.block_id] = next_use

    def rank(self, item: KVCacheBlock) -> Rank:
        return -self._next_use[item.block_id], -item.depth


def next_uses(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """For each block of each request the number of the next request that needs it, or `NEVER`."""
    if not requests:
        return []
    following = np.full(1 + max(int(request.blocks.max()) for request in requests), NEVER)
    uses: list[list[int]] = []
    for number in range(len(requests) - 1, -1, -1):
        blocks = requests[number].blocks
        uses.append(following[blocks].tolist())
        following[blocks] = number
    return uses[::-1]
