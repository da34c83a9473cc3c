"""Where a request's tokens came from, and how each API dialect writes it down. Pure functions.

| dialect      | all of the prompt           | read from the cache       | written to the cache          |
|--------------|-----------------------------|---------------------------|-------------------------------|
| OpenAI, chat | `prompt_tokens`, inclusive  | `…details.cached_tokens`  | `…details.cache_write_tokens` |
| Responses    | `input_tokens`, inclusive   | `…details.cached_tokens`  | the same, and by lifetime     |
| Anthropic    | three counters added up;    | `cache_read_input_tokens` | `cache_creation_input_tokens` |
|              | `input_tokens` is the rest  |                           | and by lifetime               |
| Gemini       | `promptTokenCount`, incl.   | `cachedContentTokenCount` | not reported                  |
| DeepSeek     | `prompt_tokens`, inclusive  | `prompt_cache_hit_tokens` | not reported                  |

"Inclusive" means that cached tokens are part of the total. OpenAI's and DeepSeek's chat rows are always sent
together: price extractors of either kind find their field. Unknown is not zero: what is not known is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.cache.report import CacheReport
from ostinato.cache.types import Tier
from ostinato.product.settle import Split


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """One request, in tokens. The four prompt counters are disjoint and add up to the prompt.

    Attributes:
        uncached: prompt tokens at the ordinary rate.
        read_by_tier: prompt tokens billed as read, by the tier they were found in; at most what was reused.
        write_short: prompt tokens written under a short-lived breakpoint.
        write_long: prompt tokens written under a long-lived breakpoint.
        output: generated tokens, of all answers together.
        reasoning: how many of them were reasoning, or None if that is not known.
        reused: prompt tokens that the engine did not compute, whatever the house rules bill as read; None if
            that is not known.
    """

    uncached: int
    read_by_tier: Mapping[Tier, int] = field(default_factory=dict)
    write_short: int = 0
    write_long: int = 0
    output: int = 0
    reasoning: int | None = None
    reused: int | None = None

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


TIER_ORDER = (Tier.DEVICE, Tier.RAM, Tier.DISK, Tier.REMOTE)
"""A prompt's head is found in the nearest tier, and what follows in ever farther ones."""


def usage_of(
    report: CacheReport, output: int, split: Split | None = None, reasoning: int | None = None
) -> TokenUsage:
    """The usage of one prompt, counted once however many answers were generated from it.

    Args:
        report: of the engine.
        output: generated tokens, of all answers together.
        split: as the house rules bill it; None: what was reused is read, the rest is uncached.
        reasoning: how many of `output` were thoughts, or None if that is not known.
    """
    if split is None:
        split = Split(report.cached_tokens, 0, 0, report.computed_tokens)
    return TokenUsage(
        uncached=split.uncached,
        read_by_tier=_first_tokens(report.read_by_tier, split.read),
        write_short=split.write_short,
        write_long=split.write_long,
        output=output,
        reasoning=reasoning,
        reused=report.cached_tokens,
    )


def _first_tokens(by_tier: Mapping[Tier, int], count: int) -> dict[Tier, int]:
    """The tiers that the first `count` of the reused tokens came from."""
    taken: dict[Tier, int] = {}
    for tier in TIER_ORDER:
        here = min(by_tier.get(tier, 0), count - sum(taken.values()))
        if here:
            taken[tier] = here
    return taken


def add_usage(records: Iterable[TokenUsage]) -> TokenUsage:
    """The sum over several prompts of one call; what one of them does not know stays unknown."""
    records = list(records)
    tiers: Counter[Tier] = Counter()
    for record in records:
        tiers.update(record.read_by_tier)
    return TokenUsage(
        uncached=sum(record.uncached for record in records),
        read_by_tier=dict(tiers),
        write_short=sum(record.write_short for record in records),
        write_long=sum(record.write_long for record in records),
        output=sum(record.output for record in records),
        reasoning=_sum_of_known([record.reasoning for record in records]),
        reused=_sum_of_known([record.reused for record in records]),
    )


def _sum_of_known(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def openai_usage(record: TokenUsage) -> dict[str, Any]:
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


def responses_usage(record: TokenUsage) -> dict[str, Any]:
    """The ``usage`` object of OpenAI's Responses."""
    return {
        "input_tokens": record.prompt,
        "input_tokens_details": {
            "cached_tokens": record.read,
            "cache_write_tokens": record.written,
            "cache_write_tokens_details": {
                "ttl_30m_tokens": record.write_short,
                "ttl_12h_tokens": record.write_long,
            },
        },
        "output_tokens": record.output,
        "output_tokens_details": {"reasoning_tokens": record.reasoning or 0},
        "total_tokens": record.prompt + record.output,
    }


def anthropic_usage(record: TokenUsage) -> dict[str, Any]:
    """The ``usage`` object of Anthropic's Messages; its three input counters are disjoint."""
    usage: dict[str, Any] = {
        "input_tokens": record.uncached,
        "cache_creation_input_tokens": record.written,
        "cache_read_input_tokens": record.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": record.write_short,
            "ephemeral_1h_input_tokens": record.write_long,
        },
        "output_tokens": record.output,
        "service_tier": "standard",
    }
    if record.reasoning is not None:
        usage["output_tokens_details"] = {"thinking_tokens": record.reasoning}
    return usage


def gemini_usage(record: TokenUsage) -> dict[str, Any]:
    """The ``usageMetadata`` object of Gemini; thoughts are not part of its candidates' tokens."""
    usage: dict[str, Any] = {
        "promptTokenCount": record.prompt,
        "candidatesTokenCount": record.output - (record.reasoning or 0),
        "totalTokenCount": record.prompt + record.output,
        "promptTokensDetails": _text_tokens(record.prompt),
    }
    if record.read:  # Gemini leaves the counter out where it is 0
        usage["cachedContentTokenCount"] = record.read
        usage["cacheTokensDetails"] = _text_tokens(record.read)
    if record.reasoning is not None:
        usage["thoughtsTokenCount"] = record.reasoning
    return usage


def _text_tokens(count: int) -> list[dict[str, Any]]:
    return [{"modality": "TEXT", "tokenCount": count}]
