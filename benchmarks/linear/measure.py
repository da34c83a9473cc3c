"""One product at a time: the engines take turns on the same weights, and every result is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from benchmarks.linear.engines import LinearEngine, Stack
from benchmarks.linear.shapes import Product, copies, is_computed
from benchmarks.linear.weights import (
    Float32Array,
    QuantisedWeights,
    random_weights,
    rounding_bound,
)
from ostinato.clock import Clock

MOST_OPS = 8e9
"""Operations of a walk: some tens of milliseconds."""

CHECKED_ROWS = 512
"""Rows of a matrix that are compared with NumPy."""


class WrongProductError(Exception):
    """An engine's result is further from NumPy's than rounding activations to int8 can take it."""


@dataclass(slots=True)
class Measurement:
    """Attributes:
    product, tokens, bits: what was multiplied.
    walked: matrices a walk.
    seconds: of one product, by engine and walk.
    error: of one product, by engine: root mean square, as a share of the result's.
    """

    product: Product
    tokens: int
    bits: int
    walked: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)

    def typical(self, engine: str) -> float:
        """Median seconds."""
        return median(self.seconds[engine])

    def best(self, engine: str) -> float:
        """Least seconds: what neighbours disturbed least."""
        return min(self.seconds[engine])

    def as_dict(self) -> dict[str, Any]:
        return {
            "product": self.product.name,
            "rows": self.product.rows,
            "cols": self.product.cols,
            "tokens": self.tokens,
            "bits": self.bits,
            "matrices": self.walked,
            "seconds": self.seconds,
            "relative_rms_error": self.error,
        }


def measure_product(
    product: Product,
    bits: int,
    token_counts: Sequence[int],
    engines: Sequence[LinearEngine],
    cache_bytes: int,
    rounds: int,
    clock: Clock,
) -> list[Measurement]:
    """A measurement for each number of tokens.

    Raises:
        WrongProductError: see there.
    """
    rng = np.random.default_rng(product.rows + bits)
    counts = {
        tokens: copies(product, tokens, bits, cache_bytes, MOST_OPS)
        for tokens in token_counts
        if is_computed(product, tokens)
    }
    if not counts:
        return []
    weights = random_weights(rng, bits, product.rows, product.cols)
    stacks = {engine.title: engine.pack(weights, max(counts.values())) for engine in engines}
    found = []
    for tokens, count in counts.items():
        x = rng.standard_normal((tokens, product.cols)).astype(np.float32)
        one = Measurement(product, tokens, bits, count)
        _time(one, stacks, x, rounds, clock)
        for title, stack in stacks.items():
            one.error[title] = max(
                check(title, stack, x, index, weights) for index in {0, count - 1}
            )
        found.append(one)
    return found


def _time(
    one: Measurement, stacks: dict[str, Stack], x: Float32Array, rounds: int, clock: Clock
) -> None:
    walks = {title: stack.walk(x, one.walked) for title, stack in stacks.items()}
    one.seconds = {title: [] for title in walks}
    for walk in walks.values():
        walk()  # memory is touched, threads are up
    titles = list(walks)
    for turn in range(rounds):
        shift = turn % len(titles)
        for title in titles[shift:] + titles[:shift]:
            start = clock.monotonic()
            walks[title]()
            one.seconds[title].append((clock.monotonic() - start) / one.walked)


def check(
    title: str, stack: Stack, x: Float32Array, index: int, weights: QuantisedWeights
) -> float:
    """Root mean square of the error of matrix `index` by that of the product, over 4 tokens at most.

    Raises:
        WrongProductError: see there.
    """
    values = weights.rolled(index).values()[:CHECKED_ROWS]
    few = x[:4]
    exact = few.astype(np.float64) @ values.astype(np.float64).T
    # As many tokens as were timed: another number may take another path.
    error = stack.product(x, index)[:4, :CHECKED_ROWS] - exact
    if not bool(np.all(np.abs(error) <= rounding_bound(few, values))):
        raise WrongProductError(
            f"{title}: a product of {x.shape} with {weights.shape} in {weights.bits} bits is off by "
            f"{np.abs(error).max():.4g}, more than rounding to int8 explains"
        )
    return float(np.sqrt(np.mean(error**2) / np.mean(exact**2)))
