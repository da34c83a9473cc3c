"""Guards the break-even: an answer that is one request off sells a write that does not pay."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.ledger.break_even import (
    CostLine,
    Strategy,
    Workload,
    break_even,
    break_evens,
    cost_lines,
    times_input,
)
from ostinato.ledger.break_even_chart import break_even_chart
from ostinato.ledger.prices import Rates
from tests.ledger.price_books import BOOKS, SUNDAY_NOON

LOAD = Workload(prefix_tokens=10_000)


def rates_of(model: str, tokens: int = 10_000) -> Rates:
    return BOOKS["without it"].require(model).rates_at(SUNDAY_NOON, tokens)


def when_it_pays(model: str, load: Workload = LOAD) -> dict[Strategy, int | None]:
    return break_evens(cost_lines(rates_of(model), load))


@pytest.mark.parametrize("model", ["claude-opus-5", "claude-sonnet-4-6", "claude-haiku-4-5"])
def test_anthropic_s_short_write_pays_from_the_second_request_and_the_long_from_the_third(
    model: str,
) -> None:
    # 1.25 + 0.1 = 1.35 < 2;  2 + 0.1 = 2.1 > 2 and 2 + 2·0.1 = 2.2 < 3
    assert when_it_pays(model) == {Strategy.SHORT: 2, Strategy.LONG: 3}
    rates = rates_of(model)
    assert times_input(rates, Strategy.SHORT) == Fraction(5, 4)
    assert times_input(rates, Strategy.LONG) == 2


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # 1.25 + 0.05 < 2; 2.5 + 0.05 > 2, 2.5 + 2·0.05 = 2.6 < 3
        ("gpt-6.1-sol", {Strategy.SHORT: 2, Strategy.LONG: 3}),
        # 2.5 + 0.1 > 2; 2.5 + 0.2 = 2.7 < 3
        ("gpt-5.6", {Strategy.SHORT: 2, Strategy.LONG: 3}),
        # a write at the input price: 1 + 0.1 < 2; the long one 2 + 2·0.1 < 3
        ("kimi-k3", {Strategy.SHORT: 2, Strategy.LONG: 3}),
        ("qwen3.7-max", {Strategy.SHORT: 2}),
        # 0.2 / 0.15 + 0.016 / 0.15 = 0.216 / 0.15 = 1.44 < 2
        ("qwen3.8-flash", {Strategy.SHORT: 2}),
        ("deepseek-flash", {Strategy.AUTOMATIC: 2}),
        # an hour of storage is 4.5 / 1.25 = 3.6 inputs: 1 + 3.6 + N·0.1 < N from N = 4.6 / 0.9 = 5.1 on
        ("gemini-2.5-pro", {Strategy.AUTOMATIC: 2, Strategy.STORED: 6}),
        # 1 / 0.3 = 3.33: N > 4.33 / 0.9 = 4.8
        ("gemini-2.5-flash", {Strategy.AUTOMATIC: 2, Strategy.STORED: 5}),
    ],
)
def test_our_own_table_breaks_even_where_the_hand_says(
    model: str, expected: dict[Strategy, int]
) -> None:
    assert when_it_pays(model) == expected


def test_a_break_even_on_the_very_line_is_not_yet_cheaper() -> None:
    # 2 + (N − 1)·0 = N at N = 2
    assert break_even(CostLine(Fraction(2), Fraction(0)), CostLine(Fraction(0), Fraction(1))) == 3


def test_misses_put_the_break_even_off_and_too_many_of_them_end_it() -> None:
    # h = 0.5: a later request costs 0.5·0.1 + 0.5·1.25 = 0.675; 1.25 + 0.675 < 2
    # h = 0.2: 0.02 + 1 = 1.02 > 1: never
    half, few = (replace(LOAD, hit_probability=Fraction(h, 10)) for h in (5, 2))
    assert when_it_pays("claude-opus-5", half)[Strategy.SHORT] == 2
    assert when_it_pays("claude-opus-5", few)[Strategy.SHORT] is None
    # long, h = 0.6: 0.06 + 0.8 = 0.86; 2 − 0.86 = 1.14 over 0.14 → 8.14…
    some = replace(LOAD, hit_probability=Fraction(6, 10))
    assert when_it_pays("claude-opus-5", some)[Strategy.LONG] == 9


def test_output_does_not_move_the_break_even_but_a_wanted_saving() -> None:
    # 10,000 tokens: plain 0.05; output 2,000·25 = 0.05. A quarter saved of all: per request
    # 0.75·0.1 − (0.005 + 0.05) = 0.02; ahead: 0.0625 − 0.005 = 0.0575 → N > 2.875
    # without output: 0.75·0.05 − 0.005 = 0.0325 → N > 1.77
    wordy = replace(LOAD, output_tokens=2_000)
    rates = rates_of("claude-opus-5")
    assert when_it_pays("claude-opus-5", wordy) == when_it_pays("claude-opus-5")
    quarter = Fraction(1, 4)
    assert break_evens(cost_lines(rates, wordy), quarter)[Strategy.SHORT] == 3
    assert break_evens(cost_lines(rates, LOAD), quarter)[Strategy.SHORT] == 2
    assert break_evens(cost_lines(rates, wordy), Fraction(1, 2))[Strategy.SHORT] is None


def test_an_object_kept_longer_pays_later() -> None:
    # 1 + 24·3.6 = 87.4 over 0.9 = 97.1
    day = replace(LOAD, hours=Fraction(24))
    assert when_it_pays("gemini-2.5-pro", day)[Strategy.STORED] == 98


def test_what_has_no_price_is_left_out() -> None:
    assert cost_lines(Rates(output=Decimal(1)), LOAD) == {}
    assert cost_lines(Rates(input=Decimal(1)), replace(LOAD, output_tokens=1)) == {}
    assert list(cost_lines(Rates(input=Decimal(1), output=Decimal(1)), LOAD)) == [Strategy.NONE]


dollars = st.integers(0, 400).map(lambda cents: Decimal(cents) / 16)
shares = st.fractions(0, 1, max_denominator=12)
workloads = st.builds(
    Workload,
    st.integers(1, 50_000),
    st.integers(0, 5_000),
    st.integers(0, 5_000),
    shares,
    st.fractions(0, 48, max_denominator=4),
)


@given(st.builds(Rates, dollars, dollars, dollars, dollars, dollars, dollars), workloads, shares)
def test_the_closed_form_is_what_counting_finds(
    rates: Rates, load: Workload, saving: Fraction
) -> None:
    lines = cost_lines(rates, load)
    without = lines.pop(Strategy.NONE)
    for line in lines.values():
        counted = next(
            (n for n in range(1, 400) if line.at(n) < (1 - saving) * without.at(n)), None
        )
        closed = break_even(line, without, saving)
        if closed is not None and closed >= 400:
            assert counted is None
            assert line.at(closed) < (1 - saving) * without.at(closed)
            assert line.at(closed - 1) >= (1 - saving) * without.at(closed - 1)
        else:
            assert closed == counted


@given(st.builds(Rates, dollars, dollars, dollars, dollars, dollars, dollars), workloads)
def test_the_lines_are_the_sums_of_single_requests(rates: Rates, load: Workload) -> None:
    lines = cost_lines(rates, load)
    million, p, h = 1_000_000, load.prefix_tokens, load.hit_probability
    plain, output, read, short, _, storage = (
        Fraction(getattr(rates, kind))
        for kind in ("input", "output", "read", "write_short", "write_long", "storage")
    )
    rest = load.new_tokens * plain + load.output_tokens * output
    for n in (1, 2, 7):
        written = short * p + rest
        stored = (plain + storage * load.hours) * p
        for number in range(1, n + 1):
            if number > 1:
                written += (h * read + (1 - h) * short) * p + rest
            stored += (h * read + (1 - h) * plain) * p + rest
        assert lines[Strategy.SHORT].at(n) * million == written
        assert lines[Strategy.STORED].at(n) * million == stored
        assert lines[Strategy.NONE].at(n) * million == n * (plain * p + rest)


def test_the_chart_is_xml_with_a_line_a_strategy_and_a_dot_at_each_break_even() -> None:
    lines = cost_lines(rates_of("gemini-2.5-pro"), LOAD)
    drawn = ElementTree.fromstring(break_even_chart("a < b & c", lines, 20))
    svg = "{http://www.w3.org/2000/svg}"
    thick = [line for line in drawn.iter(f"{svg}line") if line.get("stroke-width") == "2"]
    assert len(thick) == 3
    assert len(list(drawn.iter(f"{svg}circle"))) == 2
    words = [text.text for text in drawn.iter(f"{svg}text")]
    assert "a < b & c" in words
    assert "cache object: pays from request 6" in words


def test_a_break_even_outside_the_chart_has_no_dot() -> None:
    lines = cost_lines(rates_of("gemini-2.5-pro"), LOAD)
    assert break_even_chart("t", lines, 3).count("<circle") == 1


def test_a_chart_of_one_request_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        break_even_chart("t", cost_lines(rates_of("gpt-4o"), LOAD), 1)
