"""Where a request's tokens came from, and how each API dialect writes it down. Pure functions.

| dialect      | prompt total               | read from cache                       | written to cache      |
|--------------|----------------------------|---------------------------------------|-----------------------|
| OpenAI, chat | `prompt_tokens`, inclusive | `prompt_tokens_details.cached_tokens` | `…cache_write_tokens` |
| DeepSeek     | `prompt_tokens`, inclusive | `prompt_cache_hit_tokens` (and above) | not reported          |

"Inclusive" means that cached tokens are part of the total. Both rows are always sent together: price
extractors of either kind find their field. Unknown is not zero: what is not known is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ostinato.cache.report import CacheReport
from ostinato.cache.types import Tier


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One request, in tokens. The four prompt counters are disjoint and add up to the prompt.

    Attributes:
        uncached: prompt tokens computed at the ordinary rate.
        read_by_tier: prompt tokens reused, by the tier they were found in.
        write_short: prompt tokens written under a short-lived breakpoint.
        write_long: prompt tokens written under a long-lived breakpoint.
        output: generated tokens, of all answers together.
        reasoning: how many of them were reasoning, or None if that is not known.
    """

    uncached: int
    read_by_tier: Mapping[Tier, int] = field(default_factory=dict)
    write_short: int = 0
    write_long: int = 0
    output: int = 0
    reasoning: int | None = None

    @property
    def read(self) -> int:
        """Prompt tokens that were reused, over all tiers."""
        return sum(self.read_by_tier.values())

    @property
    def written(self) -> int:
        return self.write_short + self.write_long

    @property
    def prompt(self) -> int:
        """All tokens of the prompt."""
        return self.uncached + self.read + self.written


def usage_of(report: CacheReport, output: int) -> UsageRecord:
    """The record of one prompt, counted once however many answers were generated from it."""
    return UsageRecord(
        uncached=report.computed_tokens, read_by_tier=dict(report.read_by_tier), output=output
    )


def add_usage(records: Iterable[UsageRecord]) -> UsageRecord:
    """The sum over several prompts of one call; reasoning stays unknown unless all of them know it."""
    records = list(records)
    tiers: Counter[Tier] = Counter()
    for record in records:
        tiers.update(record.read_by_tier)
    reasoning = [record.reasoning for record in records]
    known = [tokens for tokens in reasoning if tokens is not None]
    return UsageRecord(
        uncached=sum(record.uncached for record in records),
        read_by_tier=dict(tiers),
        write_short=sum(record.write_short for record in records),
        write_long=sum(record.write_long for record in records),
        output=sum(record.output for record in records),
        reasoning=sum(known) if known and len(known) == len(reasoning) else None,
    )


def openai_usage(record: UsageRecord) -> dict[str, Any]:
    """The ``usage`` object of OpenAI's chat and text completions, with DeepSeek's two counters."""
    usage: dict[str, Any] = {
        "prompt_tokens": record.prompt,
        "completion_tokens": record.output,
        "total_tokens": record.prompt + record.output,
        "prompt_tokens_details": {
            "cached_tokens": record.read,
            "cache_write_tokens": record.written,
        },
        "prompt_cache_hit_tokens": record.read,
        "prompt_cache_miss_tokens": record.prompt - record.read,
    }
    if record.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": record.reasoning}
    return usage
