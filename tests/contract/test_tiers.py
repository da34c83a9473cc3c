"""One contract for RAM, disk and remote. What differs between them is tested in tests/cache/tiers.

Guards against: bytes of another block, half-written blocks that can be read, a tail without its head, eviction
of what is being read or is about to be written behind, a bound that is exceeded, expired blocks served.
"""

from __future__ import annotations

import pytest

from ostinato.cache.eviction import POLICIES
from ostinato.cache.retention import Retention, TenantBudgets
from ostinato.cache.tiers.base import KVTier, TierAnswer
from ostinato.cache.types import TenantId
from ostinato.errors import ConfigError
from tests.cache.tiers.tools import (
    TierMaker,
    chain,
    content,
    keys_of,
    load,
    promised,
    store,
    stored,
)


def test_what_was_never_stored_is_a_miss(tier: KVTier) -> None:
    assert not any(stored(tier, keys_of(chain("x", 3))))
    assert tier.stats().num_blocks == 0


def test_what_was_stored_comes_back_byte_for_byte(tier: KVTier) -> None:
    blocks = chain("x", 5)
    assert store(tier, blocks)
    keys = keys_of(blocks)
    assert tier.lookup_prefix(keys) == (5, TierAnswer.HIT)
    assert load(tier, keys) == [content(key) for key in keys]
    assert load(tier, keys[3:1:-1]) == [content(key) for key in keys[3:1:-1]]
    stats = tier.stats()
    assert (stats.stored_blocks, stats.loaded_blocks, stats.num_blocks) == (5, 7, 5)
    assert stats.failures == {}


def test_a_block_that_is_being_written_is_pending_and_cannot_be_loaded(tier: KVTier) -> None:
    blocks = chain("x", 2)
    job = tier.prepare_store(blocks)
    assert job is not None
    key = blocks[0].identity.key
    tier.write(job, 0, memoryview(content(key)))
    assert tier.lookup(key) is TierAnswer.PENDING
    with pytest.raises(KeyError):
        tier.prepare_load([key])
    assert tier.stats().num_writing == 2
    tier.complete_store(job, 1)
    assert stored(tier, keys_of(blocks)) == [True, False]


def test_what_was_given_up_leaves_nothing_behind(tier: KVTier) -> None:
    blocks = chain("x", 8)
    job = tier.prepare_store(blocks)
    assert job is not None
    for at in (0, 1, 3):
        tier.write(job, at, memoryview(content(job.blocks[at].identity.key)))
    tier.complete_store(job, 2)
    assert stored(tier, keys_of(blocks)) == [True, True] + [False] * 6
    assert tier.stats().used_bytes == tier.stats().capacity_bytes // 4
    assert store(tier, blocks)
    assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_store_that_failed_as_a_whole_is_only_a_miss(maker: TierMaker, policy: str) -> None:
    tier = maker.make(policy=policy)
    blocks = chain("x", 3)
    for failing in (blocks, blocks[:1]):
        job = tier.prepare_store(failing)
        assert job is not None
        tier.complete_store(job, 0)
    assert not any(stored(tier, keys_of(blocks)))
    assert store(tier, blocks)
    assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]


def test_what_is_stored_already_is_not_stored_again(tier: KVTier) -> None:
    blocks = chain("x", 4)
    store(tier, blocks[:2])
    job = tier.prepare_store(blocks)
    assert job is not None
    assert list(job.blocks) == blocks[2:]
    second = tier.prepare_store(blocks)
    assert second is not None
    assert second.blocks == ()
    tier.complete_store(job, 0)


def test_a_store_of_which_nothing_arrived_is_nothing_to_a_policy_that_learns(
    maker: TierMaker,
) -> None:
    tier = maker.make(policy="reuse_rate")
    blocks = chain("x", 3)
    job = tier.prepare_store(blocks)
    assert job is not None
    tier.complete_store(job, 0)
    assert not any(stored(tier, keys_of(blocks)))
    assert store(tier, blocks)


def test_a_block_without_its_head_is_refused(tier: KVTier) -> None:
    blocks = chain("x", 4)
    job = tier.prepare_store(blocks[2:])
    assert job is not None
    assert job.blocks == ()
    assert tier.stats().used_bytes == 0


def test_blocks_may_be_stored_behind_one_that_is_still_being_written(tier: KVTier) -> None:
    blocks = chain("x", 4)
    first = tier.prepare_store(blocks[:2])
    second = tier.prepare_store(blocks[2:])
    assert first is not None
    assert second is not None
    for job in (second, first):
        for at, block in enumerate(job.blocks):
            tier.write(job, at, memoryview(content(block.identity.key)))
        tier.complete_store(job, 2)
    assert all(stored(tier, keys_of(blocks)))


def test_when_a_head_is_given_up_what_was_stored_behind_it_goes_too(tier: KVTier) -> None:
    blocks = chain("x", 4)
    first = tier.prepare_store(blocks[:2])
    assert first is not None
    store(tier, blocks[2:])
    tier.complete_store(first, 1)
    assert not any(stored(tier, keys_of(blocks)[1:]))
    assert tier.stats().num_blocks in (0, 1)


def test_tails_are_evicted_before_heads_and_the_oldest_prompt_first(maker: TierMaker) -> None:
    tier = maker.make(6)
    old, new = chain("old", 3), chain("new", 3)
    store(tier, old)
    store(tier, new)
    store(tier, chain("other", 2))
    assert stored(tier, keys_of(old)) == [True, False, False]
    assert all(stored(tier, keys_of(new)))
    assert tier.stats().evicted_blocks == 2


def test_a_prompt_that_was_used_again_outlives_one_that_was_not(maker: TierMaker) -> None:
    tier = maker.make(6)
    old, new = chain("old", 3), chain("new", 3)
    store(tier, old)
    store(tier, new)
    tier.touch(keys_of(old))
    store(tier, chain("other", 3))
    assert all(stored(tier, keys_of(old)))
    assert not any(stored(tier, keys_of(new)))


def test_a_store_never_evicts_what_it_stands_behind_or_holds(maker: TierMaker) -> None:
    tier = maker.make(4)
    blocks = chain("x", 5)
    store(tier, blocks[:2])
    other = chain("y", 2)
    store(tier, other)
    tier.touch(keys_of(other))  # so that x is what would go
    assert store(tier, blocks[:4])
    assert all(stored(tier, keys_of(blocks[:4])))
    assert not store(tier, blocks)
    assert all(stored(tier, keys_of(blocks[:4])))


def test_without_room_for_everything_nothing_changes(maker: TierMaker) -> None:
    tier = maker.make(4)
    kept, gone = chain("kept", 2), chain("gone", 2)
    store(tier, kept)
    store(tier, gone)
    job = tier.prepare_load(keys_of(kept))
    assert tier.prepare_store(chain("big", 3)) is None
    assert all(stored(tier, keys_of(gone)))
    assert tier.stats().refused_blocks == 3
    assert tier.stats().evicted_blocks == 0
    tier.complete_load(job, 0)
    assert store(tier, chain("big", 3))


def test_what_is_being_read_is_not_evicted(maker: TierMaker) -> None:
    tier = maker.make(4)
    read, idle = chain("read", 2), chain("idle", 2)
    store(tier, read)
    store(tier, idle)
    job = tier.prepare_load(keys_of(read)[1:])
    assert tier.stats().num_pinned == 1
    assert store(tier, chain("new", 2))
    assert all(stored(tier, keys_of(read)))
    assert not any(stored(tier, keys_of(idle)))
    tier.complete_load(job, 0)
    assert tier.stats().num_pinned == 0


def test_a_load_of_what_is_not_there_pins_nothing(maker: TierMaker) -> None:
    tier = maker.make(2)
    blocks = chain("x", 2)
    store(tier, blocks)
    with pytest.raises(KeyError):
        tier.prepare_load([*keys_of(blocks), keys_of(chain("y", 1))[0]])
    assert store(tier, chain("new", 2))


def test_erased_blocks_take_what_stands_behind_them_along(tier: KVTier) -> None:
    blocks = chain("x", 4)
    store(tier, blocks)
    twin = chain("twin", 2, after=blocks[1].identity.key)
    store(tier, twin)
    tier.erase([blocks[1].identity.key])
    assert stored(tier, keys_of(blocks)) == [True, False, False, False]
    assert not any(stored(tier, keys_of(twin)))
    assert tier.stats().erased_blocks == 5
    assert store(tier, blocks)
    assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]


def test_a_reader_keeps_what_is_erased_under_it_and_nobody_else_finds_it(maker: TierMaker) -> None:
    tier = maker.make(2)
    blocks = chain("x", 2)
    store(tier, blocks)
    job = tier.prepare_load(keys_of(blocks))
    tier.erase(keys_of(blocks)[:1])
    assert not any(stored(tier, keys_of(blocks)))
    assert tier.prepare_store(chain("y", 1)) is None  # its room is still in use
    out = bytearray(tier.block_bytes)
    assert tier.read(job, 1, memoryview(out))
    assert bytes(out) == content(blocks[1].identity.key)
    tier.complete_load(job, 2)
    assert tier.stats().used_bytes == 0
    assert store(tier, chain("y", 2))


def test_what_is_erased_while_it_is_written_never_becomes_readable(tier: KVTier) -> None:
    blocks = chain("x", 2)
    job = tier.prepare_store(blocks)
    assert job is not None
    tier.erase(keys_of(blocks)[1:])
    for at, block in enumerate(job.blocks):
        tier.write(job, at, memoryview(content(block.identity.key)))
    tier.complete_store(job, 2)
    assert stored(tier, keys_of(blocks)) == [True, False]


def test_after_a_hard_deadline_a_block_is_unreadable_and_its_room_free(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 2)
    now = maker.clock.time()
    store(tier, promised(blocks, Retention(now + 60, hard=True, ttl=60)))
    assert tier.retention(keys_of(blocks)[0]) == Retention(now + 60, hard=True, ttl=60)
    maker.clock.advance(59)
    assert all(stored(tier, keys_of(blocks)))
    maker.clock.advance(1)
    assert tier.lookup(keys_of(blocks)[0]) is not TierAnswer.HIT
    tier.expire()
    assert tier.stats().used_bytes == 0
    assert tier.stats().expired_blocks == 2
    assert not any(stored(tier, keys_of(blocks)))


def test_a_soft_deadline_takes_nothing_away(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 2)
    store(tier, promised(blocks, Retention(maker.clock.time() + 60, hard=False, ttl=60)))
    maker.clock.advance(3600)
    assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]


def test_a_renewed_promise_moves_the_deadline(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 2)
    hard = Retention(maker.clock.time() + 60, hard=True, ttl=60)
    store(tier, promised(blocks, hard))
    maker.clock.advance(50)
    tier.retain(keys_of(blocks), hard.refreshed(maker.clock.time()))
    maker.clock.advance(50)
    assert all(stored(tier, keys_of(blocks)))
    tier.retain(keys_of(blocks), None)
    maker.clock.advance(5000)
    assert all(stored(tier, keys_of(blocks)))


def test_what_was_promised_outlives_ordinary_traffic_and_no_longer(maker: TierMaker) -> None:
    tier = maker.make(6)
    kept = chain("kept", 3)
    store(tier, promised(kept, Retention(maker.clock.time() + 300, hard=False, ttl=300)))
    for number in range(10):
        store(tier, chain(f"p{number}", 3))
    assert all(stored(tier, keys_of(kept)))
    maker.clock.advance(300)
    for number in range(10):
        store(tier, chain(f"q{number}", 3))
    assert not any(stored(tier, keys_of(kept)))


def test_promises_never_wedge_a_tier(maker: TierMaker) -> None:
    tier = maker.make(4)
    for number in range(5):
        promise = Retention(maker.clock.time() + 300 + number, hard=False, ttl=300)
        assert store(tier, promised(chain(f"p{number}", 3), promise))


def test_a_tenant_over_its_budget_gives_way_first(maker: TierMaker) -> None:
    budgets = TenantBudgets({TenantId("a"): 2 * maker.slot_bytes})
    tier = maker.make(6, budgets)
    modest = chain("modest", 2, tenant="b")
    store(tier, modest)
    for number in range(4):
        store(tier, chain(f"greedy {number}", 2, tenant="a"))
    assert all(stored(tier, keys_of(modest)))


def test_bytes_are_counted_by_tenant_and_never_exceed_the_bound(maker: TierMaker) -> None:
    tier = maker.make(5)
    for at in range(12):
        store(tier, chain(f"p{at}", 1 + at % 3, tenant="ab"[at % 2]))
        stats = tier.stats()
        assert stats.used_bytes <= stats.capacity_bytes
        assert sum(stats.tenant_bytes.values()) == stats.used_bytes
        assert set(stats.tenant_bytes) <= {TenantId("a"), TenantId("b")}
    tier.check_integrity()


def test_a_tier_without_room_for_one_block_is_refused(maker: TierMaker) -> None:
    with pytest.raises(ConfigError, match="one K/V block takes"):
        maker.make(0)


def test_a_tier_may_be_closed_twice(tier: KVTier) -> None:
    tier.close()
    tier.close()
