"""What people read: a model's step as a whole, then product by product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.linear.engines import OnnxRuntime, Ostinato
from benchmarks.linear.measure import MOST_OPS, Measurement
from benchmarks.linear.shapes import MODELS, OUTPUT, Product, step_seconds
from benchmarks.peers.limits import Limits
from benchmarks.report import Table

OURS, THEIRS = Ostinato.title, OnnxRuntime.title

HOW = (
    "Weights in groups of 32: 4 bits with zero points, 8 bits without; both engines hold the same values, "
    "round activations to int8 in groups of 32 (ONNX Runtime: accuracy level 4) and come within that rounding "
    "of NumPy's result. Matrices of a shape that fill two last-level caches are walked through in turn (fewer "
    "where a walk would exceed {most_ops:.0f} Gop); one thread a CPU, kept there; the engines take turns; "
    "medians, and bests, of {rounds} walks. Of limit: the time in which this machine can at best read these "
    "weights and multiply in int8, by Ostinato's. Ostinato is called from Python once a product ({call:.1f} "
    "µs, which a step, one call, does not pay), ONNX Runtime once a walk. Milliseconds of a step: less "
    "is better."
)


def step_table(
    name: str, measurements: Sequence[Measurement], limits: Limits, rounds: int, call: float
) -> Table:
    """All products of a step of a model, as often as it computes each; with and without the output matrix."""
    model = MODELS[name]
    table = Table(
        f"{name}, the products of a step",
        ("bits", "tokens", "of", *_columns(measurements)),
        note=HOW.format(most_ops=1e-9 * MOST_OPS, rounds=rounds, call=call * 1e6),
    )
    for bits, tokens in _cases(measurements):
        ones = [one for one in measurements if (one.bits, one.tokens) == (bits, tokens)]
        layers = [one for one in ones if one.product.name != OUTPUT]
        parts = [("layers", layers)] if len(layers) == len(model) - 1 else []
        if len(ones) == len(model):
            parts.append(("layers and output", ones))
        for title, part in parts:
            cells = _step_cells(model, part, limits)
            table.rows.append((str(bits), f"{tokens:,}", title, *cells))
    return table


def product_table(name: str, measurements: Sequence[Measurement], limits: Limits) -> Table:
    """One line a product: weights a second for one token, operations a second for more."""
    table = Table(
        f"{name}, product by product",
        ("tokens", "bits", "product", "rows × cols", "unit", *_columns(measurements)),
        note="10⁹ a second: weights for one token, operations for more; more is better.",
    )
    for bits, tokens in _cases(measurements):
        for one in measurements:
            if (one.bits, one.tokens) == (bits, tokens):
                shape = f"{one.product.rows:,} × {one.product.cols:,}"
                unit = "Gweight/s" if tokens == 1 else "Gop/s"
                cells = (f"{tokens:,}", str(bits), one.product.name, shape, unit)
                table.rows.append((*cells, *_product_cells(one, limits)))
    return table


def rate(one: Measurement, seconds: float) -> float:
    """10⁹ weights (one token) or operations (more) a second."""
    count = one.product.weights * (1 if one.tokens == 1 else 2 * one.tokens)
    return 1e-9 * count / seconds


def _columns(measurements: Sequence[Measurement]) -> list[str]:
    columns = [OURS, "best", "of limit"]
    if any(THEIRS in one.seconds for one in measurements):
        columns += [THEIRS, "best", f"{OURS} faster by", "best by"]
    return columns


def _cases(measurements: Sequence[Measurement]) -> list[tuple[int, int]]:
    return sorted({(one.bits, one.tokens) for one in measurements})


def _step_cells(model: Sequence[Product], part: Sequence[Measurement], limits: Limits) -> list[str]:
    def step(seconds: Callable[[Measurement], float]) -> float:
        return step_seconds(model, {one.product.name: seconds(one) for one in part})

    least = step(lambda one: one.product.least_seconds(one.tokens, one.bits, limits))
    engines = [name for name in (OURS, THEIRS) if name in part[0].seconds]
    typical = [step(partial(Measurement.typical, engine=name)) for name in engines]
    best = [step(partial(Measurement.best, engine=name)) for name in engines]
    return _cells(typical, best, least, lambda seconds: f"{1e3 * seconds:,.2f}")


def _product_cells(one: Measurement, limits: Limits) -> list[str]:
    least = one.product.least_seconds(one.tokens, one.bits, limits)
    engines = [name for name in (OURS, THEIRS) if name in one.seconds]
    typical, best = [one.typical(name) for name in engines], [one.best(name) for name in engines]
    return _cells(typical, best, least, lambda seconds: f"{rate(one, seconds):.1f}")


def _cells(
    typical: list[float], best: list[float], least: float, show: Callable[[float], str]
) -> list[str]:
    """Seconds of Ostinato and perhaps of ONNX Runtime, as the columns have them."""
    cells = [show(typical[0]), show(best[0]), f"{least / typical[0]:.0%}"]
    if len(typical) == 2:
        cells += [show(typical[1]), show(best[1])]
        cells += [f"{typical[1] / typical[0]:.2f}×", f"{best[1] / best[0]:.2f}×"]
    return cells
