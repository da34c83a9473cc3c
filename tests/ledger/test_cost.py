"""Guards the bill: a wrong rate, tier, hour or factor would show here in the last decimal.

Each example was worked out by hand; its arithmetic, in millionths of a dollar, stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, Inexact

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.ledger.cost import Cost, TokenCounts, cost_of, request_cost, token_hours
from ostinato.ledger.cost_savings import UsageRow, bills
from ostinato.ledger.prices import EXACT, FREE, Rates
from tests.ledger.price_books import BOOKS, SUNDAY_NOON, book_without_package

MONDAY_1 = datetime(2026, 11, 30, 1, tzinfo=UTC)
MONDAY_4 = datetime(2026, 11, 30, 4, tzinfo=UTC)
SUNDAY_2 = datetime(2026, 11, 29, 2, tzinfo=UTC)
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Example:
    model: str
    counts: TokenCounts
    total: str
    saved: str
    moment: datetime = SUNDAY_NOON
    terms: tuple[str, ...] = ()


EXAMPLES = {
    # 500·4 + 90,000·0.2 + 800·20 = 2,000 + 18,000 + 16,000 = 36,000
    # without: 90,500·4 + 16,000 = 378,000
    "Anthropic, a long prefix is read": Example(
        "claude-opus-5-5", TokenCounts(uncached=500, read=90_000, output=800), "0.036", "0.342"
    ),
    # 123·5 + 5,000·0.5 + 10,000·6.25 + 20,000·10 + 77·25 = 615 + 2,500 + 62,500 + 200,000 + 1,925
    # = 267,540; without: 35,123·5 + 1,925 = 177,540
    "Anthropic, both writes cost more than they save at first": Example(
        "claude-opus-5",
        TokenCounts(uncached=123, read=5_000, write_short=10_000, write_long=20_000, output=77),
        "0.26754",
        "-0.09",
    ),
    # above 100,000: 1·0.5 + 100,000·0.05 + 333·2.5 = 0.5 + 5,000 + 832.5 = 5,833
    # without: 100,001·0.5 + 832.5 = 50,833
    "Anthropic, one token above the tier": Example(
        "claude-haiku-5-5", TokenCounts(uncached=1, read=100_000, output=333), "0.005833", "0.045"
    ),
    # (1,000·2.5 + 10·10)·0.5·1.1 = 2,600·0.55 = 1,430; without: (1,000·2 + 100)·0.55 = 1,155
    "Anthropic, batch in the US": Example(
        "claude-sonnet-5-5",
        TokenCounts(write_short=1_000, output=10),
        "0.00143",
        "-0.000275",
        terms=("batch", "us-only"),
    ),
    # 272,000·2 + 1,000·10 = 554,000
    "OpenAI, at the tier": Example(
        "gpt-6.1-sol", TokenCounts(uncached=272_000, output=1_000), "0.554", "0"
    ),
    # 72,001·4 + 200,000·0.2 + 1,000·15 = 288,004 + 40,000 + 15,000 = 343,004
    # without: 272,001·4 + 15,000 = 1,103,004
    "OpenAI, one token above the tier": Example(
        "gpt-6.1-sol",
        TokenCounts(uncached=72_001, read=200_000, output=1_000),
        "0.343004",
        "0.76",
    ),
    # 11·0.2 + 2,048·0.02 + 3,333·0.25 + 7·0.5 + 5·1.2 = 2.2 + 40.96 + 833.25 + 3.5 + 6 = 885.91
    # without: 5,399·0.2 + 6 = 1,085.8
    "OpenAI, writes for 30 minutes and for 12 hours": Example(
        "gpt-5.6-luna",
        TokenCounts(uncached=11, read=2_048, write_short=3_333, write_long=7, output=5),
        "0.00088591",
        "0.00019989",
    ),
    # no charge for writes: 1,000·2 + 512·0.5 + 1·8 = 2,264; without: 1,512·2 + 8 = 3,032
    "OpenAI, an older model": Example(
        "gpt-4.1", TokenCounts(read=512, write_short=1_000, output=1), "0.002264", "0.000768"
    ),
    # 250·1.25 + 150,000·0.125 + 400·10 + 150,000·1.5 h·4.5 = 312.5 + 18,750 + 4,000 + 1,012,500
    # = 1,035,562.5; without: 150,250·1.25 + 4,000 = 191,812.5
    "Google, an object kept for 90 minutes and used once": Example(
        "gemini-2.5-pro",
        TokenCounts(
            uncached=250,
            read=150_000,
            output=400,
            token_hours=token_hours(150_000, Decimal(5_400)),
        ),
        "1.0355625",
        "-0.84375",
    ),
    # above 200,000: 1·4 + 200,000·0.4 + 2·18 = 80,040; without: 200,001·4 + 36 = 800,040
    "Google, one token above the tier": Example(
        "gemini-3.1-pro-preview", TokenCounts(uncached=1, read=200_000, output=2), "0.08004", "0.72"
    ),
    # from 2027 on: 9·1.5 + 1,000·0.15 + 3·7.5 + 1,000·1 = 13.5 + 150 + 22.5 + 1,000 = 1,186
    # without: 1,009·1.5 + 22.5 = 1,536
    "Google, after the introductory prices": Example(
        "gemini-3.8-flash",
        TokenCounts(uncached=9, read=1_000, output=3, token_hours=Decimal(1_000)),
        "0.001186",
        "0.00035",
        NEW_YEAR,
    ),
    # peak: 777·0.3 + 64,000·0.006 + 1,234·1.2 = 233.1 + 384 + 1,480.8 = 2,097.9
    # without: 64,777·0.3 + 1,480.8 = 20,913.9
    "DeepSeek, peak": Example(
        "deepseek-flash",
        TokenCounts(uncached=777, read=64_000, output=1_234),
        "0.0020979",
        "0.018816",
        MONDAY_1,
    ),
    # 777·0.15 + 64,000·0.003 + 1,234·0.6 = 116.55 + 192 + 740.4 = 1,048.95
    # without: 64,777·0.15 + 740.4 = 10,456.95
    "DeepSeek, off-peak": Example(
        "deepseek-flash",
        TokenCounts(uncached=777, read=64_000, output=1_234),
        "0.00104895",
        "0.009408",
        MONDAY_4,
    ),
    # 3·0.66 + 128·0.022 + 1·1.98 = 1.98 + 2.816 + 1.98 = 6.776; without: 131·0.66 + 1.98 = 88.44
    "DeepSeek, the peak's hours on a Sunday": Example(
        "deepseek-v4-pro",
        TokenCounts(uncached=3, read=128, output=1),
        "0.000006776",
        "0.000081664",
        SUNDAY_2,
    ),
    # 100·3 + 100·6 + 100·0.3 + 1·15 = 945; without: 300·3 + 15 = 915
    "Kimi, a short write at the input price": Example(
        "kimi-k3",
        TokenCounts(read=100, write_short=100, write_long=100, output=1),
        "0.000945",
        "-0.00003",
    ),
    # 40·2.5 + 1,024·3.125 + 2,000·0.25 + 8·7.5 = 100 + 3,200 + 500 + 60 = 3,860
    # without: 3,064·2.5 + 60 = 7,720
    "Qwen, from our own table": Example(
        "qwen3.7-max",
        TokenCounts(uncached=40, read=2_000, write_short=1_024, output=8),
        "0.00386",
        "0.00386",
    ),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
@pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS.keys())
def test_a_bill_is_right_to_the_last_decimal(example: Example, book: object) -> None:
    prices = book.require(example.model)  # type: ignore[attr-defined]
    cost = request_cost(example.counts, prices, example.moment, example.terms)
    assert cost.total == Decimal(example.total)
    assert cost.saved == Decimal(example.saved)


def test_each_part_of_a_bill_stands_by_itself() -> None:
    rates = Rates(*map(Decimal, ("2", "10", "0.1", "2.5", "4", "1")))
    counts = TokenCounts(1_000, 2_000, 3_000, 4_000, 5_000, Decimal(6_000))
    cost = cost_of(counts, rates)
    assert (cost.input, cost.output) == (Decimal("0.002"), Decimal("0.05"))
    assert (cost.read, cost.write_short) == (Decimal("0.0002"), Decimal("0.0075"))
    assert (cost.write_long, cost.storage) == (Decimal("0.016"), Decimal("0.006"))


def test_an_unknown_price_makes_its_part_and_the_total_unknown_and_not_zero() -> None:
    rates = Rates(input=Decimal(1), output=Decimal(1))
    cost = cost_of(TokenCounts(uncached=5, read=5, output=5), rates)
    assert (cost.read, cost.total, cost.saved) == (None, None, None)
    assert cost.input == Decimal("0.000005")


def test_an_unknown_price_does_not_matter_where_nothing_was_used() -> None:
    rates = Rates(input=Decimal(1), output=Decimal(1))
    assert cost_of(TokenCounts(uncached=5, output=5), rates).total == Decimal("0.00001")


def test_a_long_write_is_unknown_where_only_the_short_one_is_sold() -> None:
    rates = Rates(input=Decimal(1), output=Decimal(1), write_short=Decimal("1.25"))
    assert cost_of(TokenCounts(write_long=1), rates).total is None


def test_a_free_model_costs_nothing_and_saves_nothing() -> None:
    cost = cost_of(TokenCounts(1, 2, 3, 4, 5, Decimal(6)), FREE)
    assert (cost.total, cost.saved) == (0, 0)


def test_token_hours_are_kept_to_the_millionth() -> None:
    assert token_hours(1_000, Decimal(3_600)) == Decimal(1_000)
    assert token_hours(1, Decimal(1)) == Decimal("0.000278")


def test_money_arithmetic_raises_rather_than_rounds() -> None:
    with pytest.raises(Inexact):
        EXACT.divide(Decimal(1), Decimal(3))


tokens = st.integers(0, 10**9)
price = st.decimals(0, 100, places=7)


@given(
    st.builds(Rates, price, price, price, price, price),
    st.lists(st.builds(TokenCounts, *[tokens] * 5)),
)
def test_the_bill_of_many_requests_is_the_bill_of_all_their_tokens(
    rates: Rates, requests: list[TokenCounts]
) -> None:
    bill = sum((cost_of(counts, rates) for counts in requests), Cost())
    assert bill == cost_of(sum(requests, TokenCounts()), rates)


@given(st.builds(Rates, price, price, price, price, price), st.builds(TokenCounts, *[tokens] * 5))
def test_total_and_saving_add_up_to_the_price_without_caching(
    rates: Rates, counts: TokenCounts
) -> None:
    cost = cost_of(counts, rates)
    assert cost.total is not None
    assert cost.saved is not None
    assert EXACT.add(cost.total, cost.saved) == cost.without_caching


def test_storage_that_nobody_asked_for_is_priced_and_is_no_request() -> None:
    stored = TokenCounts(token_hours=Decimal(1_000_000))
    alone = UsageRow("gemini-3.8-flash", SUNDAY_NOON, stored, served_here=False, requests=0)
    [bill] = bills([alone], book_without_package())
    assert (bill.priced, bill.unpriced) == (0, 0)
    assert bill.cost.storage == bill.cost.total
    assert bill.cost.total


def test_bills_are_by_model_and_leave_the_unpriced_apart() -> None:
    used = TokenCounts(uncached=500, read=90_000, output=800)
    rows = [
        UsageRow("claude-opus-5-5", SUNDAY_NOON, used, served_here=False),
        UsageRow("claude-opus-5-5", SUNDAY_NOON, used, served_here=False, terms=("batch",)),
        UsageRow("claude-opus-5-5", SUNDAY_NOON, None, served_here=False),
        UsageRow("nobody-knows", SUNDAY_NOON, used, served_here=False),
        UsageRow("my-model", SUNDAY_NOON, used),
    ]
    opus, mine, unknown = bills(rows, book_without_package())
    assert (opus.model, opus.priced, opus.unpriced) == ("claude-opus-5-5", 2, 1)
    assert opus.cost.total == Decimal("0.054")  # 0.036 and half of it
    assert opus.cost.saved == Decimal("0.513")
    assert opus.counts == used + used
    assert (mine.priced, mine.cost.total) == (1, 0)
    assert (unknown.priced, unknown.unpriced, unknown.counts) == (0, 1, TokenCounts())


def test_what_was_sent_for_the_cache_alone_counts_against_what_was_saved() -> None:
    """As in the break-even: an object that is made, kept an hour and read N times saves N − 1 − S − N·R."""
    million, hours = 1_000_000, Decimal(1_000_000)
    rows = [
        UsageRow(
            "gemini-2.5-flash",
            SUNDAY_NOON,
            TokenCounts(uncached=million, token_hours=hours),
            served_here=False,
            only_for_caching=True,
        ),
        *(
            UsageRow("gemini-2.5-flash", SUNDAY_NOON, TokenCounts(read=million), served_here=False)
            for _ in range(5)
        ),
    ]
    (bill,) = bills(rows, book_without_package())
    assert bill.cost.without_caching == Decimal("1.5")  # 5 × 0.3
    assert bill.cost.saved == Decimal("1.5") - (Decimal("0.3") + 1 + 5 * Decimal("0.03"))


def test_a_day_s_requests_are_each_priced_at_their_own_hour() -> None:
    used = TokenCounts(uncached=777, read=64_000, output=1_234)
    rows = [UsageRow("deepseek-flash", at, used, served_here=False) for at in (MONDAY_1, MONDAY_4)]
    (bill,) = bills(rows, book_without_package())
    assert bill.cost.total == Decimal("0.0020979") + Decimal("0.00104895")
