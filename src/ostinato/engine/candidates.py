"""Which tokens may be drawn: exact top-k and top-p, and the draw itself, without sorting the vocabulary.

A vocabulary has 49,000 to 150,000 tokens and a nucleus usually has a few dozen. So all but a few tokens
are ruled out by comparisons with a bound, in one pass; selection (introselect through `np.partition`)
works on what is left, and only the tokens selected are sorted. Top-p does not know how many it needs: it
takes a few, and `_GROWTH` times as many whenever they do not hold enough probability.

The order of tokens is total everywhere: larger value first, then lower id. So a result does not depend on
how it was computed, and each function equals the textbook form on a fully sorted vocabulary.

Sets of tokens are int64 arrays of ids in ascending order.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ostinato.ops.base import Float32Array, Int64Array

Float64Array: TypeAlias = npt.NDArray[np.float64]

_FIRST_SELECTION = 128
_GROWTH = 8
_COLUMNS = 1024
_COLUMNS_A_TOKEN = 8
_BLOCK = 256


def top_indices(values: Float32Array, k: int) -> Int64Array:
    """Positions of the `k` largest of ``(N,)`` values, ascending. Among equals the lowest."""
    columns = max(_COLUMNS, _COLUMNS_A_TOKEN * k)
    if 2 * columns > values.size:
        return _select(values, k)
    # Folded into columns, the k-th largest column maximum is a lower bound of the k-th largest value:
    # k values, one in each of k columns, reach it.
    folded = values[: values.size // columns * columns].reshape(-1, columns)
    bound = np.partition(folded.max(axis=0), columns - k)[columns - k]
    survivors: Int64Array = np.flatnonzero(values >= bound)
    return survivors[_select(values[survivors], k)]


def ranked(values: Float32Array, k: int) -> Int64Array:
    """Positions of the `k` largest of ``(N,)`` values, largest first. Among equals the lowest."""
    chosen = top_indices(values, k)
    order: Int64Array = chosen[np.argsort(-values[chosen], kind="stable")]
    return order


def nucleus(values: Float32Array, weights: Float32Array, top_p: float) -> Int64Array:
    """The smallest set of likeliest tokens that holds at least `top_p` of the probability.

    Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".

    Args:
        values: ``(N,)``, gives the order. `weights` alone would not: small ones underflow to equal
            zeros.
        weights: ``(N,)``, unnormalised probabilities.
        top_p: above 0, below 1.

    Returns:
        Positions, ascending, at least one.
    """
    total = float(np.sum(weights, dtype=np.float64))
    survivors = _not_negligible(weights, total, 1.0 - top_p)
    values, weights = values[survivors], weights[survivors]
    wanted = top_p * total
    size = _FIRST_SELECTION
    while True:
        order = ranked(values, size)
        held = np.cumsum(weights[order], dtype=np.float64)
        if held[-1] >= wanted or order.size == values.size:
            break
        size *= _GROWTH
    # Rounding may leave even the whole vocabulary a hair below `wanted`: then all of it is taken.
    enough = int(np.searchsorted(held, wanted, side="left")) + 1
    chosen: Int64Array = np.sort(survivors[order[:enough]])
    return chosen


def draw(weights: Float32Array, uniform: float) -> int:
    """Invert the cumulative distribution: the position that `uniform` in [0, 1) falls on.

    Positions of zero weight are never drawn. At least one weight must be positive.
    """
    whole = weights.size // _BLOCK * _BLOCK
    if whole == 0:
        return _invert(weights, uniform * float(np.sum(weights, dtype=np.float64)))
    # First the block, then the position in it: cumulating the whole vocabulary is far slower.
    sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1, dtype=np.float64)
    sums = np.append(sums, np.sum(weights[whole:], dtype=np.float64))
    target = uniform * float(np.sum(sums))
    block = _invert(sums, target)
    start = block * _BLOCK
    before = float(np.cumsum(sums)[block - 1]) if block else 0.0
    return start + _invert(weights[start : start + _BLOCK], target - before)


def _select(values: Float32Array, k: int) -> Int64Array:
    if k >= values.size:
        return np.arange(values.size, dtype=np.int64)
    boundary = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > boundary)
    level = np.flatnonzero(values == boundary)[: k - above.size]
    chosen: Int64Array = np.sort(np.concatenate([above, level]))
    return chosen


def _not_negligible(weights: Float32Array, total: float, dispensable: float) -> Int64Array:
    """Positions that a nucleus of ``1 - dispensable`` of the total may contain.

    N tokens of at most ``dispensable × total / N`` each hold at most the dispensable share together, so
    the nucleus is full before it comes to them. Half that bound leaves room for rounding, except where
    the share itself is of the order of rounding errors.
    """
    if dispensable < 1e-6:
        return np.arange(weights.size, dtype=np.int64)
    bound = np.float32(0.5 * dispensable * total / weights.size)
    survivors: Int64Array = np.flatnonzero(weights >= bound)
    return survivors


def _invert(weights: Float32Array | Float64Array, target: float) -> int:
    """The position whose share of the cumulative sum holds `target`; the last positive one at most."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    position = int(np.searchsorted(cumulative, target, side="right"))
    if position == cumulative.size:  # `target` was rounded up to the sum
        position = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return position
