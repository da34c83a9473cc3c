"""Guards the intrusive queue: a lost or doubled link would leak blocks or hand one out twice."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.block import FreeKVCacheBlockQueue, KVCacheBlock
from ostinato.cache.types import BlockId


def _blocks(count: int) -> list[KVCacheBlock]:
    return [KVCacheBlock(BlockId(i)) for i in range(count)]


def test_blocks_leave_in_the_order_they_came() -> None:
    queue, blocks = FreeKVCacheBlockQueue(), _blocks(3)
    for block in blocks:
        queue.append(block)
    assert [queue.popleft() for _ in range(3)] == blocks


def test_an_empty_queue_has_nothing_to_pop() -> None:
    with pytest.raises(IndexError, match="empty"):
        FreeKVCacheBlockQueue().popleft()


def test_a_block_cannot_be_queued_twice_or_removed_when_it_is_not_there() -> None:
    queue, (block,) = FreeKVCacheBlockQueue(), _blocks(1)
    with pytest.raises(ValueError, match="no queue"):
        queue.remove(block)
    queue.append(block)
    with pytest.raises(ValueError, match="already"):
        queue.append(block)


@given(st.lists(st.tuples(st.sampled_from(["append", "pop", "remove"]), st.integers(0, 7))))
def test_it_behaves_like_a_deque_with_removal(steps: list[tuple[str, int]]) -> None:
    queue, blocks, model = FreeKVCacheBlockQueue(), _blocks(8), deque[KVCacheBlock]()
    for action, at in steps:
        block = blocks[at]
        if action == "append" and block not in model:
            queue.append(block)
            model.append(block)
        elif action == "pop" and model:
            assert queue.popleft() is model.popleft()
        elif action == "remove" and block in model:
            queue.remove(block)
            model.remove(block)
        assert list(queue) == list(model)
        assert len(queue) == len(model)
