"""CacheReport: the one truth about where a request's prompt tokens came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ostinato.cache.tiers.cost import LoadDecision
from ostinato.cache.types import MissReason, Tier


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Filled once, at the request's *first* admission; usage, metrics and explanations read it.

    A preempted request that resumes usually finds its own blocks again: such hits are counted by the
    scheduler as resumed tokens and never enter a report.

    Attributes:
        prompt_tokens: tokens of the prompt.
        read_by_tier: prompt tokens whose K/V was reused, by the tier they were found in.
        copied_tokens: how many of them lay inside a block and were copied or taken over with it.
        miss_reason: why reuse ended at `cached_tokens`.
        load: what was found below the device, and the figures by which it was loaded or computed; None if
            there is nothing below.
    """

    prompt_tokens: int
    read_by_tier: Mapping[Tier, int] = field(default_factory=dict)
    copied_tokens: int = 0
    miss_reason: MissReason = MissReason.COLD
    load: LoadDecision | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed."""
        return sum(self.read_by_tier.values())

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that had to be computed."""
        return self.prompt_tokens - self.cached_tokens
