"""Guards the fair share: a tenant that floods the server slows nobody but itself, service evens out in tokens
over time, idling saves nothing up, and no tenant can fill the queue to keep another out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.types import TenantId
from ostinato.engine.fair_share import OUTPUT_WEIGHT, TenantService
from ostinato.errors import EngineOverloadedError
from tests.engine.harness import Engine, tokens

A, B, C = TenantId("a"), TenantId("b"), TenantId("c")


def test_service_is_what_was_computed_and_generated() -> None:
    service = TenantService()
    service.charge_prompt(A, 100)
    service.charge_output(A)
    assert service.virtual_tokens(A) == 100 + OUTPUT_WEIGHT
    assert service.virtual_tokens(B) == 0


def test_a_tenant_of_twice_the_weight_is_charged_half() -> None:
    service = TenantService({A: 2.0}, default_weight=0.5)
    service.charge_prompt(A, 100)
    service.charge_prompt(B, 100)
    assert service.virtual_tokens(A) == 50
    assert service.virtual_tokens(B) == 200


def test_idling_saves_nothing_up() -> None:
    service = TenantService()
    service.charge_prompt(A, 1000)
    service.enter(B, {A})
    assert service.virtual_tokens(B) == 1000
    service.charge_prompt(B, 5)
    service.enter(C, set())  # nobody waits: on a par with whoever was admitted last
    assert service.virtual_tokens(C) == 1005


def test_coming_back_pays_no_debts_off() -> None:
    service = TenantService()
    service.charge_prompt(A, 1000)
    service.enter(A, {B})
    assert service.virtual_tokens(A) == 1000


def flood(engine: Engine, tenant: str, count: int, length: int, max_tokens: int) -> None:
    for number in range(count):
        prompt = tokens(length, seed=1 + number)
        name = f"{tenant} {number}"
        engine.add(name, prompt, tenant=tenant, max_tokens=max_tokens, ignore_eos=True)


def test_one_request_of_a_modest_tenant_overtakes_the_fifty_of_a_greedy_one() -> None:
    """However long the fifty have been waiting: at most what runs already, and one more, comes before it."""
    engine = Engine(max_num_seqs=2, num_blocks=64)
    flood(engine, "greedy", 50, length=12, max_tokens=4)
    finished(engine, steps=3)
    overtaken = []
    for turn in range(8):
        engine.clock.advance(60.0)
        engine.add(f"modest {turn}", tokens(12, 900 + turn), tenant="modest", max_tokens=4)
        order: list[str] = []
        while f"modest {turn}" not in order:
            order += finished(engine, steps=1)
        overtaken.append(len(order) - 1)
    # Two were running, and by a tie in the counters one more may have been admitted before it.
    assert max(overtaken) <= 3


def finished(engine: Engine, steps: int) -> list[str]:
    deltas = [delta for _ in range(steps) for delta in engine.step()]
    return [delta.request_id for delta in deltas if delta.finish_reason is not None]


@pytest.mark.parametrize("short_is_first", [True, False])
def test_tenants_get_equal_tokens_over_time_not_equal_requests(short_is_first: bool) -> None:
    """Short requests against long ones, both always waiting: tokens even out, so requests must not."""
    engine = Engine(max_num_seqs=1, num_blocks=64)
    lengths = {"short": (8, 2), "long": (60, 6)}
    for tenant in sorted(lengths, reverse=short_is_first):
        length, max_tokens = lengths[tenant]
        flood(engine, tenant, 400 // length, length, max_tokens)
    served: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    largest = 60 + OUTPUT_WEIGHT * 6
    while {request.tenant for request in engine.scheduler.waiting} == {"short", "long"}:
        for delta in engine.step():
            tenant = delta.request_id.split()[0]
            served[tenant] += len(delta.token_ids)
            answers[tenant] += delta.finish_reason is not None
        for part in engine.spy.batches[-1]:
            served[part.request.tenant] += part.num_tokens
        assert abs(served["short"] - served["long"]) <= 2 * largest
    assert served["long"] > 4 * largest  # it went on for a while
    assert answers["short"] > answers["long"]


def test_a_tenant_of_three_times_the_weight_gets_three_times_the_tokens() -> None:
    engine = Engine(max_num_seqs=1, num_blocks=64, weights={"paying": 3.0})
    flood(engine, "free", 60, length=12, max_tokens=2)
    flood(engine, "paying", 60, length=12, max_tokens=2)
    done: list[str] = []
    while len(done) < 40:
        done += finished(engine, steps=1)
    shares = Counter(name.split()[0] for name in done)
    assert shares["paying"] == pytest.approx(30, abs=1)


def test_a_full_queue_still_takes_what_a_tenant_s_share_of_it_holds() -> None:
    engine = Engine(max_num_seqs=1, max_waiting=5)
    flood(engine, "greedy", 6, length=4, max_tokens=1)
    with pytest.raises(EngineOverloadedError):
        engine.add("one more", tokens(4, 77), tenant="greedy")
    flood(engine, "modest", 3, length=4, max_tokens=1)
    with pytest.raises(EngineOverloadedError):
        engine.add("its fourth", tokens(4, 78), tenant="modest")
    flood(engine, "third", 2, length=4, max_tokens=1)
    assert len(engine.run()) == 11


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 4), st.integers(0, 3)),
        min_size=1,
        max_size=30,
    )
)
def test_everybody_is_served_in_the_end(asked: list[tuple[str, int, int, int]]) -> None:
    """And of tenants that wait, none is passed over for one that has had more."""
    engine = Engine(max_num_seqs=2, num_blocks=32)
    for number, (tenant, length, max_tokens, steps) in enumerate(asked):
        engine.add(f"{number}", tokens(length, number), tenant=tenant, max_tokens=max_tokens)
        for _ in range(steps):
            engine.step()
    engine.run()
    engine.assert_idle()
