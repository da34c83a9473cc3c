"""Guards prices against the wrong hour, day, tier, vendor or source, and names against near misses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from genai_prices import Usage
from genai_prices.data import providers
from genai_prices.types import TimeOfDateConstraint

from ostinato.errors import ConfigError, InvalidRequestError, ModelNotFoundError
from ostinato.ledger.prices import Band, Layer, ModelPrices, Period, Rate, Window
from ostinato.ledger.prices_book import PriceBook, load_book
from ostinato.ledger.prices_genai import FIRST_PARTY, MaintainedPrices
from ostinato.ledger.prices_table import our_table
from tests.ledger.price_books import BOOKS, SUNDAY_NOON, book_with_package, book_without_package

ROOT = Path(__file__).parents[2]
MONDAY = date(2026, 11, 30)
EITHER_BOOK = pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS.keys())


def at(hour: int, minute: int = 0, second: int = 0, day: date = MONDAY) -> datetime:
    return datetime.combine(day, time(hour, minute, second), UTC)


@EITHER_BOOK
@pytest.mark.parametrize(
    ("moment", "dollars"),
    [
        (at(0, 59, 59), "0.15"),
        (at(1), "0.30"),
        (at(3, 59, 59), "0.30"),
        (at(4), "0.15"),
        (at(5, 59, 59), "0.15"),
        (at(6), "0.30"),
        (at(9, 59, 59), "0.30"),
        (at(10), "0.15"),
        (at(1, day=MONDAY + timedelta(days=4)), "0.30"),
        (at(1, day=MONDAY + timedelta(days=5)), "0.15"),
        (at(6, day=MONDAY - timedelta(days=1)), "0.15"),
    ],
)
def test_peak_hours_begin_and_end_to_the_second_and_spare_the_weekend(
    book: PriceBook, moment: datetime, dollars: str
) -> None:
    assert book.require("deepseek-flash").rates_at(moment).input == Decimal(dollars)


def test_the_time_zone_of_the_asker_does_not_matter() -> None:
    beijing = timezone(timedelta(hours=8))
    prices = BOOKS["without it"].require("deepseek-v4-pro")
    assert prices.rates_at(datetime(2026, 11, 30, 9, tzinfo=beijing)).input == Decimal("1.32")
    assert prices.rates_at(datetime(2026, 11, 30, 12, tzinfo=beijing)).input == Decimal("0.66")


@EITHER_BOOK
@pytest.mark.parametrize(
    ("day", "hour", "dollars"),
    [
        (date(2026, 8, 16), 2, "0.435"),  # flat until then
        (date(2026, 8, 17), 2, "1.32"),
        (date(2026, 8, 22), 2, "1.32"),  # a Saturday, before weekends became off-peak
        (date(2026, 8, 23), 2, "0.66"),
    ],
)
def test_dated_prices_begin_on_their_day(
    book: PriceBook, day: date, hour: int, dollars: str
) -> None:
    assert book.require("deepseek-v4-pro").rates_at(at(hour, day=day)).input == Decimal(dollars)


def test_a_moment_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        BOOKS["without it"].require("gpt-4o").rates_at(datetime(2026, 11, 30))


def test_a_window_past_midnight_belongs_to_the_day_on_which_it_starts() -> None:
    friday_night = Window(time(22), time(2), frozenset({5}))
    friday = date(2026, 12, 4)
    assert friday_night.contains(at(23, day=friday))
    assert friday_night.contains(at(1, 59, 59, day=friday + timedelta(days=1)))
    assert not friday_night.contains(at(2, day=friday + timedelta(days=1)))
    assert not friday_night.contains(at(1, day=friday))


@EITHER_BOOK
@pytest.mark.parametrize(
    ("model", "above", "below_dollars", "above_dollars"),
    [
        ("gpt-6.1-sol", 272_000, ("2", "10", "0.1", "2.5", "5"), ("4", "15", "0.2", "5", "10")),
        ("claude-haiku-5-5", 100_000, ("0.1", "0.5", "0.01"), ("0.5", "2.5", "0.05")),
        ("gemini-2.5-pro", 200_000, ("1.25", "10", "0.125"), ("2.5", "15", "0.25")),
        ("grok-4.7", 199_999, ("2", "6", "0.5"), ("4", "12", "1")),
    ],
)  # fmt: skip
def test_a_long_prompt_pays_its_tier_from_one_token_above(
    book: PriceBook, model: str, above: int, below_dollars: tuple[str], above_dollars: tuple[str]
) -> None:
    prices = book.require(model)
    kinds = (Rate.INPUT, Rate.OUTPUT, Rate.READ, Rate.WRITE_SHORT, Rate.WRITE_LONG)
    for tokens, dollars in ((above, below_dollars), (above + 1, above_dollars)):
        rates = prices.rates_at(SUNDAY_NOON, tokens)
        for kind, expected in zip(kinds, dollars, strict=False):
            assert rates.of(kind) == Decimal(expected)


def test_our_table_says_the_same_as_the_package_where_both_have_a_model() -> None:
    ours, both = BOOKS["without it"], BOOKS["with the package"]
    compared = 0
    for prices in ours.models():
        other = both.require(f"{prices.provider}/{prices.model}")
        for tokens in (0, 100_001, 200_001, 272_001, 600_000):
            assert prices.rates_at(SUNDAY_NOON, tokens) == other.rates_at(SUNDAY_NOON, tokens), (
                prices.model
            )
            compared += 1
    assert compared > 250


def test_a_bill_agrees_with_the_package_s_own_calculator_for_all_its_models() -> None:
    bare = MaintainedPrices()
    usage = Usage(input_tokens=250_000, cache_read_tokens=240_000, output_tokens=1_000)
    compared = 0
    for provider in (p for p in providers if p.id in FIRST_PARTY):
        for info in provider.models:
            found = bare.find(provider.id, info.id)
            assert found is not None
            moment = at(2)
            rates = ModelPrices(provider.id, info.id, found.layers).rates_at(moment, 250_000)
            assert found.model == info.id
            if None in (rates.input, rates.output, rates.read):
                continue
            package = info.calc_price(usage, provider, genai_request_timestamp=moment)
            tokens = (10_000, 240_000, 1_000)
            dollars = (rates.input, rates.read, rates.output)
            total = sum(n * d for n, d in zip(tokens, dollars, strict=True) if d is not None)
            assert total / 1_000_000 == package.total_price, info.id
            compared += 1
    assert compared > 100


def test_the_package_s_daily_windows_are_all_in_utc_as_ours_are() -> None:
    for provider in providers:
        for info in provider.models:
            for price in info.prices if isinstance(info.prices, list) else ():
                if isinstance(price.constraint, TimeOfDateConstraint):
                    for end in (price.constraint.start_time, price.constraint.end_time):
                        assert end.utcoffset() in (None, timedelta(0)), info.id


def test_every_row_of_our_table_has_a_source_and_a_day() -> None:
    table = our_table()
    for row in (*table.overrides, *table.fallbacks):
        for layer in row.layers:
            assert layer.source
            assert layer.as_of is not None
            assert layer.as_of <= date(2026, 11, 30)


@EITHER_BOOK
@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("claude-opus-5-5", "anthropic", "claude-opus-5-5"),
        ("Anthropic/Claude-Opus-5-5", "anthropic", "claude-opus-5-5"),
        ("claude-haiku-4-5-20251001", "anthropic", "claude-haiku-4-5"),
        ("gpt-6.1-sol-2026-11-01", "openai", "gpt-6.1-sol"),
        ("qwen3.8-flash", "alibaba", "qwen3.8-flash"),
        ("glm-5.3", "zai", "glm-5.3"),
    ],
)
def test_a_model_is_found_by_its_name_its_version_and_its_provider(
    book: PriceBook, name: str, provider: str, model: str
) -> None:
    found = book.require(name)
    assert (found.provider, found.model.lower()) == (provider, model)


@EITHER_BOOK
@pytest.mark.parametrize("name", ["claude-opus-55", "anthropic/claude-opus-55", "gpt-61-sol"])
def test_an_unknown_model_is_refused_with_the_names_near_it(book: PriceBook, name: str) -> None:
    near = "gpt-6.1-sol" if name.startswith("gpt") else "claude-opus-5-5"
    with pytest.raises(ModelNotFoundError, match=near):
        book.require(name)
    assert book.get(name) is None


def test_without_the_package_the_message_says_how_to_get_it() -> None:
    with pytest.raises(ModelNotFoundError, match=r"ostinato\[prices\]"):
        book_without_package().require("command-a-03-2025")


def test_every_model_that_is_listed_can_be_asked_for() -> None:
    book = BOOKS["with the package"]
    for prices in book.models():
        assert book.require(f"{prices.provider}/{prices.model}").model == prices.model


def test_a_term_that_is_not_sold_is_refused_with_those_that_are() -> None:
    prices = BOOKS["without it"].require("claude-opus-5")
    with pytest.raises(InvalidRequestError, match="batch, us-only, fast"):
        prices.rates_at(SUNDAY_NOON, terms=["turbo"])


def test_batch_of_an_older_model_is_not_guessed() -> None:
    with pytest.raises(InvalidRequestError, match="none"):
        BOOKS["without it"].require("gpt-4.1").rates_at(SUNDAY_NOON, terms=["batch"])


@EITHER_BOOK
def test_storage_and_the_ttl_of_writes_come_from_our_table(book: PriceBook) -> None:
    assert book.require("gemini-2.5-pro").rates_at(SUNDAY_NOON).storage == Decimal("4.5")
    assert book.require("gemini-3.8-flash").rates_at(SUNDAY_NOON).storage == Decimal("0.5")
    assert book.require("gemini-4-argon").rates_at(SUNDAY_NOON).storage is None
    assert book.require("gpt-5.6").ttls.long == 43_200
    assert book.require("claude-opus-5").ttls.short == 300
    assert book.require("doubao-seed-2-1-pro-260915").rates_at(SUNDAY_NOON).storage is None


def test_a_period_that_has_not_begun_says_nothing() -> None:
    later = Period((Band(fixed={Rate.INPUT: Decimal(1)}),), since=date(2030, 1, 1))
    prices = ModelPrices("us", "m", (Layer((later,), "test"),))
    assert prices.rates_at(SUNDAY_NOON).input is None


OPERATOR = """
[[model]]
models = ["my-model"]
input = 0.1
output = 0.40
read = { times_input = 0.1 }
write_short = { times_input = 1.25 }
over = [{ above = 1000, input = 0.2 }]

[[model]]
models = ["claude-*-local"]
like = "anthropic/claude-opus-5-5"
output = 0
"""


@pytest.fixture
def operator_file(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(OPERATOR, encoding="utf-8")
    return path


def test_the_operator_prices_models_served_here(operator_file: Path) -> None:
    book = book_without_package(operator_file)
    rates = book.served_here("My-Model").rates_at(SUNDAY_NOON)
    assert rates.input == Decimal("0.1")  # not the binary fraction next to it
    assert (rates.read, rates.write_short) == (Decimal("0.01"), Decimal("0.125"))
    assert (rates.write_long, rates.storage) == (None, None)
    assert book.require("my-model").rates_at(SUNDAY_NOON, 1_001).input == Decimal("0.2")
    assert "my-model" in {prices.model for prices in book.models()}


def test_a_local_model_can_cost_what_another_costs_but_for_one_price(operator_file: Path) -> None:
    prices = book_without_package(operator_file).served_here("claude-tiny-local")
    rates = prices.rates_at(SUNDAY_NOON, terms=["batch"])
    assert (rates.input, rates.read, rates.output) == (Decimal(2), Decimal("0.1"), 0)
    assert prices.ttls.long == 3_600


def test_a_period_of_a_row_changes_what_it_names_and_the_multiples_follow(tmp_path: Path) -> None:
    table = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")
    path = tmp_path / "prices.toml"
    path.write_text(table.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    prices = book_without_package(path).served_here("qwen2.5-0.5b")
    day, night = datetime(2027, 1, 5, 12, tzinfo=UTC), datetime(2027, 1, 5, 23, tzinfo=UTC)
    assert prices.rates_at(day).read == Decimal("0.01")
    cheaper = prices.rates_at(night)
    assert (cheaper.input, cheaper.read) == (Decimal("0.05"), Decimal("0.005"))
    assert cheaper.output == Decimal("0.40")
    assert prices.rates_at(day, 32_001).write_long == Decimal("0.40")
    assert prices.rates_at(SUNDAY_NOON).input == Decimal("0.10")  # not yet in 2026


def test_a_model_served_here_that_nobody_priced_is_free_and_a_vendor_s_is_unknown() -> None:
    book = book_without_package()
    assert book.served_here("smollm2-135m-instruct").rates_at(SUNDAY_NOON).input == 0
    assert book.get("smollm2-135m-instruct") is None


@pytest.mark.parametrize("load", [book_with_package, book_without_package])
def test_a_row_like_a_model_without_prices_is_refused_when_the_file_is_read(
    tmp_path: Path, load: Callable[[Path], PriceBook]
) -> None:
    path = tmp_path / "prices.toml"
    rows = "[[model]]\nmodels = ['mine']\ninput = 1\n[[model]]\nmodels = ['lost-*']\nlike = 'claude-opus-99'"
    path.write_text(rows, encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert f"{path}: model.1: like is 'claude-opus-99'" in str(refused.value)
    assert "near names: claude-opus" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[model]]\nmodels = ['m']\ninput = -1", "greater than or equal to 0"),
        ("[[model]]\nmodels = ['m']\nprice = 1", "model.0.price"),
        ("[[model]]\nmodels = []", "models"),
        ("[[model", "not valid TOML"),
        ("[[model]]\nmodels = ['m']\ninput = nan", "model.0.input"),
    ],
)
def test_a_wrong_price_table_is_refused_with_the_place(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=words):
        load_book(path)


def test_a_missing_price_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the price table"):
        load_book(tmp_path / "none.toml")
