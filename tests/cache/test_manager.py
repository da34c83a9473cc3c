"""Guards the facade: exact reuse, copy-on-write, isolation in pairs, and that failure changes nothing."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from ostinato.cache.build import build_manager
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.namespace import CacheNamespace, NamespaceFactory
from ostinato.cache.storage import HostKVStorage
from ostinato.cache.types import MissReason, NamespaceKey, TenantId, Tier, TokenArray
from ostinato.errors import CacheIntegrityError

IndexName = Literal["radix", "block_hash", "none"]
A, B, C, D, E, F, G = range(7)
SPACE = NamespaceKey(b"n" * 32)


def make(index: IndexName = "radix", num_blocks: int = 8, block_size: int = 4) -> KVCacheManager:
    spec = KVCacheSpec(1, 1, 1, KVDtype.FP32, block_size)
    return build_manager(spec, HostKVStorage(spec, num_blocks), index)


def ids(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def serve(manager: KVCacheManager, tokens: TokenArray, space: NamespaceKey = SPACE) -> int:
    """Run a prompt through its whole life; returns how many tokens were reused."""
    match = manager.lookup(space, tokens)
    table = manager.allocate(match, len(tokens))
    assert table is not None
    manager.publish(table, tokens, len(tokens))
    manager.release(table, tokens, len(tokens))
    manager.check_integrity([])
    return match.num_tokens


@pytest.mark.parametrize(("index", "reused"), [("radix", 5), ("block_hash", 4), ("none", 0)])
def test_reuse_is_exact_to_the_token_with_radix_and_to_the_block_with_hashes(
    index: IndexName, reused: int
) -> None:
    manager = make(index)
    assert serve(manager, ids(A, B, C, D, E, F)) == 0
    assert serve(manager, ids(A, B, C, D, E, G)) == reused


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
def test_a_repeated_prompt_reuses_all_but_its_last_token(length: int) -> None:
    manager, prompt = make(), ids(*range(length))
    serve(manager, prompt)
    assert serve(manager, prompt) == length - 1


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_tenants_with_equal_text_never_share_and_the_same_tenant_does(index: IndexName) -> None:
    manager, prompt = make(index), ids(*range(9))
    factory = NamespaceFactory(b"s" * 32)
    keys = {
        name: factory.key(CacheNamespace(TenantId(name), b"m" * 32, b"k" * 32))
        for name in ("acme", "umbrella")
    }
    assert serve(manager, prompt, keys["acme"]) == 0
    assert serve(manager, prompt, keys["umbrella"]) == 0
    assert serve(manager, prompt, keys["acme"]) == 8
    assert serve(manager, prompt, keys["umbrella"]) == 8


def test_a_match_inside_a_block_is_copied_and_the_source_is_left_alone() -> None:
    manager = make()
    storage = manager.storage
    assert isinstance(storage, HostKVStorage)
    table = manager.allocate(manager.lookup(SPACE, ids(A, B, C)), 3)
    assert table is not None
    source = table.block_ids[0]
    storage.array[source, ..., :3, 0] = [10, 11, 12]
    manager.release(table, ids(A, B, C), 3)

    copy = manager.allocate(manager.lookup(SPACE, ids(A, B, G, G)), 4)
    assert copy is not None
    assert copy.block_ids[0] != source
    assert storage.array[copy.block_ids[0], 0, 0, 0, :2, 0].tolist() == [10, 11]
    storage.array[copy.block_ids[0]] = -1
    assert storage.array[source, 0, 0, 0, :3, 0].tolist() == [10, 11, 12]


def test_the_report_says_where_tokens_came_from_and_why_reuse_ended() -> None:
    manager = make()
    cold = manager.lookup(SPACE, ids(A, B, C)).report()
    assert (cold.cached_tokens, cold.computed_tokens) == (0, 3)
    assert cold.miss_reason is MissReason.COLD
    serve(manager, ids(A, B, C, D, E))
    report = manager.lookup(SPACE, ids(A, B, C, D, E, F)).report()
    assert report.read_by_tier == {Tier.DEVICE: 5}
    assert (report.cached_tokens, report.copied_tokens, report.computed_tokens) == (5, 1, 1)


def test_with_caching_off_nothing_is_kept_and_the_report_says_so() -> None:
    manager = make("none")
    serve(manager, ids(*range(8)))
    assert manager.lookup(SPACE, ids(*range(8))).report().miss_reason is MissReason.DISABLED
    assert manager.stats().free == manager.num_blocks
    assert manager.min_cacheable_tokens is None


@pytest.mark.parametrize(("index", "tokens"), [("radix", 1), ("block_hash", 4)])
def test_the_minimum_cacheable_prefix_is_known(index: IndexName, tokens: int) -> None:
    assert make(index).min_cacheable_tokens == tokens


def test_a_refused_allocation_changes_nothing() -> None:
    manager = make(num_blocks=3)
    serve(manager, ids(*range(8)))
    before = manager.stats()
    match = manager.lookup(SPACE, ids(*range(9)))
    assert manager.allocate(match, 13) is None
    assert manager.allocate(match, 12, keep_free=1) is None
    assert manager.stats() == before
    assert manager.allocate(match, 12) is not None


def test_adopted_blocks_are_not_counted_twice_as_room() -> None:
    """Locking a match shrinks what can be evicted; forgetting that overcommits the pool."""
    manager = make(num_blocks=2)
    serve(manager, ids(*range(8)))
    match = manager.lookup(SPACE, ids(*range(12)))
    assert match.num_tokens == 8
    assert manager.allocate(match, 12) is None


def test_a_fork_shares_everything_and_copies_only_the_block_it_writes() -> None:
    manager = make()
    table = manager.allocate(manager.lookup(SPACE, ids(*range(6))), 6)
    assert table is not None
    manager.publish(table, ids(*range(6)), 6)
    twin = manager.fork(table)
    assert manager.stats().in_use == 2
    assert manager.extend(twin, 6, 7)
    assert twin.block_ids[0] == table.block_ids[0]
    assert twin.block_ids[1] != table.block_ids[1]
    assert manager.extend(table, 6, 7)
    assert manager.stats().in_use == 3
    for each in (table, twin):
        manager.release(each, ids(*range(7)), 6)
    manager.check_integrity([])


def test_two_requests_that_computed_the_same_prompt_end_up_on_one_copy() -> None:
    manager, prompt = make(), ids(*range(8))
    first = manager.allocate(manager.lookup(SPACE, prompt), 8)
    second = manager.allocate(manager.lookup(SPACE, prompt), 8)
    assert first is not None
    assert second is not None
    manager.publish(first, prompt, 8)
    manager.publish(second, prompt, 8)
    assert first.block_ids.tolist() == second.block_ids.tolist()
    assert manager.stats().in_use == 2
    manager.check_integrity([first, second])


def test_an_aborted_prefill_leaves_only_what_it_computed() -> None:
    manager, prompt = make(), ids(*range(12))
    table = manager.allocate(manager.lookup(SPACE, prompt), 12)
    assert table is not None
    manager.publish(table, prompt, 6)
    manager.release(table, prompt, 6)
    assert manager.lookup(SPACE, prompt).num_tokens == 6
    assert manager.stats().cached == 2
    manager.check_integrity([])


def test_reset_forgets_everything_but_not_under_a_running_request() -> None:
    manager, prompt = make(), ids(*range(8))
    serve(manager, prompt)
    table = manager.allocate(manager.lookup(SPACE, prompt), 8)
    assert table is not None
    assert not manager.reset()
    manager.release(table, prompt, 8)
    assert manager.reset()
    assert manager.lookup(SPACE, prompt).num_tokens == 0
    assert manager.stats().free == manager.num_blocks


def test_integrity_check_compares_reference_counts_with_the_tables() -> None:
    manager = make()
    table = manager.allocate(manager.lookup(SPACE, ids(A)), 1)
    assert table is not None
    manager.check_integrity([table])
    with pytest.raises(CacheIntegrityError, match="held by 0 tables"):
        manager.check_integrity([])


@pytest.mark.parametrize("length", [30, 31, 32])
def test_a_prompt_that_fills_the_pool_reuses_all_but_its_last_token_too(length: int) -> None:
    manager, prompt = make(num_blocks=8), ids(*range(length))
    for reused in (0, length - 1, length - 1):
        assert serve(manager, prompt) == reused


def test_without_room_for_a_copy_the_block_itself_is_taken_over_with_what_followed_it_gone() -> (
    None
):
    manager = make(num_blocks=3)
    serve(manager, ids(*range(12)))
    assert serve(manager, ids(*range(6), *[9] * 6)) == 6
    assert manager.lookup(SPACE, ids(*range(12))).num_tokens == 6
    assert manager.lookup(SPACE, ids(*range(6), *[9] * 7)).num_tokens == 12


def test_a_block_that_must_stay_is_not_taken_over() -> None:
    manager = make(num_blocks=3)
    prompt = ids(*range(7))
    serve(manager, prompt)
    match = manager.lookup(SPACE, ids(*range(6), *[9] * 6))
    assert manager.allocate(match, 12, keep_free=1) is None
    holder = manager.allocate(manager.lookup(SPACE, ids(*range(5))), 5)
    assert holder is not None
    assert manager.allocate(manager.lookup(SPACE, ids(*range(6), *[9] * 6)), 12) is None
    manager.check_integrity([holder])
    assert manager.lookup(SPACE, prompt).num_tokens >= 4


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_what_is_discarded_cannot_be_found_and_is_free(index: IndexName) -> None:
    manager, prompt = make(index), ids(*range(10))
    table = manager.allocate(manager.lookup(SPACE, prompt), 10)
    assert table is not None
    manager.publish(table, prompt, 9)
    manager.discard(table)
    manager.check_integrity([])
    assert manager.lookup(SPACE, prompt).report().miss_reason is MissReason.COLD
    assert manager.stats().free == manager.num_blocks
    assert manager.stats().evicted_total == 0


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_discarding_leaves_what_others_hold_and_what_anothers_block_follows(
    index: IndexName,
) -> None:
    manager, prompt = make(index), ids(*range(12))
    table = manager.allocate(manager.lookup(SPACE, prompt), 12)
    assert table is not None
    manager.publish(table, prompt, 12)
    branch = ids(*range(4), 8, 8, 8, 8)  # follows the first block and is cached
    follower = manager.allocate(manager.lookup(SPACE, branch), 8)
    assert follower is not None
    manager.release(follower, branch, 8)
    other = manager.allocate(manager.lookup(SPACE, ids(*range(9))), 9)  # holds the first two
    assert other is not None
    manager.discard(table)
    manager.check_integrity([other])
    assert manager.lookup(SPACE, ids(*range(13))).num_tokens == 8
    manager.discard(other)
    manager.check_integrity([])
    assert manager.lookup(SPACE, ids(*range(13))).num_tokens == 4


def test_without_an_index_discarding_just_frees() -> None:
    manager = make("none")
    table = manager.allocate(manager.lookup(SPACE, ids(A, B)), 2)
    assert table is not None
    manager.discard(table)
    assert manager.stats().free == manager.num_blocks
