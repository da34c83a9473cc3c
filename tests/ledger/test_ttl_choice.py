"""Guards the choice of a TTL: a wrong count of hits or of storage would recommend the dearer one."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.ledger.break_even import Strategy, Workload
from ostinato.ledger.prices import Rates, TTLs
from ostinato.ledger.ttl_choice import TTLCost, UseHistory, cost_by_ttl, history_of
from tests.ledger.price_books import BOOKS, SUNDAY_NOON

LOAD = Workload(prefix_tokens=1_000_000)
MINUTES = TTLs(short=300, long=3_600)


def gaps(*seconds: int | str) -> UseHistory:
    return UseHistory(tuple(Fraction(s) for s in seconds))


def costs(model: str, history: UseHistory, load: Workload = LOAD) -> dict[Strategy, TTLCost]:
    prices = BOOKS["without it"].require(model)
    found = cost_by_ttl(prices.rates_at(SUNDAY_NOON), prices.ttls, load, history)
    assert found == sorted(found, key=lambda cost: cost.total)
    return {cost.strategy: cost for cost in found}


@pytest.mark.parametrize(
    ("seconds", "cheapest"),
    [
        ((60,) * 5, Strategy.SHORT),
        ((1_800,) * 5, Strategy.LONG),
        ((7_200,) * 5, Strategy.NONE),
        ((60, 60, 60, 7_200), Strategy.SHORT),
        ((60, 1_800, 1_800, 1_800), Strategy.LONG),
    ],
)
def test_the_gaps_decide_which_ttl_is_cheapest(
    seconds: tuple[int, ...], cheapest: Strategy
) -> None:
    assert next(iter(costs("claude-opus-5", gaps(*seconds)))) is cheapest


def test_the_cost_of_each_strategy_is_the_one_worked_out_by_hand() -> None:
    # opus-5, dollars for a prefix of 1M tokens: input 5, read 0.5, writes 6.25 and 10
    found = costs("claude-opus-5", gaps(60, 600, 5_400))
    assert found[Strategy.NONE].total == 4 * 5
    assert found[Strategy.SHORT].total == Fraction("19.25")  # 3 · 6.25 + 0.5
    assert found[Strategy.LONG].total == 21  # 2 · 10 + 2 · 0.5
    assert found[Strategy.LONG].hits == 2
    assert found[Strategy.LONG].per_request == Fraction(21, 4)


def test_a_gap_as_long_as_the_ttl_is_a_miss() -> None:
    found = costs("claude-opus-5", gaps(300, "299.9"))
    assert found[Strategy.SHORT].hits == 1


def test_a_cache_object_is_kept_for_as_long_as_is_cheapest() -> None:
    # gemini-2.5-flash: input 0.3, read 0.03, storage 1 an hour: a second costs 1/3600
    found = costs("gemini-2.5-flash", gaps(60, 60, 60, 7_200))[Strategy.STORED]
    # 61 s: five reads 0.15, two creations 0.6, storage 180 + 2·61 = 302 s
    assert (found.ttl, found.hits) == (61, 3)
    assert found.total == Fraction("0.75") + Fraction(302, 3_600)


def test_automatic_caching_goes_by_its_hit_probability() -> None:
    found = costs("deepseek-flash", gaps(60, 60), replace(LOAD, hit_probability=Fraction(1, 2)))
    assert found[Strategy.AUTOMATIC].hits == 1
    assert found[Strategy.AUTOMATIC].total == Fraction("0.303")  # 2 · 0.15 + 0.003


def test_new_input_and_output_are_in_the_bill_of_every_strategy() -> None:
    wordy = replace(LOAD, new_tokens=100_000, output_tokens=10_000)  # 0.5 + 0.25 a request
    plain, more = (costs("claude-opus-5", gaps(60, 600), load) for load in (LOAD, wordy))
    assert all(more[s].total - plain[s].total == Fraction("2.25") for s in plain)


def test_a_write_whose_ttl_is_unknown_is_left_out() -> None:
    rates = Rates(*map(Decimal, ("1", "1", "0.1", "1.25", "2")))
    found = cost_by_ttl(rates, TTLs(short=300), LOAD, gaps(60))
    assert {cost.strategy for cost in found} == {Strategy.NONE, Strategy.SHORT}


@pytest.mark.parametrize("history", [UseHistory((), 0), gaps(-1)])
def test_an_impossible_history_is_refused(history: UseHistory) -> None:
    with pytest.raises(ValueError, match="at least one prefix"):
        cost_by_ttl(Rates(), MINUTES, LOAD, history)


def test_a_record_of_uses_becomes_gaps_within_each_prefix() -> None:
    history = history_of([("a", 10.0), ("b", 11.0), ("a", 5.0), ("a", 10.5), ("c", 1.0)])
    assert sorted(history.gaps) == [Fraction("0.5"), 5]
    assert (history.prefixes, history.requests) == (3, 5)


money = st.integers(0, 80).map(lambda n: Decimal(n) / 8)
seconds = st.fractions(0, 40, max_denominator=3)


@given(
    st.builds(Rates, money, money, money, money, money, money),
    st.lists(seconds, max_size=8),
    st.integers(1, 3),
)
def test_no_other_ttl_in_whole_seconds_is_cheaper_for_an_object(
    rates: Rates, between: list[Fraction], prefixes: int
) -> None:
    found = cost_by_ttl(rates, MINUTES, LOAD, UseHistory(tuple(between), prefixes))
    best = next(cost for cost in found if cost.strategy is Strategy.STORED)
    plain, read, storage = (Fraction(getattr(rates, k)) for k in ("input", "read", "storage"))

    def total(ttl: int) -> Fraction:
        bill = prefixes * (plain + read + storage * ttl / 3_600)
        for gap in between:
            expired = plain + storage * ttl / 3_600
            bill += read + (storage * gap / 3_600 if gap < ttl else expired)
        return bill

    assert best.ttl is not None
    assert best.total == total(best.ttl) == min(map(total, range(1, 45)))


@given(
    st.builds(Rates, money, money, money, money, money),
    st.lists(st.fractions(0, 5_000, max_denominator=2), max_size=10),
    st.integers(1, 3),
)
def test_a_write_costs_what_going_through_the_gaps_one_by_one_costs(
    rates: Rates, between: list[Fraction], prefixes: int
) -> None:
    found = cost_by_ttl(rates, MINUTES, LOAD, UseHistory(tuple(between), prefixes))
    totals = {cost.strategy: cost.total for cost in found}
    read = Fraction(rates.read or 0)
    for strategy, write, ttl in (
        (Strategy.SHORT, Fraction(rates.write_short or 0), 300),
        (Strategy.LONG, Fraction(rates.write_long or 0), 3_600),
    ):
        walked = prefixes * write + sum(read if gap < ttl else write for gap in between)
        assert totals[strategy] == walked
