"""Guards the policies of waiting: warm before cold, nobody starves, tenants share, no prefix computed twice."""

from __future__ import annotations

from typing import Any

from ostinato.cache.types import NamespaceKey
from ostinato.engine.order import (
    MAX_LOOKUPS,
    Candidate,
    FirstComeFirstServed,
    LongestPrefixFirst,
    OpenGate,
    SharedPrefixGate,
    WaitingOrder,
)
from ostinato.engine.request import Request, RequestStatus
from tests.engine.harness import Engine, namespace_of, request, tokens


def make(name: str, prompt: list[int] | None = None, **options: Any) -> Request:
    source = request(name, prompt or tokens(8), **options)
    return Request(source, namespace_of(source), 4, 0.0)


def candidate(
    name: str, cached: int = 0, waited: float = 0.0, tenant_tokens: int = 0, **options: Any
) -> Candidate:
    return Candidate(make(name, **options), cached, waited, tenant_tokens)


def in_order(order: WaitingOrder, *candidates: Candidate) -> list[str]:
    return [one.request.request_id for one in sorted(candidates, key=order.sort_key)]


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


def test_the_tenant_with_fewest_tokens_in_service_goes_first() -> None:
    order = LongestPrefixFirst(age_weight=64.0)
    greedy = candidate("greedy", 50, tenant_tokens=500, tenant="a")
    modest = candidate("modest", 0, tenant_tokens=100, tenant="b")
    assert in_order(order, greedy, modest) == ["modest", "greedy"]


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


def test_equal_scores_keep_the_order_of_arrival() -> None:
    first, second = candidate("first", 5), candidate("second", 5)
    assert in_order(LongestPrefixFirst(64.0), second, first) == ["first", "second"]
    assert in_order(FirstComeFirstServed(), second, first) == ["first", "second"]


def test_beyond_the_lookup_limit_arrival_decides() -> None:
    engine = Engine(num_blocks=64, max_num_seqs=1)
    warm = tokens(20)
    engine.add("seed", warm, max_tokens=1)
    engine.run()
    for number in range(MAX_LOOKUPS + 1):
        engine.add(f"cold {number}", tokens(4, 100 + number), max_tokens=1)
    engine.add("warm", [*warm, 1], max_tokens=1)
    finished = []
    while engine.core.has_work:
        finished += [delta.request_id for delta in engine.step()]
    # Two are served in order of arrival; then the rest is few enough to be looked up.
    assert finished[:3] == ["cold 0", "cold 1", "warm"]


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
