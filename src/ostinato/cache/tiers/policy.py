"""The choices that an operator has: when to write down, how long to wait for a prefetch."""

from __future__ import annotations

from enum import StrEnum

from ostinato.clock import Clock


class WritePolicy(StrEnum):
    """When a block is copied to the tiers below. All write what is evicted and not below yet, so none loses it;
    they differ in what is written *earlier*, and so in what survives a crash. (HiCache's three.)"""

    WRITE_BACK = "write_back"
    """Nothing: least writing."""
    WRITE_THROUGH = "write_through"
    """Every block as soon as it is full: survives most, writes most."""
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    """What a second request uses: what was useful once is likely to be again."""

    @property
    def on_publish(self) -> bool:
        """Write a block when it is full."""
        return self is WritePolicy.WRITE_THROUGH

    @property
    def on_reuse(self) -> bool:
        """Write a block when a second request uses it."""
        return self is not WritePolicy.WRITE_BACK


class PrefetchStop(StrEnum):
    """What a request does whose turn comes before its prefetch has ended."""

    BEST_EFFORT = "best_effort"
    """It starts at once: what has arrived comes from RAM, the rest from where it lies."""
    WAIT = "wait"
    """It lets others go first until the prefetch has ended."""
    TIMEOUT = "timeout"
    """It does so for `TIMEOUT_SECONDS` and `TIMEOUT_SECONDS_PER_KTOKEN`, then starts."""


TIMEOUT_SECONDS = 2.0
TIMEOUT_SECONDS_PER_KTOKEN = 0.1
TIMEOUT_MOST_SECONDS = 30.0
"""Numbers of SGLang's HiCache."""


def prefetch_deadline(stop: PrefetchStop, num_tokens: int, clock: Clock) -> float:
    """Until when (monotonic seconds) a request waits for a prefetch of `num_tokens` that starts now."""
    if stop is PrefetchStop.BEST_EFFORT:
        return clock.monotonic()
    if stop is PrefetchStop.WAIT:
        return float("inf")
    patience = TIMEOUT_SECONDS + TIMEOUT_SECONDS_PER_KTOKEN * num_tokens / 1024
    return clock.monotonic() + min(patience, TIMEOUT_MOST_SECONDS)
