"""Guards each policy's order, its books of candidates, and that promises neither fail nor wedge anything."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.eviction import ARC, LFU, LRU, POLICIES, Retaining, ReuseRate, make_policy
from ostinato.cache.retention import Retention, TenantBudgets
from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.errors import ConfigError

ANN, BOB = TenantId("ann"), TenantId("bob")


@dataclass(eq=False)
class Item:
    """An `Evictable` that belongs to nobody's index."""

    name: str
    last_used: float = 0
    depth: int = 0
    hits: int = 0
    fan_out: int = 0
    tenant: TenantId | None = None
    retention: Retention | None = None

    @property
    def ghost_key(self) -> bytes:
        return b"\0" + self.name.encode()  # begins with a zero byte, so that it is sampled


def test_lru_gives_up_the_oldest_use_and_of_one_prefix_the_deepest() -> None:
    policy: LRU[Item] = LRU()
    young, head, tail = Item("young", 2), Item("head", 1, depth=0), Item("tail", 1, depth=1)
    for item in (young, head, tail):
        policy.add(item)
    assert [policy.pop_victim() for _ in range(3)] == [tail, head, young]


def test_lfu_keeps_what_was_reused_most() -> None:
    policy: LFU[Item] = LFU()
    often, once = Item("often", 1, hits=5), Item("once", 9, hits=1)
    policy.add(often)
    policy.add(once)
    assert policy.pop_victim() is once


def test_arc_learns_from_a_ghost_that_recent_items_were_given_too_little_room() -> None:
    policy: ARC[Item] = ARC()
    first, second = Item("first", 1), Item("second", 2)
    policy.on_store([first, second])
    policy.on_reuse([second], 3)
    policy.add(first)
    policy.add(second)
    assert policy.pop_victim() is first  # used once only
    policy.on_drop(first)
    again, new = Item("first", 4), Item("new", 5)
    policy.on_store([again])  # a ghost: the list of what was used once should have been longer
    policy.on_store([new])
    policy.add(again)
    policy.add(new)
    assert policy.pop_victim() is second  # as long as that list is not longer than its new target


def test_reuse_rate_learns_that_the_ends_of_prompts_do_not_come_back() -> None:
    policy: ReuseRate[Item] = ReuseRate()
    for now in range(1, 400):
        policy.on_store([Item(f"inside {now % 20}", now, depth=1, fan_out=1)])
        policy.on_store([Item(f"end {now}", now, depth=1)])
    inside, end = Item("inside", 400, depth=1, fan_out=1), Item("end", 401, depth=1)
    policy.add(inside)
    policy.add(end)
    assert policy.pop_victim() is end


def test_reuse_rate_remembers_how_often_a_block_was_used_before_it_was_given_up() -> None:
    policy: ReuseRate[Item] = ReuseRate()
    for now in range(1, 600):
        live = Item("live", now, depth=1, fan_out=1)
        once = Item(f"once {now}", now, depth=1, fan_out=1)
        for item in (live, once):
            policy.on_store([item])
            policy.on_drop(item)
    live, fresh = Item("live", 600, 1, fan_out=1), Item("fresh", 601, 1, fan_out=1)
    for item in (live, fresh):
        policy.on_store([item])
        policy.add(item)
    assert policy.pop_victim() is fresh


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=60))
def test_every_policy_holds_exactly_what_was_added_and_not_taken(
    name: str, steps: list[tuple[int, int]]
) -> None:
    policy = make_policy(name)
    items = [Item(str(at), depth=at, hits=at % 2) for at in range(8)]
    policy.on_store(items)
    held: set[Item] = set()
    for now, (verb, at) in enumerate(steps):
        item = items[at]
        if verb == 0 and item not in held:
            item.last_used = now
            policy.add(item)
            held.add(item)
        elif verb == 1 and item in held:
            policy.remove(item)
            held.remove(item)
            policy.on_reuse([item], now)
            item.hits += 1
        elif verb == 2 and held:
            held.remove(policy.pop_victim())
        elif verb == 3 and item not in held:
            held = (held | {item}) - {policy.exchange(item)}
        assert set(policy) == held
        assert len(policy) == len(held)
    for _ in range(len(held)):
        held.remove(policy.pop_victim())
    with pytest.raises(IndexError):
        policy.pop_victim()
    with pytest.raises(KeyError):
        policy.remove(items[0])


def test_an_unknown_policy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match="reuse_rate"):
        make_policy("fifo")


def _promise(clock: ManualClock, ttl: float) -> Retention:
    return Retention.starting(clock.time(), ttl, hard=False)


def test_a_promise_outlives_ordinary_traffic_until_its_deadline_and_is_ordinary_then() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock)
    kept = Item("kept", 1, retention=_promise(clock, 300))
    policy.add(kept)
    policy.add(Item("a", 2))
    policy.add(Item("b", 3))
    assert policy.pop_victim().name == "a"
    clock.advance(300)
    assert policy.pop_victim() is kept


def test_when_only_promises_are_left_the_soonest_deadline_goes_first() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock)
    hour, minutes = (
        Item("hour", 1, retention=_promise(clock, 3600)),
        Item("minutes", 9, retention=_promise(clock, 300)),
    )
    policy.add(hour)
    policy.add(minutes)
    assert [policy.pop_victim(), policy.pop_victim()] == [minutes, hour]


def test_a_tenant_over_budget_pays_first_and_its_promises_are_not_kept() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock, TenantBudgets({BOB: 1}))
    oldest = Item("oldest", 1, tenant=ANN)
    promised = Item("promised", 2, tenant=BOB, retention=_promise(clock, 300))
    plain = Item("plain", 3, tenant=BOB)
    for item in (oldest, promised, plain):
        policy.on_store([item])
        policy.add(item)
    assert policy.pop_victim() is plain  # over budget, and nothing was promised
    policy.on_drop(plain)
    assert policy.pop_victim() is oldest  # within budget now, so the promise holds


def _stored(policy: Retaining[Item], *items: Item) -> None:
    for item in items:
        policy.on_store([item])
        policy.add(item)


def test_nobody_keeps_more_than_an_equal_share_by_promises_once_another_has_anything() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock, capacity=8)
    promised = [
        Item(f"ann {at}", at, tenant=ANN, retention=_promise(clock, 100 + at)) for at in range(7)
    ]
    plain = Item("bob", 0, tenant=BOB)
    _stored(policy, *promised)
    _stored(policy, plain)
    gone = []
    for _ in range(4):
        gone.append(policy.pop_victim())
        policy.on_drop(gone[-1])
    assert gone == [*promised[:3], plain]  # four of eight may stay promised; then the rest in order


def test_a_tenant_that_is_alone_may_have_the_whole_place_promised() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock, capacity=4)
    plain = Item("plain", 9, tenant=ANN)
    promised = [Item(str(at), at, tenant=ANN, retention=_promise(clock, 60)) for at in range(3)]
    _stored(policy, *promised, plain)
    assert policy.pop_victim() is plain


def test_promises_that_are_over_or_taken_back_do_not_count_towards_the_share() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock, capacity=6)
    brief = [Item(f"brief {at}", 5, tenant=ANN, retention=_promise(clock, 1)) for at in range(3)]
    kept = [Item(f"kept {at}", 1, tenant=ANN, retention=_promise(clock, 60)) for at in range(3)]
    plain = Item("bob", 2, tenant=BOB)
    _stored(policy, *brief, *kept, plain)
    clock.advance(1)
    assert policy.pop_victim() is plain  # three are promised still, half of six
    policy.remove(kept[0])
    kept[0].retention = None
    policy.on_promise(kept[0])
    policy.add(kept[0])
    assert policy.pop_victim() is kept[0]


def test_a_promise_made_or_renewed_while_an_item_is_used_counts_towards_the_share() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock, capacity=4)
    items = [Item(f"ann {at}", at + 1, tenant=ANN) for at in range(3)]
    for item in items:
        policy.on_store([item])
        item.retention = _promise(clock, 10)
        policy.on_promise(item)
    clock.advance(5)
    for item in items:
        item.retention = _promise(clock, 10)
        policy.on_promise(item)
        policy.add(item)
    _stored(policy, Item("bob", 0, tenant=BOB))
    clock.advance(7)  # past the first deadline, before the second
    assert policy.pop_victim() is items[0]


def test_a_tenant_with_a_budget_is_promised_as_much_as_that() -> None:
    clock = ManualClock()
    policy: Retaining[Item] = Retaining(LRU(), clock, TenantBudgets({ANN: 3}), capacity=4)
    promised = [Item(str(at), at, tenant=ANN, retention=_promise(clock, 60)) for at in range(3)]
    plain = Item("bob", 9, tenant=BOB)
    _stored(policy, *promised, plain)
    assert policy.pop_victim() is plain


@given(
    promises=st.lists(
        st.tuples(st.sampled_from([None, 1.0, 60.0, 3600.0]), st.sampled_from([ANN, BOB, None])),
        min_size=1,
        max_size=30,
    ),
    waits=st.lists(st.floats(0, 100), max_size=30),
    budget=st.integers(0, 5),
    capacity=st.sampled_from([None, 3, 30]),
    name=st.sampled_from(sorted(POLICIES)),
)
def test_whatever_was_promised_every_candidate_can_be_given_up(
    promises: list[tuple[float | None, TenantId | None]],
    waits: list[float],
    budget: int,
    capacity: int | None,
    name: str,
) -> None:
    clock = ManualClock()
    budgets = TenantBudgets({BOB: budget})
    policy: Retaining[Item] = Retaining(make_policy(name), clock, budgets, capacity=capacity)
    items = []
    for at, (ttl, tenant) in enumerate(promises):
        retention = None if ttl is None else _promise(clock, ttl)
        items.append(Item(str(at), at, tenant=tenant, retention=retention))
        policy.on_store([items[-1]])
        policy.add(items[-1])
    given_up = []
    for at in range(len(items)):
        clock.advance(waits[at] if at < len(waits) else 0)
        given_up.append(policy.pop_victim())
        policy.on_drop(given_up[-1])
    assert sorted(given_up, key=id) == sorted(items, key=id)
    assert len(policy) == 0
    assert budgets.used(BOB) == 0
