"""The contract of tiers whose blocks outlive the process: disk and remote.

Guards against: blocks or promises that a restart or a kill loses, an order of use that it forgets, a bound that
it exceeds, blocks of another format served.
"""

from __future__ import annotations

import shutil

import pytest

from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import KVTier
from tests.cache.tiers.tools import (
    TierMaker,
    chain,
    content,
    keys_of,
    load,
    promised,
    settle,
    store,
    stored,
)


def test_what_was_stored_is_there_after_a_restart(lasting: TierMaker) -> None:
    blocks = chain("x", 4)
    first = lasting.make()
    store(first, blocks)
    tail = chain("twin", 2, tenant="b", after=blocks[0].identity.key)
    store(first, tail)
    first.close()
    second = lasting.make()
    for group in (blocks, tail):
        assert all(stored(second, keys_of(group)))
        assert load(second, keys_of(group)) == [content(key) for key in keys_of(group)]
    assert second.stats().tenant_bytes == first.stats().tenant_bytes
    second.check_integrity()


def test_a_restart_remembers_what_was_used_last(lasting: TierMaker) -> None:
    first = lasting.make(4)
    old, new = chain("old", 2), chain("new", 2)
    store(first, old)
    store(first, new)
    first.touch(keys_of(old))
    first.close()
    second = lasting.make(4)
    store(second, chain("other", 2))
    used = keys_of(
        old if lasting.kind == "disk" else new
    )  # a remote server is not told of each use
    assert all(stored(second, used))


def test_a_full_tier_makes_room_after_a_restart(lasting: TierMaker) -> None:
    first = lasting.make(4)
    store(first, chain("old", 4))
    first.close()
    second = lasting.make(4)
    stored(second, keys_of(chain("old", 4)))  # what is on a server is found when it is asked for
    new = chain("new", 4)
    store(second, new)
    assert all(stored(second, keys_of(new)))
    second.check_integrity()


def test_a_promise_outlives_a_restart(lasting: TierMaker) -> None:
    first = lasting.make()
    blocks, others = chain("x", 2), chain("y", 2)
    until = lasting.clock.time() + 60
    store(first, promised(blocks, Retention(until, hard=True, ttl=60)))
    store(first, others)
    first.retain(keys_of(others), Retention(until, hard=True, ttl=60))
    first.close()
    lasting.clock.advance(59)
    second = lasting.make()
    assert all(stored(second, keys_of(blocks) + keys_of(others)))
    second.close()
    lasting.clock.advance(1)
    third = lasting.make()
    assert not any(stored(third, keys_of(blocks) + keys_of(others)))


def killed(lasting: TierMaker, tier: KVTier) -> KVTier:
    """What another process finds when this one dies without a word. (A kill frees the folder's lock.)"""
    settle(tier)
    if lasting.kind == "disk":
        after = lasting.folder.with_name(f"{lasting.folder.name}-after")
        shutil.copytree(lasting.folder, after)
        lasting.folder = after
    return lasting.make()


@pytest.mark.parametrize("hard", [False, True])
def test_a_promise_that_changed_while_its_block_was_written_outlives_the_process(
    lasting: TierMaker, hard: bool
) -> None:
    first = lasting.make()
    now = lasting.clock.time()
    blocks = promised(chain("x", 2), Retention(now + 60, hard, 60))
    later = Retention(now + 600, hard, 600)
    job = first.prepare_store(blocks)
    assert job is not None
    for at, block in enumerate(blocks):
        assert first.write(job, at, memoryview(content(block.identity.key)))
    first.retain(keys_of(blocks), later)
    first.complete_store(job, 2)
    second = killed(lasting, first)
    lasting.clock.advance(599)
    assert all(stored(second, keys_of(blocks)))
    assert [second.retention(key) for key in keys_of(blocks)] == [later, later]


@pytest.mark.parametrize("hard", [False, True])
def test_what_was_renewed_at_the_end_of_a_prefix_holds_for_all_of_it_in_the_next_process(
    lasting: TierMaker, hard: bool
) -> None:
    first = lasting.make()
    now = lasting.clock.time()
    hour, minutes = Retention(now + 3600, hard, 3600), Retention(now + 300, hard, 300)
    blocks = chain("x", 4)
    store(first, promised(blocks[:2], hour) + promised(blocks[2:], minutes))
    first.retain(keys_of(blocks)[-1:], Retention(now + 500, hard, 300))  # a hit after 200 s
    second = killed(lasting, first)
    assert all(stored(second, keys_of(blocks)))
    until = [promise and promise.until for promise in map(second.retention, keys_of(blocks))]
    assert until == [now + 3800, now + 3800, now + 500, now + 500]


def test_what_was_renewed_at_a_block_that_is_evicted_holds_for_the_one_before(
    maker: TierMaker,
) -> None:
    tier = maker.make(3)
    now = maker.clock.time()
    blocks = promised(chain("x", 3), Retention(now + 300, False, 300))
    store(tier, blocks)
    tier.retain(keys_of(blocks)[-1:], Retention(now + 500, False, 300))
    assert store(tier, chain("y", 1))
    assert stored(tier, keys_of(blocks)) == [True, True, False]
    renewed = tier.retention(keys_of(blocks)[1])
    assert renewed == Retention(now + 500, False, 300)
    if maker.persistent:
        again = killed(maker, tier)
        stored(again, keys_of(blocks))
        assert again.retention(keys_of(blocks)[1]) == renewed


def test_a_smaller_bound_after_a_restart_keeps_heads_and_the_youngest(lasting: TierMaker) -> None:
    first = lasting.make(8)
    old, new = chain("old", 4), chain("new", 4)
    store(first, old)
    store(first, new)
    first.close()
    second = lasting.make(5)
    if lasting.kind == "disk":  # what is on a server is found when it is asked for
        assert stored(second, keys_of(old)) == [True, False, False, False]
    assert all(stored(second, keys_of(new)))
    assert load(second, keys_of(new)) == [content(key) for key in keys_of(new)]
    assert second.stats().used_bytes <= second.stats().capacity_bytes


def test_other_formats_do_not_see_each_other(lasting: TierMaker) -> None:
    first = lasting.make()
    blocks = chain("x", 2)
    store(first, blocks)
    first.close()
    stranger = TierMaker(lasting.kind, lasting.folder, lasting.url)
    assert not any(stored(stranger.make(), keys_of(blocks)))
    stranger.close()
