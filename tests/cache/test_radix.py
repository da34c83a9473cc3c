"""Guards what only the radix index promises: reuse to the token, partial tails, splits, few nodes."""

from __future__ import annotations

import numpy as np

from ostinato.cache.index.radix import RadixIndex
from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import MissReason
from tests.contract.test_prefix_index import ONE, blocks, ids


def test_a_match_ends_inside_a_block_at_the_first_different_token() -> None:
    index, own = RadixIndex(4), blocks(0, 1)
    index.insert(ONE, ids(*range(8)), own, 0)
    match = index.match(ONE, ids(0, 1, 2, 3, 4, 5, 9))
    assert (list(match.blocks), match.partial, match.partial_tokens) == (own[:1], own[1], 2)
    assert match.reason is MissReason.DIVERGED


def test_a_query_shorter_than_a_block_is_matched_too() -> None:
    index, own = RadixIndex(4), blocks(0)
    index.insert(ONE, ids(0, 1, 2, 3), own, 0)
    match = index.match(ONE, ids(0, 1))
    assert (match.partial, match.partial_tokens, match.reason) == (own[0], 2, MissReason.NONE)


def test_a_partial_tail_is_found_and_says_that_nothing_follows() -> None:
    index, own = RadixIndex(4), blocks(0, 1)
    index.insert(ONE, ids(*range(6)), own, 0)
    match = index.match(ONE, ids(*range(12)))
    assert (match.partial, match.partial_tokens) == (own[1], 2)
    assert match.reason is MissReason.NOT_CACHED


def test_among_many_siblings_the_one_that_shares_most_is_found() -> None:
    index = RadixIndex(4)
    rng = np.random.default_rng(0)
    stored = {tuple(rng.integers(0, 3, 4).tolist()) for _ in range(60)}
    for number, tokens in enumerate(sorted(stored)):
        index.insert(ONE, ids(*tokens), blocks(number), 0)
    for query in rng.integers(0, 3, (50, 4)):
        best = max(common_prefix(ids(*tokens), query.astype(np.int32)) for tokens in stored)
        match = index.match(ONE, query.astype(np.int32))
        assert len(match.blocks) * 4 + match.partial_tokens == best


def test_a_longer_block_replaces_the_partial_one_it_begins_with() -> None:
    index, short, long = RadixIndex(4), blocks(0, 1), blocks(0, 2)
    index.insert(ONE, ids(*range(6)), short, 0)
    result = index.insert(ONE, ids(*range(8)), [short[0], long[1]], 1)
    assert list(result.displaced) == [short[1]]
    assert short[1].entry is None
    assert list(index.match(ONE, ids(*range(8))).blocks) == [short[0], long[1]]
    index.check_integrity()


def test_a_partial_first_block_is_replaced_under_its_new_key() -> None:
    index, short, long = RadixIndex(4), blocks(0), blocks(1)
    index.insert(ONE, ids(1, 2), short, 0)
    assert list(index.insert(ONE, ids(1, 2, 3), long, 0).displaced) == short
    index.check_integrity()
    assert index.match(ONE, ids(1, 2, 3)).partial is long[0]


def test_a_partial_block_that_is_covered_already_is_not_kept() -> None:
    index, long, short = RadixIndex(4), blocks(0), blocks(1)
    index.insert(ONE, ids(1, 2, 3, 4), long, 0)
    assert list(index.insert(ONE, ids(1, 2), short, 0).blocks) == long
    assert short[0].entry is None
    assert index.size_info().num_blocks == 1


def test_a_run_is_one_node_until_prompts_part() -> None:
    index, own = RadixIndex(4), blocks(*range(100))
    for end in range(1, 101):
        index.insert(ONE, ids(*range(4 * end)), own[:end], end - 1)
    assert len(list(index._walk())) == 1
    branch = blocks(100)
    for block in own[:50]:
        block.ref_cnt = 2
    index.insert(ONE, ids(*range(200), 7, 7, 7, 7), [*own[:50], *branch], 50)
    assert len(list(index._walk())) == 3
    index.check_integrity()
    assert list(index.match(ONE, ids(*range(400))).blocks) == own


def test_the_miss_reason_tells_cold_diverged_and_ended_apart() -> None:
    index = RadixIndex(4)
    assert index.match(ONE, ids(1)).reason is MissReason.COLD
    index.insert(ONE, ids(*range(4)), blocks(0), 0)
    assert index.match(ONE, ids(9, 9)).reason is MissReason.NOT_CACHED
    assert index.match(ONE, ids(0, 1, 9)).reason is MissReason.DIVERGED
    assert index.match(ONE, ids(*range(6))).reason is MissReason.NOT_CACHED
    assert index.match(ONE, ids(*range(3))).reason is MissReason.NONE
