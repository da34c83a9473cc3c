"""ReuseModel: when are blocks of each kind used again? Learned from traffic, asked by `ReuseRate`."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PER_OCTAVE = 3
"""Age buckets per doubling of the age."""

MAX_AGE = 4096
"""In uses; a block that was not used again by then counts as never."""

MAX_TRACKED = 32_768
"""Names that are remembered: about 4 MiB."""

PRIOR_WEIGHT = 20.0
"""Of what is known of all kinds together, in observations, against what is known of one kind."""

DECAY = 0.95
"""How much of what was learned is kept at each refit, so that the model follows the traffic."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The latest use of a tracked block.

    Attributes:
        when: number of the use.
        kind: what the block was then.
        hits: its reuses by then, those of earlier stays included.
    """

    when: float
    kind: int
    hits: int


class ReuseModel:
    """Learns, per kind, the chance of a next use at each age, and from it what a block's room is worth.

    It follows a sample of blocks from one use to the next by name, whether they are still stored or not: if
    it only saw what the policy keeps, it would never learn that something is worth keeping for longer.

    Args:
        num_kinds: kinds are numbers below this.
    """

    def __init__(self, num_kinds: int) -> None:
        steps = np.arange(PER_OCTAVE * int(np.log2(MAX_AGE)) + 1)
        edges = np.unique(np.round(2.0 ** (steps / PER_OCTAVE)))
        # Bucket b covers the ages [starts[b], starts[b + 1]); the last one has no end.
        self._edges: list[float] = edges.tolist()
        self._starts: npt.NDArray[np.float64] = np.concatenate(([0.0], edges))
        shape = (num_kinds, len(self._starts))
        self._reused = np.zeros(shape)
        self._lost_sight = np.zeros(shape)
        self._tracked: OrderedDict[Hashable, Sighting] = OrderedDict()
        self._worth: list[list[float]] = []
        self.refit(0)

    def last_sighting(self, name: Hashable, now: float) -> Sighting | None:
        """The latest use of `name`, if it is tracked: the gap since then is learned."""
        known = self._tracked.pop(name, None)
        if known is not None:
            self._reused[known.kind, self.bucket(now - known.when)] += 1
        return known

    def track(self, name: Hashable, sighting: Sighting) -> None:
        """Follow `name` from this use on."""
        self._tracked[name] = sighting
        while self._tracked:
            oldest = next(iter(self._tracked.values()))
            age = sighting.when - oldest.when
            if age < MAX_AGE and len(self._tracked) <= MAX_TRACKED:
                return
            self._tracked.popitem(last=False)
            self._lost_sight[oldest.kind, self.bucket(age)] += 1

    def bucket(self, age: float) -> int:
        """Of an age in uses."""
        return bisect_right(self._edges, age)

    def worth(self, kind: int, age: float) -> float:
        """What the room of a block of this kind and age pays: expected reuses per use of anything.

        The largest over all times for which it could be kept from now on (the Gittins index: Gittins, "Bandit
        processes and dynamic allocation indices", 1979). So a block whose next use typically comes late
        is not thrown out for having been quiet so far, and one that is past its time is.
        """
        return self._worth[kind][self.bucket(age)]

    def refit(self, now: float) -> None:
        """Compute `worth` anew from what has been observed, and let old observations fade."""
        quiet = self._lost_sight.copy()
        for sighting in self._tracked.values():
            quiet[sighting.kind, self.bucket(now - sighting.when)] += 1
        hazard = _hazard(self._reused, quiet)
        widths = np.diff(self._starts, append=2 * self._starts[-1])
        self._worth = _gittins(hazard, widths).tolist()
        self._reused *= DECAY
        self._lost_sight *= DECAY


def _hazard(
    reused: npt.NDArray[np.float64], quiet: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """``(kinds, buckets)``: chance that a block that reaches an age bucket is used again in it.

    Args:
        reused: blocks whose next use came in that bucket.
        quiet: blocks that were last seen there, not used again so far; half of the bucket counts.
    """
    reaching = np.cumsum((reused + quiet)[:, ::-1], axis=1)[:, ::-1] - quiet / 2
    # Before anything is known, the chance of a next use falls with age: then the order is LRU's.
    fallback = 1.0 / (2.0 + np.arange(reused.shape[1]))
    pooled = (reused.sum(axis=0) + fallback) / (reaching.sum(axis=0) + 1.0)
    hazard = (reused + PRIOR_WEIGHT * pooled) / (reaching + PRIOR_WEIGHT)
    bounded: npt.NDArray[np.float64] = np.clip(hazard, 1e-6, 0.95)
    return bounded


def _gittins(
    hazard: npt.NDArray[np.float64], widths: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """``(kinds, buckets)``: from each bucket on, the best ratio of expected reuses to expected room-time."""
    index = np.zeros_like(hazard)
    for start in range(hazard.shape[1]):
        ahead = hazard[:, start:]
        alive = np.cumprod(np.concatenate((np.ones((len(ahead), 1)), 1 - ahead[:, :-1]), axis=1), 1)
        reuses = np.cumsum(alive * ahead, axis=1)
        room = np.cumsum(alive * (1 - ahead / 2) * widths[start:], axis=1)
        index[:, start] = (reuses / room).max(axis=1)
    return index
