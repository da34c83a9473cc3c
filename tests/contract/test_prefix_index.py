"""One contract for every prefix index. What differs between them is tested beside each one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.index import BlockHashIndex, PrefixIndex, RadixIndex
from ostinato.cache.types import BlockId, MissReason, NamespaceKey, TokenArray
from ostinato.errors import CacheIntegrityError

ONE, TWO = NamespaceKey(b"1" * 32), NamespaceKey(b"2" * 32)


@pytest.fixture(params=[RadixIndex, BlockHashIndex])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    make: Callable[[int], PrefixIndex] = request.param
    return make(4)


def ids(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def blocks(*block_ids: int) -> list[KVCacheBlock]:
    made = [KVCacheBlock(BlockId(i)) for i in block_ids]
    for block in made:
        block.ref_cnt = 1
    return made


def test_an_empty_index_matches_nothing(index: PrefixIndex) -> None:
    match = index.match(ONE, ids(1, 2, 3, 4, 5))
    assert (list(match.blocks), match.partial, match.partial_tokens) == ([], None, 0)
    assert match.reason is MissReason.COLD


def test_inserted_blocks_are_found_in_order(index: PrefixIndex) -> None:
    own = blocks(7, 3)
    assert list(index.insert(ONE, ids(*range(8)), own, 0).blocks) == own
    match = index.match(ONE, ids(*range(8)))
    assert list(match.blocks) == own
    assert match.reason is MissReason.NONE
    assert list(index.match(ONE, ids(*range(20))).blocks) == own
    index.check_integrity()


def test_a_query_that_differs_in_the_second_block_finds_the_first(index: PrefixIndex) -> None:
    own = blocks(0, 1)
    index.insert(ONE, ids(*range(8)), own, 0)
    match = index.match(ONE, ids(0, 1, 2, 3, 9, 9, 9, 9))
    assert list(match.blocks) == own[:1]
    assert match.partial is None


def test_equal_tokens_of_another_namespace_are_not_found(index: PrefixIndex) -> None:
    index.insert(ONE, ids(1, 2, 3, 4), blocks(0), 0)
    assert not index.match(TWO, ids(1, 2, 3, 4)).blocks
    assert index.match(ONE, ids(1, 2, 3, 4)).blocks


def test_inserting_an_equal_block_again_returns_the_one_that_is_there(index: PrefixIndex) -> None:
    first, second = blocks(0), blocks(1, 2)
    index.insert(ONE, ids(1, 2, 3, 4), first, 0)
    result = index.insert(ONE, ids(*range(1, 9)), second, 0)
    assert list(result.blocks) == [first[0], second[1]]
    assert second[0].entry is None
    assert index.size_info().num_blocks == 2


def test_insertion_continues_where_it_stopped(index: PrefixIndex) -> None:
    own = blocks(0, 1, 2)
    index.insert(ONE, ids(*range(4)), own[:1], 0)
    assert list(index.insert(ONE, ids(*range(12)), own, 1).blocks) == own[1:]
    assert list(index.match(ONE, ids(*range(12))).blocks) == own
    assert not index.insert(ONE, ids(*range(12)), own, 3).blocks


def test_eviction_takes_the_last_block_only(index: PrefixIndex) -> None:
    own = blocks(0, 1)
    index.insert(ONE, ids(*range(8)), own, 0)
    with pytest.raises(CacheIntegrityError, match="followed by"):
        index.evict(own[0])
    index.evict(own[1])
    assert own[1].entry is None
    assert list(index.match(ONE, ids(*range(8))).blocks) == own[:1]
    index.evict(own[0])
    assert index.size_info() == type(index.size_info())(0, 0, 0)
    with pytest.raises(CacheIntegrityError, match="not in this index"):
        index.evict(own[0])


def test_branches_are_kept_apart_and_evicted_apart(index: PrefixIndex) -> None:
    trunk, left, right = blocks(0, 1, 2)
    index.insert(ONE, ids(0, 0, 0, 0, 1, 1, 1, 1), [trunk, left], 0)
    trunk.ref_cnt = 2
    index.insert(ONE, ids(0, 0, 0, 0, 2, 2, 2, 2), [trunk, right], 1)
    index.check_integrity()
    index.evict(left)
    assert list(index.match(ONE, ids(0, 0, 0, 0, 2, 2, 2, 2)).blocks) == [trunk, right]
    with pytest.raises(CacheIntegrityError):
        index.evict(trunk)


def test_offers_whose_tokens_do_not_fit_the_blocks_are_refused(index: PrefixIndex) -> None:
    with pytest.raises(ValueError, match="do not fill"):
        index.insert(ONE, ids(1, 2, 3, 4), blocks(0, 1), 0)


def test_integrity_check_sees_a_successor_that_is_held_more_often(index: PrefixIndex) -> None:
    own = blocks(0, 1)
    index.insert(ONE, ids(*range(8)), own, 0)
    own[1].ref_cnt = 2
    with pytest.raises(CacheIntegrityError, match="held less often"):
        index.check_integrity()


def test_the_index_keeps_no_reference_to_the_callers_tokens(index: PrefixIndex) -> None:
    tokens = ids(1, 2, 3, 4)
    index.insert(ONE, tokens, blocks(0), 0)
    tokens[:] = 9
    assert index.match(ONE, ids(1, 2, 3, 4)).blocks
    assert not index.match(ONE, ids(9, 9, 9, 9)).blocks


def test_chains_name_every_leaf_with_all_its_tokens(index: PrefixIndex) -> None:
    own, other = blocks(0, 1), blocks(2)
    index.insert(ONE, ids(*range(8)), own, 0)
    index.insert(TWO, ids(5, 5, 5, 5), other, 0)
    found = {
        (namespace, tuple(tokens.tolist()), tuple(b.block_id for b in run))
        for namespace, tokens, run in index.chains()
    }
    assert found == {(ONE, tuple(range(8)), (0, 1)), (TWO, (5, 5, 5, 5), (2,))}


def test_a_block_is_a_leaf_until_another_follows(index: PrefixIndex) -> None:
    own = blocks(0, 1)
    index.insert(ONE, ids(*range(4)), own[:1], 0)
    assert index.is_leaf(own[0])
    index.insert(ONE, ids(*range(8)), own, 1)
    assert [index.is_leaf(block) for block in own] == [False, True]
    with pytest.raises(CacheIntegrityError, match="not in this index"):
        index.is_leaf(KVCacheBlock(BlockId(9)))


@given(
    stored=st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=12), max_size=5),
    query=st.lists(st.integers(0, 1), max_size=13),
)
def test_the_indexes_give_the_same_reason_where_both_can_know_it(
    stored: list[list[int]], query: list[int]
) -> None:
    radix, hashes = RadixIndex(4), BlockHashIndex(4)
    for number, tokens in enumerate(stored):
        whole = tokens[: len(tokens) // 4 * 4]
        for index in (radix, hashes):
            found = index.match(ONE, ids(*whole)).blocks
            new = blocks(*range(10 * number, 10 * number + len(whole) // 4 - len(found)))
            index.insert(ONE, ids(*whole), [*found, *new], len(found))
    exact, coarse = radix.match(ONE, ids(*query)), hashes.match(ONE, ids(*query))
    if coarse.reason is MissReason.BELOW_BLOCK:  # what is shorter than a block is the radix's alone
        assert len(query) % 4
    elif exact.reason is MissReason.DIVERGED:  # a hash does not say where text parts
        assert coarse.reason is MissReason.NOT_CACHED
    else:
        assert coarse.reason is exact.reason
