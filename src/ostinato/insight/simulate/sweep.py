"""Many replays: every policy at every capacity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.cache.eviction import POLICIES
from ostinato.errors import ConfigError
from ostinato.insight.simulate.replay import (
    DEVICE_ALONE,
    OPTIMUM,
    ReplayResult,
    TierSizes,
    replay,
)
from ostinato.insight.simulate.trace import TraceRequest, distinct_blocks

ALL_POLICIES = (*POLICIES, OPTIMUM)

CAPACITY_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Of the distinct blocks of a trace: the five capacities if none are given."""


def default_capacities(requests: Sequence[TraceRequest]) -> list[int]:
    """Five, for this trace."""
    distinct = distinct_blocks(requests)
    return sorted({max(1, round(distinct * share)) for share in CAPACITY_SHARES})


def sweep(
    requests: Sequence[TraceRequest],
    policies: Sequence[str],
    capacities: Sequence[int],
    *,
    block_tokens: int,
    index: str,
    below: TierSizes = DEVICE_ALONE,
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, list[ReplayResult]]:
    """Results by policy, each in order of capacity.

    Args:
        requests: in the order of their arrival.
        policies: names of `ALL_POLICIES`.
        capacities: in blocks of the trace.
        block_tokens: tokens of such a block.
        index: which prefix index.
        below: the tiers, the same at every capacity of the device.
        advance: told how many more requests were replayed, now and then.

    Raises:
        ConfigError: there is no such policy.
    """
    for policy in policies:
        if policy not in ALL_POLICIES:
            raise ConfigError(
                f"no policy is called {policy!r}; there are {', '.join(ALL_POLICIES)}"
            )
    return {
        policy: [
            replay(
                requests,
                policy,
                capacity,
                block_tokens=block_tokens,
                index=index,
                below=below,
                advance=advance,
            )
            for capacity in sorted(capacities)
        ]
        for policy in policies
    }
