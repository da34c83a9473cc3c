"""Guards the block-hash index against believing a hash."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.index.block_hash import BlockHashIndex
from ostinato.cache.native_hashing import HASH_BYTES
from ostinato.cache.types import MissReason
from tests.contract.test_prefix_index import ONE, TWO, blocks, ids


def _everything_collides(message: bytes) -> bytes:
    return bytes(HASH_BYTES)


def test_a_collision_never_serves_the_blocks_of_another_prefix() -> None:
    index, own = BlockHashIndex(2, digest=_everything_collides), blocks(0)
    index.insert(ONE, ids(1, 2), own, 0)
    assert list(index.match(ONE, ids(1, 2)).blocks) == own
    assert not index.match(ONE, ids(3, 4)).blocks
    assert not index.match(TWO, ids(1, 2)).blocks, "another tenant's equal text collides too"


def test_a_chain_whose_hashes_collide_with_itself_is_not_followed_in_a_circle() -> None:
    index, own, other = BlockHashIndex(2, digest=_everything_collides), blocks(0, 1), blocks(2)
    assert list(index.insert(ONE, ids(1, 2, 1, 2), own, 0).blocks) == own
    own[0].ref_cnt = 2
    assert not index.insert(ONE, ids(1, 2, 3, 4), [own[0], *other], 1).blocks
    assert list(index.match(ONE, ids(1, 2, 1, 2, 1, 2)).blocks) == own
    assert list(index.match(ONE, ids(1, 2, 3, 4)).blocks) == own[:1]
    index.check_integrity()


def test_a_block_that_collides_stays_private_and_everything_else_works() -> None:
    index, first, second = BlockHashIndex(2, digest=_everything_collides), blocks(0), blocks(1)
    index.insert(ONE, ids(1, 2), first, 0)
    assert not index.insert(TWO, ids(1, 2), second, 0).blocks
    assert second[0].entry is None
    index.evict(first[0])
    assert list(index.insert(TWO, ids(1, 2), second, 0).blocks) == second


def test_what_is_shorter_than_a_block_cannot_be_found_and_says_so() -> None:
    index = BlockHashIndex(4)
    assert index.match(ONE, ids(1, 2, 3)).reason is MissReason.BELOW_BLOCK
    index.insert(ONE, ids(1, 2, 3, 4), blocks(0), 0)
    assert index.match(ONE, ids(1, 2, 3, 4, 5)).reason is MissReason.BELOW_BLOCK
    assert index.match(ONE, ids(1, 2, 3, 4, 5, 6, 7, 8)).reason is MissReason.NOT_CACHED


def test_a_namespace_is_cold_until_something_is_stored_and_again_when_all_is_evicted() -> None:
    index, own, other = BlockHashIndex(2), blocks(0, 1), blocks(2)
    assert index.match(ONE, ids(1, 2)).reason is MissReason.COLD
    index.insert(ONE, ids(1, 2, 3, 4), own, 0)
    index.insert(TWO, ids(1, 2), other, 0)
    assert index.match(ONE, ids(7, 8)).reason is MissReason.NOT_CACHED
    index.evict(own[1])
    index.evict(own[0])
    index.check_integrity()
    assert index.match(ONE, ids(7, 8)).reason is MissReason.COLD
    assert index.match(TWO, ids(7, 8)).reason is MissReason.NOT_CACHED


@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=10), max_size=8))
def test_with_hashes_that_often_collide_every_match_still_holds_the_tokens_asked_for(
    prompts: list[list[int]],
) -> None:
    def often(message: bytes) -> bytes:
        return bytes([hashlib.sha256(message).digest()[0] % 3]) * HASH_BYTES

    index = BlockHashIndex(2, digest=often)
    held: dict[KVCacheBlock, list[int]] = {}  # what each block holds, and all before it
    for number, prompt in enumerate(prompts):
        whole = prompt[: len(prompt) // 2 * 2]
        found = list(index.match(ONE, ids(*whole)).blocks)
        assert all(held[block] == whole[: 2 * (at + 1)] for at, block in enumerate(found))
        for block in found:
            block.ref_cnt += 1
        own = [*found, *blocks(*range(10 * number, 10 * number + len(whole) // 2 - len(found)))]
        for block in index.insert(ONE, ids(*whole), own, len(found)).blocks:
            held[block] = whole[: 2 * (own.index(block) + 1)]
        index.check_integrity()
