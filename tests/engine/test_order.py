"""Guards the policies of waiting: warm before cold, nobody starves, tenants share, no prefix computed twice."""

from __future__ import annotations

from typing import Any

from ostinato.cache.types import NamespaceKey, TenantId
from ostinato.engine.fair_share import TenantService
from ostinato.engine.order import (
    MAX_LOOKUPS,
    PRIORITY_TOKENS,
    Candidate,
    FirstComeFirstServed,
    LongestPrefixFirst,
    OpenGate,
    QueueView,
    SharedPrefixGate,
    WaitingOrder,
)
from ostinato.engine.request import MAX_PRIORITY, Request, RequestStatus
from tests.engine.harness import Engine, namespace_of, request, tokens


def make(name: str, prompt: list[int] | None = None, **options: Any) -> Request:
    source = request(name, prompt or tokens(8), **options)
    return Request(source, namespace_of(source), 4, 0.0)


def candidate(name: str, cached: int = 0, waited: float = 0.0, **options: Any) -> Candidate:
    return Candidate(make(name, **options), cached, waited)


def in_order(
    order: WaitingOrder,
    *candidates: Candidate,
    service: TenantService | None = None,
    in_service: dict[TenantId, int] | None = None,
) -> list[str]:
    now = 1_000.0
    for one in candidates:
        one.request.arrival_time = now - one.waited_seconds
    cached = {one.request: one.cached_tokens for one in candidates}
    view = QueueView(
        waiting=list(cached),
        now=now,
        cached_tokens=lambda request: cached[request],
        service=service or TenantService(),
        in_service=in_service or {},
    )
    return [request.request_id for request in order.arrange(view)]


def test_the_longest_cached_prefix_goes_first() -> None:
    order = LongestPrefixFirst(age_weight=64.0)
    assert in_order(order, candidate("cold"), candidate("hot", 100), candidate("warm", 10)) == [
        "hot",
        "warm",
        "cold",
    ]


def test_waiting_long_enough_outweighs_any_cached_prefix() -> None:
    order = LongestPrefixFirst(age_weight=64.0)
    assert in_order(order, candidate("hot", 1000), candidate("old", 0, waited=16.0)) == [
        "old",
        "hot",
    ]


def test_an_age_weight_of_zero_is_pure_longest_prefix_first() -> None:
    order = LongestPrefixFirst(age_weight=0.0)
    assert in_order(order, candidate("old", 1, waited=1e6), candidate("hot", 2)) == ["hot", "old"]


def test_the_tenant_that_had_the_least_service_goes_first_whatever_else_speaks_for_the_other() -> (
    None
):
    service = TenantService()
    service.charge_prompt(TenantId("a"), 500)
    served = candidate("served", 50, waited=1e6, tenant="a", priority=-MAX_PRIORITY)
    modest = candidate("modest", tenant="b", priority=MAX_PRIORITY)
    order = LongestPrefixFirst(age_weight=64.0)
    assert in_order(order, served, modest, service=service) == ["modest", "served"]


def test_of_equally_served_tenants_the_one_with_less_in_service_goes_first() -> None:
    order = LongestPrefixFirst(age_weight=64.0)
    busy, idle = candidate("busy", 50, tenant="a"), candidate("idle", tenant="b")
    running = {TenantId("a"): 10}
    assert in_order(order, busy, idle, in_service=running) == ["idle", "busy"]


def test_tenants_take_turns_by_what_their_requests_cost() -> None:
    waiting = [
        *(candidate(f"a{number}", tenant="a") for number in range(3)),
        candidate("b0", tenant="b", prompt=tokens(20)),
        candidate("b1", tenant="b"),
    ]
    names = in_order(LongestPrefixFirst(64.0), *waiting)
    assert names == ["a0", "b0", "a1", "a2", "b1"]


def test_what_is_cached_costs_a_tenant_no_turn() -> None:
    waiting = [
        candidate("a0", tenant="a"),
        candidate("a1", tenant="a"),
        candidate("b0", 19, tenant="b", prompt=tokens(20)),
        candidate("b1", tenant="b"),
    ]
    names = in_order(LongestPrefixFirst(64.0), *waiting)
    assert names == ["a0", "b0", "b1", "a1"]


def test_a_preempted_request_goes_before_everybody() -> None:
    preempted = candidate("preempted")
    preempted.request.status = RequestStatus.PREEMPTED
    for order in (LongestPrefixFirst(64.0), FirstComeFirstServed()):
        urgent = candidate("urgent", 1000, priority=-1)
        assert in_order(order, urgent, preempted) == ["preempted", "urgent"]


def test_a_lower_priority_number_is_served_earlier() -> None:
    order = LongestPrefixFirst(64.0)
    assert in_order(order, candidate("normal", 1000), candidate("urgent", priority=-1)) == [
        "urgent",
        "normal",
    ]
    assert in_order(order, candidate("later", priority=1), candidate("normal")) == [
        "normal",
        "later",
    ]


def test_age_outweighs_any_priority_in_the_end() -> None:
    order = LongestPrefixFirst(age_weight=64.0)
    step = PRIORITY_TOKENS / 64.0
    urgent = candidate("urgent", priority=-MAX_PRIORITY)
    lowly = {"priority": MAX_PRIORITY}
    waited = 2 * MAX_PRIORITY * step
    assert in_order(order, candidate("old", waited=waited - 1, **lowly), urgent)[0] == "urgent"
    assert in_order(order, candidate("old", waited=waited + 1, **lowly), urgent)[0] == "old"


def test_an_endless_stream_of_urgent_requests_starves_nobody() -> None:
    engine = Engine(max_num_seqs=1)
    engine.add("normal", tokens(4), max_tokens=1)
    for turn in range(200):
        engine.add(f"urgent {turn}", tokens(4, turn + 1), max_tokens=1, priority=-1)
        done = {delta.request_id for delta in engine.step()}
        if "normal" in done:
            break
        engine.clock.advance(1.0)
    assert 1 <= turn <= PRIORITY_TOKENS / 64 + 1


def test_equal_scores_keep_the_order_of_arrival() -> None:
    first, second = candidate("first", 5), candidate("second", 5)
    assert in_order(LongestPrefixFirst(64.0), second, first) == ["first", "second"]
    assert in_order(FirstComeFirstServed(), second, first) == ["first", "second"]


def flooded(last: str, **options: Any) -> list[str]:
    """Who is served in which order, if `last` is warm and comes after more than may be looked up."""
    engine = Engine(num_blocks=64, max_num_seqs=1)
    warm = tokens(20)
    engine.add("seed", warm, max_tokens=1, **options)
    engine.run()
    for number in range(MAX_LOOKUPS + 1):
        # None of them shares even its first token with another.
        engine.add(f"cold {number}", [1 + number % 60] * 4, max_tokens=1, salt=str(number))
    engine.add(last, [*warm, 1], max_tokens=1, **options)
    finished = []
    while engine.core.has_work:
        finished += [delta.request_id for delta in engine.step()]
    return finished


def test_beyond_the_lookup_limit_the_first_so_many_are_looked_up() -> None:
    # Two are served before "warm" is among them; then it goes first.
    assert flooded("warm")[:3] == ["cold 0", "cold 1", "warm"]


def test_a_tenant_that_floods_the_queue_does_not_push_another_out_of_it() -> None:
    # It has been served 22 tokens for its seed, the flood 20: one of the flood comes first.
    assert flooded("other's", tenant="other")[1] == "other's"


def test_prefix_order_holds_among_the_first_of_a_flood() -> None:
    engine = Engine(num_blocks=64, max_num_seqs=1)
    warm = tokens(20)
    engine.add("seed", warm, max_tokens=1)
    engine.run()
    for number in range(2 * MAX_LOOKUPS):
        engine.add(f"cold {number}", [1] * 4, max_tokens=1, salt=str(number))
        if number == 5:
            engine.add("warm", [*warm, 1], max_tokens=1)
    (delta,) = engine.step()
    assert delta.request_id == "warm"


def test_preempted_requests_need_no_turn() -> None:
    waiting = [candidate(f"a{number}", tenant="a") for number in range(3)]
    waiting += [candidate("b0", tenant="b"), candidate("c0", tenant="c")]
    waiting[2].request.status = RequestStatus.PREEMPTED
    names = in_order(LongestPrefixFirst(64.0), *waiting)
    assert names == ["a2", "a0", "b0", "c0", "a1"]


def test_first_come_first_served_reads_neither_cache_nor_tenant_nor_priority() -> None:
    first = candidate("first", priority=5, tenant="a")
    second = candidate("second", 900, waited=9.0, priority=-5, tenant="b")
    assert in_order(FirstComeFirstServed(), second, first) == ["first", "second"]


def test_the_gate_holds_only_for_two_blocks_more_than_are_cached() -> None:
    gate = SharedPrefixGate(block_size=4)
    shared = tokens(8)
    leader = make("leader", [*shared, *tokens(20, 1)])
    enough, cached, short = make("enough", [*shared, 1]), 1, make("short", [*shared[:7], 1, 1])
    assert gate.should_wait(enough, 0, [leader])
    assert not gate.should_wait(enough, cached, [leader])
    assert not gate.should_wait(short, 0, [leader])


def test_the_gate_ignores_other_namespaces_and_requests_that_decode() -> None:
    gate = SharedPrefixGate(block_size=4)
    shared = tokens(16)
    follower = make("follower", [*shared, 1])
    stranger = make("stranger", [*shared, 2])
    stranger.namespace = NamespaceKey(b"other")
    decoding = make("decoding", [*shared, 3])
    decoding.num_computed_tokens = decoding.num_tokens - 1
    assert not gate.should_wait(follower, 0, [stranger, decoding])
    assert not OpenGate().should_wait(follower, 0, [make("same", [*shared, 4])])
