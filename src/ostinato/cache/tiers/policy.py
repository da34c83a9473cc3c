"""When to write down, how long to wait for a prefetch (both are an operator's choices), and for a load."""

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


LEAST_PATIENCE_SECONDS = 0.25
"""No load is stopped before that: a machine may be busy for so long."""
PATIENCE_FACTOR = 2.0
"""A load may take so many times what was expected before its progress is looked at."""
PATIENCE_FACTOR_UNKNOWN = 8.0
"""So many where nobody knows how long computing takes."""


def load_patience(load_seconds: float, compute_seconds: float | None) -> float:
    """How long a request waits before it asks whether its load gets on.

    Args:
        load_seconds: what the load was expected to take.
        compute_seconds: what computing the same was expected to take; None if no prefill was measured yet.
    """
    patience = PATIENCE_FACTOR * load_seconds
    if compute_seconds is not None:
        patience = min(patience, compute_seconds)
    return max(patience, LEAST_PATIENCE_SECONDS)


def is_too_slow(
    seconds: float, arrived: float, patience: float, compute_seconds: float | None
) -> bool:
    """Whether to stop a load and compute the rest: if computing what has arrived would have been faster.

    So a load never costs more than computing would have, or `LEAST_PATIENCE_SECONDS` where that is more, and
    one that still wins goes on, however far expectations were off.

    Args:
        seconds: since it began.
        arrived: share of its blocks that has arrived.
        patience: see `load_patience`.
        compute_seconds: as for `load_patience`.
    """
    if seconds < patience:
        return False
    if not arrived:
        return True
    if compute_seconds is None:
        return seconds > PATIENCE_FACTOR_UNKNOWN / PATIENCE_FACTOR * patience
    return seconds > compute_seconds * arrived
