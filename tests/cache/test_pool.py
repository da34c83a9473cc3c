"""Guards the four states of a block, in particular those that requests and transfers share."""

from __future__ import annotations

import pytest

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.eviction import LRU
from ostinato.cache.pool import BlockPool, PoolStats
from ostinato.errors import CacheIntegrityError, ConfigError


def _pool(num_blocks: int) -> tuple[BlockPool, list[KVCacheBlock]]:
    """A pool whose index is a chain: the `entry` of a findable block is the block before it, or "root"."""
    forgotten: list[KVCacheBlock] = []

    def is_leaf(block: KVCacheBlock) -> bool:
        return all(other.entry is not block for other in pool.blocks)

    def forget(block: KVCacheBlock) -> KVCacheBlock | None:
        assert is_leaf(block)
        before, block.entry = block.entry, None
        forgotten.append(block)
        return before if isinstance(before, KVCacheBlock) and is_leaf(before) else None

    pool = BlockPool(num_blocks, LRU(), forget, is_leaf)
    return pool, forgotten


def _publish(pool: BlockPool, blocks: list[KVCacheBlock]) -> None:
    before: object = "root"
    for block in blocks:
        block.entry = before
        before = block
    pool.stored(blocks, None)


def _states(stats: PoolStats) -> tuple[int, int, int, int]:
    return stats.free, stats.in_use, stats.cached, stats.in_transfer


def test_a_released_block_is_free_unless_somebody_can_find_it() -> None:
    pool, _ = _pool(2)
    private, public = pool.allocate(2)
    _publish(pool, [public])
    pool.release([private, public])
    assert _states(pool.stats()) == (1, 0, 1, 0)
    pool.check_integrity()


def test_the_tail_of_a_request_is_evicted_before_its_head() -> None:
    pool, forgotten = _pool(3)
    head, middle, tail = blocks = pool.allocate(3)
    _publish(pool, blocks)
    pool.release(blocks)
    pool.allocate(2)
    assert forgotten == [tail, middle]
    assert head.entry is not None
    assert pool.stats().evicted_total == 2


def test_a_touched_block_survives_those_that_were_not() -> None:
    pool, forgotten = _pool(2)
    old, young = pool.allocate(2)
    _publish(pool, [young])
    _publish(pool, [old])
    pool.release([young])
    pool.release([old])
    pool.touch([young])
    pool.release([young])
    pool.allocate(1)
    assert forgotten == [old]


def test_more_than_there_is_cannot_be_allocated_and_nothing_changes() -> None:
    pool, forgotten = _pool(2)
    (held,) = pool.allocate(1)
    with pytest.raises(ValueError, match="2 blocks wanted, 1 available"):
        pool.allocate(2)
    assert _states(pool.stats()) == (1, 1, 0, 0)
    assert held.ref_cnt == 1
    assert not forgotten


def test_a_block_under_transfer_outlives_its_request_and_is_not_evicted() -> None:
    pool, _ = _pool(1)
    (block,) = pool.allocate(1)
    _publish(pool, [block])
    pool.begin_transfer([block])
    assert _states(pool.stats()) == (0, 1, 0, 0)
    pool.release([block])
    assert _states(pool.stats()) == (0, 0, 0, 1)
    assert pool.num_available == 0
    pool.check_integrity()
    pool.end_transfer([block])
    assert _states(pool.stats()) == (0, 0, 1, 0)
    pool.check_integrity()


def test_a_cached_block_may_be_transferred_and_taken_by_a_request_meanwhile() -> None:
    pool, _ = _pool(1)
    (block,) = pool.allocate(1)
    _publish(pool, [block])
    pool.release([block])
    pool.begin_transfer([block])
    pool.begin_transfer([block])
    assert _states(pool.stats()) == (0, 0, 0, 1)
    pool.touch([block])
    assert _states(pool.stats()) == (0, 1, 0, 0)
    pool.end_transfer([block])
    pool.end_transfer([block])
    pool.release([block])
    assert _states(pool.stats()) == (0, 0, 1, 0)
    pool.check_integrity()


def test_a_private_block_is_free_when_its_last_transfer_ends() -> None:
    pool, _ = _pool(1)
    (block,) = pool.allocate(1)
    pool.begin_transfer([block])
    pool.release([block])
    pool.end_transfer([block])
    assert _states(pool.stats()) == (1, 0, 0, 0)


def test_misuse_is_an_integrity_error() -> None:
    pool, _ = _pool(1)
    block = pool.blocks[0]
    with pytest.raises(CacheIntegrityError, match="nobody holds it"):
        pool.release([block])
    with pytest.raises(CacheIntegrityError, match="no transfer"):
        pool.end_transfer([block])
    with pytest.raises(CacheIntegrityError, match="cannot be transferred"):
        pool.begin_transfer([block])
    with pytest.raises(ConfigError, match="at least one block"):
        _pool(0)


def test_a_forgotten_block_that_is_still_held_stays_with_its_holder() -> None:
    pool, _ = _pool(1)
    (block,) = pool.allocate(1)
    _publish(pool, [block])
    with pytest.raises(CacheIntegrityError, match="not forgotten"):
        pool.forgotten(block)
    block.entry = None
    pool.forgotten(block)
    assert _states(pool.stats()) == (0, 1, 0, 0)


def test_integrity_check_sees_a_block_that_was_forgotten_behind_the_pools_back() -> None:
    pool, _ = _pool(1)
    (block,) = pool.allocate(1)
    _publish(pool, [block])
    pool.release([block])
    block.entry = None
    with pytest.raises(CacheIntegrityError, match="wrongly placed"):
        pool.check_integrity()


def test_a_prefix_under_transfer_stays_reachable_and_is_evicted_tail_first_afterwards() -> None:
    pool, forgotten = _pool(3)
    blocks = pool.allocate(3)
    _publish(pool, blocks)
    pool.release(blocks)
    pool.begin_transfer(blocks[:2])
    assert _states(pool.stats()) == (0, 0, 1, 2)
    pool.allocate(1)
    with pytest.raises(ValueError, match="1 blocks wanted, 0 available"):
        pool.allocate(1)
    pool.end_transfer(blocks[:2])
    pool.check_integrity()
    pool.allocate(2)
    assert forgotten == [blocks[2], blocks[1], blocks[0]]
