"""Guards promises: what they mean at each moment; none wedges the pool or outlives its deadline."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.eviction import LRU, Retaining
from ostinato.cache.index import BlockHashIndex, PrefixIndex, RadixIndex
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.retention import ExpiryQueue, Retention, TenantBudgets, parse_ttl
from ostinato.cache.storage import HostKVStorage, KVStorage, NullKVStorage
from ostinato.cache.types import NamespaceKey, TenantId
from ostinato.clock import ManualClock

SPACE = NamespaceKey(b"n" * 32)
SPEC = KVCacheSpec(1, 1, 1, KVDtype.FP32, 4)
TENANTS = [TenantId("ann"), TenantId("bob")]


def _manager(
    num_blocks: int,
    clock: ManualClock,
    index: type[PrefixIndex] = RadixIndex,
    budgets: TenantBudgets | None = None,
    storage: KVStorage | None = None,
) -> KVCacheManager:
    return KVCacheManager(
        SPEC,
        NullKVStorage(SPEC, num_blocks) if storage is None else storage,
        index(4),  # type: ignore[call-arg]
        Retaining(LRU(), clock, budgets),
        clock=clock,
    )


def _serve(
    manager: KVCacheManager,
    tokens: list[int],
    ttl: float | None = None,
    expire: str = "soft",
    tenant: TenantId = TENANTS[0],
) -> int | None:
    """One request from lookup to release; returns the tokens it reused, or None if it had no room."""
    prompt = np.array(tokens, dtype=np.int32)
    match = manager.lookup(SPACE, prompt, tenant=tenant)
    table = manager.allocate(match, len(tokens))
    if table is None:
        return None
    manager.publish(table, prompt, len(tokens))
    if ttl is not None:
        manager.retain(table, len(tokens), ttl, expire)  # type: ignore[arg-type]
    manager.release(table, prompt, len(tokens))
    return match.num_tokens


def _text(seed: int, length: int = 16) -> list[int]:
    return [seed * 1000 + at for at in range(length)]


def test_a_promised_prefix_outlives_traffic_that_would_have_pushed_it_out() -> None:
    clock = ManualClock()
    manager = _manager(8, clock)
    _serve(manager, _text(1), ttl=300)
    for other in range(2, 30):
        _serve(manager, _text(other))
    assert _serve(manager, _text(1)) == 15
    clock.advance(301)
    for other in range(30, 40):
        _serve(manager, _text(other))
    assert _serve(manager, _text(1)) == 0


def test_a_hit_refreshes_the_promise() -> None:
    clock = ManualClock()
    manager = _manager(8, clock)
    _serve(manager, [*_text(1), 7], ttl=300)
    for _ in range(3):
        clock.advance(200)
        assert _serve(manager, [*_text(1), 7]) == 16
    for other in range(2, 10):
        _serve(manager, _text(other, 12))
    assert _serve(manager, [*_text(1), 7]) == 16


@pytest.mark.parametrize("index", [RadixIndex, BlockHashIndex])
def test_a_hard_promise_is_unreadable_at_its_deadline_and_then_erased_with_what_follows(
    index: type[PrefixIndex],
) -> None:
    clock = ManualClock()
    manager = _manager(20, clock, index)
    _serve(manager, _text(1), ttl=300, expire="hard")
    _serve(manager, _text(1) + _text(2))  # an ordinary continuation of it
    clock.advance(299.5)  # the continuation hit it at the start, so it has as long again
    assert manager.lookup(SPACE, np.array([*_text(1), 1], dtype=np.int32)).num_tokens == 16
    clock.advance(0.5)
    assert manager.lookup(SPACE, np.array([*_text(1), 1], dtype=np.int32)).num_tokens == 0
    assert manager.stats().cached == 8
    assert manager.expire() == 8
    assert manager.stats().free == 20
    manager.check_integrity([])
    assert manager.expire() == 0


def test_what_a_request_still_holds_at_its_hard_deadline_is_erased_when_it_is_given_back() -> None:
    clock = ManualClock()
    manager = _manager(8, clock)
    _serve(manager, _text(1), ttl=300, expire="hard")
    prompt = np.array([*_text(1), 5], dtype=np.int32)
    table = manager.allocate(manager.lookup(SPACE, prompt), 17)
    assert table is not None
    clock.advance(300)
    assert manager.expire() == 0
    assert manager.lookup(SPACE, prompt).num_tokens == 0
    manager.release(table, prompt, 17)
    assert manager.expire() == 5
    manager.check_integrity([])


def _filled(num_blocks: int) -> HostKVStorage:
    """Memory in which every block holds something."""
    storage = HostKVStorage(SPEC, num_blocks)
    storage.array[:] = 1
    return storage


def _wiped(storage: HostKVStorage) -> int:
    return sum(not storage.array[at].any() for at in range(storage.num_blocks))


def test_the_bytes_of_a_hard_promise_are_overwritten_when_it_is_over_and_of_what_followed() -> None:
    clock, storage = ManualClock(), _filled(12)
    manager = _manager(12, clock, storage=storage)
    _serve(manager, _text(1), ttl=300, expire="hard")
    _serve(manager, _text(1) + _text(2))
    _serve(manager, _text(3), ttl=300)
    clock.advance(600)
    assert _wiped(storage) == 0
    manager.expire()
    assert _wiped(storage) == 8
    assert _serve(manager, _text(3)) == 15  # a soft one is ordinary, and whole


def test_a_block_that_is_held_at_its_hard_deadline_is_overwritten_when_it_is_given_back() -> None:
    clock, storage = ManualClock(), _filled(8)
    manager = _manager(8, clock, storage=storage)
    _serve(manager, _text(1), ttl=300, expire="hard")
    prompt = np.array([*_text(1), 5], dtype=np.int32)
    table = manager.allocate(manager.lookup(SPACE, prompt), 17)
    assert table is not None
    clock.advance(300)
    manager.expire()
    assert _wiped(storage) == 0
    manager.release(table, prompt, 17)
    manager.expire()
    assert _wiped(storage) == 5


def test_a_hard_promise_that_gives_way_leaves_no_bytes_in_a_block_that_others_fill_only_partly() -> (
    None
):
    clock, storage = ManualClock(), _filled(4)
    manager = _manager(4, clock, storage=storage)
    _serve(manager, _text(1), ttl=300, expire="hard")
    _serve(manager, [7, 8])
    assert _wiped(storage) == 1


@settings(max_examples=40)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.integers(1, 40),
            st.sampled_from([None, 1.0, 60.0, 3600.0]),
            st.sampled_from(["soft", "hard"]),
            st.sampled_from(TENANTS),
            st.floats(0, 50),
        ),
        max_size=40,
    ),
    index=st.sampled_from([RadixIndex, BlockHashIndex]),
    budget=st.integers(0, 10),
)
def test_no_mix_of_promises_makes_an_allocation_fail_while_unheld_blocks_exist(
    requests: list[tuple[int, int, float | None, str, TenantId, float]],
    index: type[PrefixIndex],
    budget: int,
) -> None:
    clock = ManualClock()
    manager = _manager(10, clock, index, TenantBudgets({TENANTS[1]: budget}))
    for seed, length, ttl, expire, tenant, wait in requests:
        clock.advance(wait)
        assert _serve(manager, _text(seed, length), ttl, expire, tenant) is not None
        manager.expire()
        manager.check_integrity([])


def test_eight_hours_of_promises_cross_no_bound_at_any_moment_and_read_nothing_that_expired() -> (
    None
):
    clock, rng = ManualClock(), random.Random(8)
    budgets = TenantBudgets({TENANTS[1]: 40})
    manager = _manager(160, clock, budgets=budgets)
    lifetimes = (None, 300.0, 3600.0)
    end = clock.time() + 8 * 3600
    deadlines: dict[int, float] = {}
    while clock.time() < end:
        clock.advance(rng.expovariate(1 / 20))
        seed = rng.randrange(60)
        ttl = lifetimes[seed % 3]
        reused = _serve(manager, _text(seed, 40), ttl, "hard", TENANTS[seed % 2])
        assert reused is not None
        if ttl is not None:
            if clock.time() >= deadlines.get(seed, clock.time() + 1):
                assert reused == 0
            deadlines[seed] = clock.time() + ttl
        manager.expire()
        stats = manager.stats()
        assert stats.free + stats.cached == 160
        assert sum(map(budgets.used, TENANTS)) == stats.cached
    manager.check_integrity([])
    clock.advance(3600)
    manager.expire()
    assert manager.stats().cached <= 20 * 10  # what was never promised
    assert all(manager.lookup(SPACE, np.array(_text(s, 40), dtype=np.int32)).num_tokens == 0
               for s in deadlines)  # fmt: skip


def test_lifetimes_are_written_as_people_write_them() -> None:
    assert [parse_ttl(text) for text in ("5m", "1h", "90", "1.5 s", 7)] == [300, 3600, 90, 1.5, 7]
    for wrong in ("", "soon", "-5m", "0", "5 weeks"):
        with pytest.raises(ValueError, match="not a lifetime"):
            parse_ttl(wrong)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.floats(0, 100))), max_size=200)
)
def test_the_expiry_queue_agrees_with_a_dictionary(steps: list[tuple[int, float | None]]) -> None:
    queue: ExpiryQueue[int] = ExpiryQueue()
    known: dict[int, float] = {}
    for item, until in steps:
        if until is None:
            queue.cancel(item)
            known.pop(item, None)
        else:
            queue.schedule(item, until)
            known[item] = until
        assert queue.next_deadline() == min(known.values(), default=None)
        assert set(queue) == set(known)
    due = queue.due(50)
    assert [known[item] for item in due] == sorted(t for t in known.values() if t <= 50)
    assert len(queue) == len(known) - len(due)


def test_a_promise_that_is_over_is_not_revived_by_a_hit_but_by_a_new_promise() -> None:
    over = Retention(until=10, hard=True, ttl=5)
    assert over.refreshed(10) is over
    assert over.refreshed(9).until == 14
    assert over.merged(Retention.starting(20, 5, hard=False)).until == 25
