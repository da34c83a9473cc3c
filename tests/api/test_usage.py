"""Guards the accounting: the four prompt counters are disjoint, sums are exact, unknown is not zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.api.usage import (
    TokenUsage,
    add_usage,
    anthropic_usage,
    gemini_usage,
    openai_usage,
    responses_usage,
    usage_of,
)
from ostinato.cache.report import CacheReport
from ostinato.cache.types import Tier
from ostinato.product.settle import Split

counts = st.integers(0, 10**6)
records = st.builds(
    TokenUsage,
    uncached=counts,
    read_by_tier=st.dictionaries(st.sampled_from(Tier), counts),
    write_short=counts,
    write_long=counts,
    output=counts,
    reasoning=st.none() | counts,
)


def test_a_report_becomes_a_record_with_the_tier_it_names() -> None:
    report = CacheReport(prompt_tokens=10, read_by_tier={Tier.DEVICE: 4, Tier.DISK: 3})
    record = usage_of(report, output=5)
    assert record == TokenUsage(
        uncached=3, read_by_tier={Tier.DEVICE: 4, Tier.DISK: 3}, output=5, reused=7
    )
    assert record.prompt == 10


@given(records)
def test_openai_totals_include_what_was_read_and_written(record: TokenUsage) -> None:
    usage = openai_usage(record)
    assert usage["prompt_tokens"] == (
        record.uncached + record.read + record.write_short + record.write_long
    )
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == record.read
    hit, miss = usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"]
    assert (hit, hit + miss) == (record.read, usage["prompt_tokens"])


@given(st.lists(records, max_size=5))
def test_a_sum_of_records_adds_every_counter(several: list[TokenUsage]) -> None:
    total = add_usage(several)
    for name in ("uncached", "read", "written", "prompt", "output"):
        assert getattr(total, name) == sum(getattr(record, name) for record in several)
    for tier in Tier:
        parts = [record.read_by_tier.get(tier, 0) for record in several]
        assert total.read_by_tier.get(tier, 0) == sum(parts)


def test_unknown_reasoning_is_left_out_and_zero_is_not() -> None:
    assert "completion_tokens_details" not in openai_usage(TokenUsage(uncached=1))
    known = openai_usage(TokenUsage(uncached=1, reasoning=0))
    assert known["completion_tokens_details"] == {"reasoning_tokens": 0}
    half_known = add_usage([TokenUsage(uncached=1, reasoning=2), TokenUsage(uncached=1)])
    assert half_known.reasoning is None


def test_a_read_smaller_than_the_reuse_comes_from_the_nearest_tiers() -> None:
    report = CacheReport(10, {Tier.DISK: 3, Tier.DEVICE: 4})
    record = usage_of(report, output=0, split=Split(5, 2, 1, 2))
    assert record.read_by_tier == {Tier.DEVICE: 4, Tier.DISK: 1}
    assert (record.reused, record.prompt) == (7, 10)
    assert usage_of(report, 0, Split(3, 0, 0, 7)).read_by_tier == {Tier.DEVICE: 3}


@given(records)
def test_every_dialect_says_the_same_about_the_same_tokens(record: TokenUsage) -> None:
    chat, responses = openai_usage(record), responses_usage(record)
    anthropic, gemini = anthropic_usage(record), gemini_usage(record)
    inputs = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert sum(anthropic[name] for name in inputs) == chat["prompt_tokens"]
    assert responses["input_tokens"] == gemini["promptTokenCount"] == chat["prompt_tokens"]
    reads = {
        chat["prompt_tokens_details"]["cached_tokens"],
        responses["input_tokens_details"]["cached_tokens"],
        anthropic["cache_read_input_tokens"],
        gemini.get("cachedContentTokenCount", 0),
    }
    assert reads == {record.read}
    written = responses["input_tokens_details"]
    assert sum(written["cache_write_tokens_details"].values()) == written["cache_write_tokens"]
    assert sum(anthropic["cache_creation"].values()) == anthropic["cache_creation_input_tokens"]
    assert chat["total_tokens"] == responses["total_tokens"] == gemini["totalTokenCount"]


def test_geminis_candidates_are_what_was_not_thought() -> None:
    usage = gemini_usage(TokenUsage(uncached=1, output=9, reasoning=4))
    assert (usage["candidatesTokenCount"], usage["thoughtsTokenCount"]) == (5, 4)
    assert "cachedContentTokenCount" not in usage
