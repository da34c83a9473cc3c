"""Guards the accounting: the four prompt counters are disjoint, sums are exact, unknown is not zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostinato.api.usage import UsageRecord, add_usage, openai_usage, usage_of
from ostinato.cache.report import CacheReport
from ostinato.cache.types import Tier

counts = st.integers(0, 10**6)
records = st.builds(
    UsageRecord,
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
    assert record == UsageRecord(uncached=3, read_by_tier={Tier.DEVICE: 4, Tier.DISK: 3}, output=5)
    assert record.prompt == 10


@given(records)
def test_openai_totals_include_what_was_read_and_written(record: UsageRecord) -> None:
    usage = openai_usage(record)
    assert usage["prompt_tokens"] == (
        record.uncached + record.read + record.write_short + record.write_long
    )
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == record.read
    hit, miss = usage["prompt_cache_hit_tokens"], usage["prompt_cache_miss_tokens"]
    assert (hit, hit + miss) == (record.read, usage["prompt_tokens"])


@given(st.lists(records, max_size=5))
def test_a_sum_of_records_adds_every_counter(several: list[UsageRecord]) -> None:
    total = add_usage(several)
    for name in ("uncached", "read", "written", "prompt", "output"):
        assert getattr(total, name) == sum(getattr(record, name) for record in several)
    for tier in Tier:
        parts = [record.read_by_tier.get(tier, 0) for record in several]
        assert total.read_by_tier.get(tier, 0) == sum(parts)


def test_unknown_reasoning_is_left_out_and_zero_is_not() -> None:
    assert "completion_tokens_details" not in openai_usage(UsageRecord(uncached=1))
    known = openai_usage(UsageRecord(uncached=1, reasoning=0))
    assert known["completion_tokens_details"] == {"reasoning_tokens": 0}
    half_known = add_usage([UsageRecord(uncached=1, reasoning=2), UsageRecord(uncached=1)])
    assert half_known.reasoning is None
