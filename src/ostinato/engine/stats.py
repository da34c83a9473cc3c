"""What the engine counts. Tokens, each once: a preempted request that resumes is not admitted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostinato.cache.pool import PoolStats
from ostinato.cache.tiers.hierarchy import HierarchyStats
from ostinato.engine.outputs import FinishReason


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot between two steps; immutable, so any thread may read it.

    Attributes:
        running: sequences that hold blocks.
        waiting: sequences that wait, preempted ones included; a request for n answers counts once.
        blocks: the pool's blocks by state.
        prompt_tokens_total: prompt tokens of all admitted requests.
        cached_tokens_total: how many of those were found in the cache.
        computed_tokens_total: tokens that went through the model: prefill, decode and recomputation.
        resumed_tokens_total: tokens that preempted requests found in the cache when they resumed.
        generated_tokens_total: sampled tokens.
        preemptions_total: times a running request had to give its blocks up.
        requests_finished_total: finished answers by reason; a request for n answers counts n times.
        steps_total: steps that computed something.
        allocated_slots: token slots in the blocks of running requests.
        used_slots: how many of them hold K/V. What two requests share counts for both, in either number.
        integrity_errors_total: broken invariants seen; always a bug.
        loading: requests that hold blocks and wait for K/V from a lower tier.
        tiers: what lies below the device; None if nothing does.
    """

    running: int
    waiting: int
    blocks: PoolStats
    prompt_tokens_total: int
    cached_tokens_total: int
    computed_tokens_total: int
    resumed_tokens_total: int
    generated_tokens_total: int
    preemptions_total: int
    requests_finished_total: Mapping[FinishReason, int]
    steps_total: int
    allocated_slots: int
    used_slots: int
    integrity_errors_total: int
    loading: int = 0
    tiers: HierarchyStats | None = None

    @property
    def waste(self) -> float:
        """Share of the allocated slots that holds nothing, 0 to 1."""
        if self.allocated_slots == 0:
            return 0.0
        return 1.0 - self.used_slots / self.allocated_slots
