"""What a hard promise leaves behind when its deadline passes: what may be read still, and what has to go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.index import IndexMatch, PrefixIndex
from ostinato.cache.pool import BlockPool
from ostinato.cache.types import MissReason


def readable_part(found: IndexMatch, pool: BlockPool) -> IndexMatch:
    """`found` up to the first block whose hard promise has expired."""
    if not pool.has_hard_promises:
        return found
    for at, block in enumerate(found.blocks):
        if not pool.is_readable(block):
            return IndexMatch(found.blocks[:at], None, 0, MissReason.NOT_CACHED)
    if found.partial is not None and not pool.is_readable(found.partial):
        return IndexMatch(found.blocks, None, 0, MissReason.NOT_CACHED)
    return found


def erase_expired(
    pool: BlockPool,
    index: PrefixIndex,
    forget: Callable[[KVCacheBlock], KVCacheBlock | None],
) -> int:
    """Free the blocks that may not be read any more and all that follows them; returns how many.

    Their content is overwritten, of those that somebody still holds as soon as nobody does.

    Args:
        pool: of the blocks.
        index: where they are found.
        forget: makes one unfindable, as for `BlockPool`.
    """
    erased = 0
    for block in pool.take_expired():
        for victim in (*_behind(index, block), block):
            if victim.entry is not None:
                pool.erased(victim, forget(victim))
                erased += 1
    return erased


def _behind(index: PrefixIndex, block: KVCacheBlock) -> Sequence[KVCacheBlock]:
    """All that follows a cached block, last ones first. O(index) unless nothing does, which is the rule:
    what follows is rarely promised for longer, and due blocks come deepest first."""
    if block.entry is None or index.is_leaf(block):
        return ()
    depth = block.depth
    chains = [blocks for _, _, blocks in index.chains()]
    behind = {b for c in chains if len(c) > depth and c[depth] is block for b in c[depth + 1 :]}
    return sorted(behind, key=lambda follower: -follower.depth)
