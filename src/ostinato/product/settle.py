"""settle: once the engine has said what it reused, what a request read and wrote.

      0 ────────── A ─────────── B ─────────── C ────────── end of the prompt
      │    read    │  1h write   │  5m write   │  uncached  │

A is the highest hit, B the highest long-lived breakpoint behind it, C the last breakpoint (Anthropic's billing
positions; OpenAI's two lifetimes fall under the same rule). An entry counts as a hit only as far as the engine
reused its K/V: a read never says more than `CacheReport.cached_tokens`, and an entry whose K/V was evicted is a
new write.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ostinato.cache.report import CacheReport
from ostinato.cache.types import TenantId, TokenArray
from ostinato.product.entries import Entry, EntryBook, EntryKey
from ostinato.product.plan import CachePlan, at_least_minimum
from ostinato.product.rules import Automatic, HouseRules, ReadRule
from ostinato.product.segments import TTLClass


@dataclass(frozen=True, slots=True)
class Split:
    """A prompt's tokens, in four disjoint parts that add up to it.

    Attributes:
        read: billed as read from the cache; at most what the engine reused.
        write_short: billed as written under a short-lived breakpoint.
        write_long: billed as written under a long-lived breakpoint.
        uncached: ordinary input.
    """

    read: int
    write_short: int
    write_long: int
    uncached: int

    @property
    def prompt(self) -> int:
        return self.read + self.write_short + self.write_long + self.uncached


def settle(plan: CachePlan, report: CacheReport, granularity: int = 1) -> Split:
    """The billing positions of one request.

    Args:
        plan: made before it ran.
        report: of the engine.
        granularity: tokens of an entry's end that may be missing without it being lost: K/V may be kept, or
            come back from a lower tier, in whole blocks.
    """
    read = position_a(plan, report, granularity)
    if not plan.rules.bills_writes:
        return Split(read, 0, 0, report.prompt_tokens - read)
    long_end = position_b(plan, read)
    last = position_c(plan, long_end)
    return Split(
        read=read,
        write_short=last - long_end,
        write_long=long_end - read,
        uncached=report.prompt_tokens - last,
    )


def position_a(plan: CachePlan, report: CacheReport, granularity: int = 1) -> int:
    """A: the tokens that were read."""
    if plan.rules.read_rule is ReadRule.REUSED:
        reused = at_least_minimum(plan.rules, [report.cached_tokens])
        return rounded(plan.rules, max(reused, default=0))
    hit = highest_hit(plan, report, granularity)
    return 0 if hit is None else rounded(plan.rules, min(hit.num_tokens, report.cached_tokens))


def position_b(plan: CachePlan, read: int) -> int:
    """B: the highest long-lived breakpoint after A, or A."""
    ends = [write.num_tokens for write in plan.writes if write.ttl is TTLClass.LONG]
    return max([read, *ends])


def position_c(plan: CachePlan, long_end: int) -> int:
    """C: the last breakpoint, or B."""
    return max([long_end, *(write.num_tokens for write in plan.writes)])


def rounded(rules: HouseRules, tokens: int) -> int:
    """A read as the house reports it."""
    return tokens - tokens % rules.rounding


def highest_hit(plan: CachePlan, report: CacheReport, granularity: int = 1) -> Entry | None:
    """The longest entry whose K/V the engine still had; None if there is none."""
    for entry in plan.reads:
        if _is_backed(entry, report, granularity):
            return entry
    return None


def record(
    plan: CachePlan, report: CacheReport, book: EntryBook, tenant: TenantId, granularity: int = 1
) -> None:
    """The response has begun: write what was planned, refresh what was read, forget what is gone.

    What a request found when it began it has read, even if the entry ended while the request waited: lifetimes
    count from the start of the request.

    An entry inside the prefix that was read was used with it, so it is refreshed too; its lifetime class stays
    what it was when it was written and billed. Where a read is whatever was reused there are no entries.
    """
    if not plan.rules.has_entries:
        return
    hit = highest_hit(plan, report, granularity)
    read = 0 if hit is None else hit.num_tokens
    for entry in plan.reads:
        if _is_backed(entry, report, granularity):
            if book.find(entry.key) is None:  # it has ended since
                book.put(entry.refreshed(plan.started))
            else:
                book.refresh(entry.key, plan.started)
        else:
            book.forget(entry.key)
    for write in plan.writes:
        if write.num_tokens > read or book.find(write.key) is None:
            book.put(_entry(plan, write.key, write.num_tokens, write.ttl, tenant))
        else:
            book.refresh(write.key, plan.started)
    if plan.rules.automatic is Automatic.FULL_UNITS:
        _store_common_prefix(plan, report, book, tenant)


def record_output(
    plan: CachePlan, output_token_ids: TokenArray, book: EntryBook, tenant: TenantId
) -> None:
    """The answer has ended: DeepSeek stores a unit there. Other rules do nothing.

    Args:
        plan: of the request.
        output_token_ids: of the answer; the last one was sampled and never computed.
        book: of entries.
        tenant: whose request it was.
    """
    if plan.rules.automatic is not Automatic.FULL_UNITS or not len(output_token_ids):
        return
    computed = np.asarray(output_token_ids[:-1], dtype=np.int32)
    unit = plan.rules.unit_tokens
    end = plan.num_tokens + len(computed)
    end -= end % unit
    if end < plan.rules.min_tokens:
        return
    key = plan.digests.extended(computed).keys([end])[end]
    book.put(_entry(plan, key, end, TTLClass.SHORT, tenant))


def _store_common_prefix(
    plan: CachePlan, report: CacheReport, book: EntryBook, tenant: TenantId
) -> None:
    """The engine reused further than any unit reaches: two prompts have that much in common, so it is stored.

    The next request that begins so hits it; this one did not.
    """
    common = report.cached_tokens - report.cached_tokens % plan.rules.unit_tokens
    for length, key in plan.digests.keys(at_least_minimum(plan.rules, [common])).items():
        if book.find(key) is None:
            book.put(_entry(plan, key, length, TTLClass.SHORT, tenant))


def _is_backed(entry: Entry, report: CacheReport, granularity: int) -> bool:
    """Whether the engine reused the entry's K/V, at most its last partial block excepted."""
    needed = entry.num_tokens - entry.num_tokens % granularity
    return report.cached_tokens > 0 and report.cached_tokens >= needed


def _entry(
    plan: CachePlan, key: EntryKey, num_tokens: int, ttl_class: TTLClass, tenant: TenantId
) -> Entry:
    ttl = plan.rules.ttl_seconds[ttl_class]
    bound = plan.rules.max_lifetime.get(ttl_class)
    return Entry(
        key=key,
        num_tokens=num_tokens,
        ttl_class=ttl_class,
        ttl=ttl,
        expires_at=plan.started + ttl,
        ends_at=None if bound is None else plan.started + bound,
        tenant=tenant,
    )
