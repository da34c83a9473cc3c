"""Load or recompute: measured bytes a second against measured tokens a second.

    seconds to load  =  OVERHEAD + (bytes that wait before it + its own bytes) ÷ rate of its tier
    seconds to compute  =  tokens ÷ rate of prefill

Both rates are measured whenever something is loaded or computed; old figures fade with the *amount* that was
measured since, so that a long transfer says more than many short ones, and an idle hour changes nothing. What
was never measured has a prior that favours loading, since only loading teaches what loading costs. For the same
reason a decision against loading is overruled now and then (`PROBE_EVERY`), for a few blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.cache.types import BlockHash, Tier

OVERHEAD_SECONDS = 0.002
"""What a load costs beside its bytes: a thread wakes up, and the request misses a step."""

PROBE_EVERY = 16
"""Every so many decisions in a row against loading, one load is made to measure it again."""

PROBE_BLOCKS = 4
"""Loaded then: somebody waits for it."""

PRIOR_BYTES_PER_SECOND: Mapping[Tier, float] = {
    Tier.RAM: 4e9,
    Tier.DISK: 1e9,
    Tier.REMOTE: 2e8,
}
PRIOR_SHARE = 1 / 16
HALF_LIFE_BYTES = 256 * 2**20
HALF_LIFE_TOKENS = 2048


class RateMeter:
    """Units a second, of which old measurements fade: after `half_life` further units they count half.

    Args:
        half_life: in units.
        prior: assumed at first, as if `PRIOR_SHARE` of `half_life` had been measured, so that a few small first
            measurements do not decide; None if there is nothing to assume.
    """

    def __init__(self, half_life: float, prior: float | None = None) -> None:
        self._half_life = half_life
        self._units = PRIOR_SHARE * half_life if prior is not None else 0.0
        self._seconds = self._units / prior if prior is not None else 0.0

    @property
    def rate(self) -> float | None:
        """Units a second; None if nothing was measured and nothing is assumed."""
        return self._units / self._seconds if self._seconds > 0 else None

    def observe(self, units: float, seconds: float) -> None:
        """`units` took `seconds`. What took no time says nothing and is ignored."""
        if units <= 0 or seconds <= 0:
            return
        fade = 0.5 ** (units / self._half_life)
        self._units = self._units * fade + units
        self._seconds = self._seconds * fade + seconds

    def observe_sample(self, units: float, seconds: float) -> None:
        """The same for a few units that stand for many: they count as `half_life` of them."""
        if units > 0:
            self.observe(max(units, self._half_life), seconds * max(1.0, self._half_life / units))


@dataclass(frozen=True, slots=True)
class TierRun:
    """Blocks that lie one behind another in a prompt and that one tier holds.

    Attributes:
        tier: the fastest that has them.
        keys: their names, heads first.
    """

    tier: Tier
    keys: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """What was found below the device for one prompt, and what was decided about it. In seconds and tokens.

    Attributes:
        found: tokens behind the device's match, by the tier that holds them.
        load_tokens: how many of them are loaded, from the first on; 0 if computing all is cheaper.
        load_seconds: what loading all that was found was expected to take.
        chosen_seconds: what loading `load_tokens` was expected to take.
        compute_seconds: what computing all of it was expected to take; None if no prefill was measured yet.
        is_probe: loaded against the figures, to measure them again.
    """

    found: Mapping[Tier, int] = field(default_factory=dict)
    load_tokens: int = 0
    load_seconds: float = 0.0
    chosen_seconds: float = 0.0
    compute_seconds: float | None = None
    is_probe: bool = False

    @property
    def found_tokens(self) -> int:
        return sum(self.found.values())

    @property
    def saved_seconds(self) -> float | None:
        """What computing `load_tokens` was expected to take; None if no prefill was measured yet."""
        if self.compute_seconds is None or not self.load_tokens:
            return None
        return self.compute_seconds * self.load_tokens / self.found_tokens


class LoadCosts:
    """The meters, and the decision that reads them.

    Args:
        block_size: tokens a block.
        block_bytes: bytes a block in the tiers.
    """

    def __init__(self, block_size: int, block_bytes: int) -> None:
        self._block_size = block_size
        self._block_bytes = block_bytes
        self.prefill = RateMeter(HALF_LIFE_TOKENS)
        self.load = {
            tier: RateMeter(HALF_LIFE_BYTES, prior)
            for tier, prior in PRIOR_BYTES_PER_SECOND.items()
        }
        self._refusals = 0

    def decide(
        self, runs: Sequence[TierRun], waiting_bytes: Mapping[Tier, int]
    ) -> tuple[Sequence[TierRun], LoadDecision]:
        """Which leading `runs` to load: those with the largest gain in seconds over computing.

        Args:
            runs: in the order of the prompt.
            waiting_bytes: to be loaded before them, by tier.
        """
        rate = self.prefill.rate
        load_seconds = compute_seconds = gain = chosen_seconds = 0.0
        best = OVERHEAD_SECONDS  # a gain that is smaller than that is none
        num_best = 0
        for at, run in enumerate(runs, 1):
            load_seconds += self._seconds(run, waiting_bytes)
            if rate is not None:
                compute_seconds += len(run.keys) * self._block_size / rate
                gain = compute_seconds - load_seconds
            if rate is None or gain > best:
                best, num_best, chosen_seconds = gain, at, load_seconds
        chosen: Sequence[TierRun] = runs[:num_best]
        is_probe = bool(runs) and not num_best and self._is_time_to_probe()
        if is_probe:
            chosen = (_head(runs[0], PROBE_BLOCKS),)
            chosen_seconds = self._seconds(chosen[0], waiting_bytes)
        decision = LoadDecision(
            found=self._tokens_by_tier(runs),
            load_tokens=sum(len(run.keys) for run in chosen) * self._block_size,
            load_seconds=load_seconds + OVERHEAD_SECONDS if runs else 0.0,
            chosen_seconds=chosen_seconds + OVERHEAD_SECONDS if chosen else 0.0,
            compute_seconds=None if rate is None else compute_seconds,
            is_probe=is_probe,
        )
        return chosen, decision

    def _seconds(self, run: TierRun, waiting_bytes: Mapping[Tier, int]) -> float:
        rate = self.load[run.tier].rate
        assert rate is not None  # they have priors
        wanted = len(run.keys) * self._block_bytes
        return (waiting_bytes.get(run.tier, 0) + wanted) / rate

    def accept(self, decision: LoadDecision) -> None:
        """A request starts with `decision`."""
        if decision.found:
            self._refusals = 0 if decision.load_tokens else self._refusals + 1

    def _is_time_to_probe(self) -> bool:
        return self._refusals >= PROBE_EVERY

    def _tokens_by_tier(self, runs: Sequence[TierRun]) -> dict[Tier, int]:
        tokens: dict[Tier, int] = {}
        for run in runs:
            tokens[run.tier] = tokens.get(run.tier, 0) + len(run.keys) * self._block_size
        return tokens


def _head(run: TierRun, num_blocks: int) -> TierRun:
    return TierRun(run.tier, run.keys[:num_blocks])
