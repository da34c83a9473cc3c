"""Guards the comparison of products: weights that differ between the engines, a stack that stays in a cache or
an unchecked result would make it worthless.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from benchmarks.linear import shapes
from benchmarks.linear.engines import OnnxRuntime, Ostinato, installed_engines
from benchmarks.linear.measure import Measurement, WrongProductError, check, measure_product
from benchmarks.linear.pinning import PINS, available_cpus, caller_pinned, workers_pinned
from benchmarks.linear.shapes import Product
from benchmarks.linear.tables import product_table, step_table
from benchmarks.linear.weights import Float32Array, QuantisedWeights, random_weights, rounding_bound
from benchmarks.peers.limits import Limits
from gguf import GGMLQuantizationType, quants

from ostinato.clock import ManualClock
from tests.ops.backends import needs_native

LIMITS = Limits(read=10.0, fp32=100.0, int16=200.0, int8=400.0, source="test")
SMALL = Product("qkv", 48, 96, 3)


def weights_of(bits: int, rows: int = 48, cols: int = 96) -> QuantisedWeights:
    return random_weights(np.random.default_rng(bits), bits, rows, cols)


class FakeStack:
    """Multiplies exactly, then adds an error; a walk takes a second a matrix."""

    def __init__(self, weights: QuantisedWeights, clock: ManualClock, error: float) -> None:
        self._weights, self._clock, self._error = weights, clock, error

    def walk(self, x: Float32Array, count: int) -> Callable[[], None]:
        return lambda: self._clock.advance(count)

    def product(self, x: Float32Array, index: int) -> Float32Array:
        return x @ self._weights.rolled(index).values().T + np.float32(self._error)


class FakeEngine:
    def __init__(self, title: str, clock: ManualClock, error: float = 0.0) -> None:
        self.title, self._clock, self._error = title, clock, error

    def pack(self, weights: QuantisedWeights, count: int) -> FakeStack:
        return FakeStack(weights, self._clock, self._error)


@pytest.mark.parametrize(("bits", "encoding"), [(4, "Q4_1"), (8, "Q8_0")])
def test_a_gguf_row_holds_exactly_the_weights(bits: int, encoding: str) -> None:
    weights = weights_of(bits)
    read = quants.dequantize(weights.gguf(), GGMLQuantizationType[encoding])
    np.testing.assert_array_equal(read, weights.values())


@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits_inputs_hold_exactly_the_weights(bits: int) -> None:
    weights = weights_of(bits)  # three groups a row: an odd number of zero points
    inputs = weights.matmul_nbits()
    codes, points = inputs["B"], inputs.get("zero_points")
    if bits == 4:
        assert points is not None
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(48, 3, 32)
        points = np.stack([points & 15, points >> 4], axis=-1).reshape(48, 4)[:, :3]
    else:
        points = np.full((48, 3), 128)  # what the operator takes where none are given
    read = (codes.astype(np.float32) - points[..., None]) * inputs["scales"][..., None]
    np.testing.assert_array_equal(read.reshape(48, 96), weights.values())


@needs_native
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("tokens", [1, 5])
def test_our_products_are_within_int8_rounding_of_numpy(bits: int, tokens: int) -> None:
    weights = weights_of(bits)
    x = np.random.default_rng(tokens).standard_normal((tokens, 96)).astype(np.float32)
    stack = Ostinato(threads=1).pack(weights, 3)
    assert check("Ostinato", stack, x, 0, weights) < 0.02
    assert check("Ostinato", stack, x, 2, weights) < 0.02


@pytest.mark.parametrize("bits", [4, 8])
def test_onnx_runtime_is_within_int8_rounding_of_numpy_where_it_is_installed(bits: int) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    weights = weights_of(bits)
    x = np.random.default_rng(1).standard_normal((2, 96)).astype(np.float32)
    stack = OnnxRuntime(threads=1).pack(weights, 3)
    assert check("ONNX Runtime", stack, x, 2, weights) < 0.02
    stack.walk(x, 2)()


def test_without_onnx_runtime_it_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    pytest.importorskip("ostinato._native")
    engines, note = installed_engines(threads=1)
    assert [engine.title for engine in engines] == ["Ostinato"]
    assert "Without ONNX Runtime" in note
    assert "pip install onnxruntime onnx" in note


def test_a_wrong_product_is_no_result() -> None:
    clock = ManualClock()
    with pytest.raises(WrongProductError, match="Wrong: a product of"):
        measure_product(SMALL, 4, [2], [FakeEngine("Wrong", clock, error=3.0)], 1 << 10, 1, clock)


def test_the_bound_is_half_a_step_at_every_weight() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, 5] = 127.0  # a step of 1 in the first group, none in the second
    values = np.ones((1, 64), np.float32)
    assert rounding_bound(x, values)[0, 0] == pytest.approx(32 * 0.5 + 127e-5)


def test_seconds_are_of_one_product_and_engines_take_turns() -> None:
    clock = ManualClock()
    engines = [FakeEngine("Ostinato", clock), FakeEngine("ONNX Runtime", clock)]
    (one,) = measure_product(SMALL, 4, [2], engines, 1 << 20, 3, clock)
    assert one.walked == shapes.copies(SMALL, 2, 4, 1 << 20, 8e9) > 2
    assert one.seconds == {"Ostinato": [1.0] * 3, "ONNX Runtime": [1.0] * 3}


def test_a_stack_is_twice_the_cache_unless_multiplying_takes_longer() -> None:
    cache = 32 << 20
    product = Product("down", 576, 1536, 30)
    count = shapes.copies(product, 1, 4, cache, 8e9)
    assert 2 * cache <= count * product.bytes(4) < 2 * cache + product.bytes(4)
    assert shapes.copies(product, 512, 4, cache, 8e9) == 8
    assert shapes.copies(Product("gate", 9728, 896, 1), 512, 4, cache, 8e9) == 2


def test_a_whole_chunk_never_meets_the_output_matrix() -> None:
    output = shapes.MODELS["SmolLM2-135M"][-1]
    assert shapes.is_computed(output, 16)
    assert not shapes.is_computed(output, 512)
    assert measure_product(output, 4, [512], [], 1 << 20, 1, ManualClock()) == []


@pytest.mark.parametrize(("bits", "size"), [(4, 0.625), (8, 1.0625)])
def test_the_limit_is_what_takes_longer_reading_or_multiplying(bits: int, size: float) -> None:
    product = Product("square", 1024, 1024, 1)
    assert product.bytes(bits) == size * 2**20
    assert product.least_seconds(1, bits, LIMITS) == pytest.approx(size * 2**20 / 10e9)
    assert product.least_seconds(512, bits, LIMITS) == pytest.approx(2 * 512 * 2**20 / 400e9)


def measured(product: Product, ours: float, theirs: float | None) -> Measurement:
    seconds = {"Ostinato": [ours, ours, 2 * ours]}
    if theirs is not None:
        seconds["ONNX Runtime"] = [theirs, theirs / 2, theirs]
    return Measurement(product, 1, 4, 2, seconds)


def test_a_step_counts_each_product_as_often_as_it_is_computed() -> None:
    model = shapes.MODELS["SmolLM2-135M"]
    found = [measured(one, 1e-3, 3e-3) for one in model]
    layers, whole = step_table("SmolLM2-135M", found, LIMITS, 3, 1e-6).rows
    assert layers[2:5] == ("layers", "120.00", "120.00")
    assert whole[2:5] == ("layers and output", "121.00", "121.00")
    assert whole[6:] == ("363.00", "181.50", "3.00×", "1.50×")


def test_a_part_of_a_model_makes_no_step() -> None:
    found = [measured(shapes.MODELS["SmolLM2-135M"][0], 1e-3, None)]
    assert step_table("SmolLM2-135M", found, LIMITS, 3, 1e-6).rows == []


def test_an_engine_that_is_left_out_has_no_column() -> None:
    product = Product("qkv", 1000, 1000, 1)
    table = product_table("model", [measured(product, 1e-3, None)], LIMITS)
    assert "ONNX Runtime" not in table.columns
    assert len(table.rows[0]) == len(table.columns)
    assert table.rows[0][5] == "1.0"  # 10⁹ weights a second


@pytest.mark.skipif(not PINS or len(available_cpus()) < 2, reason="threads cannot be pinned here")
def test_the_caller_and_its_workers_keep_to_different_cpus() -> None:
    cpus, leave = available_cpus(), threading.Event()
    worker = threading.Thread(target=leave.wait)
    try:
        with workers_pinned(cpus):
            worker.start()
        assert worker.native_id is not None
        with caller_pinned(cpus):
            assert available_cpus() == cpus[:1]
            assert sorted(os.sched_getaffinity(worker.native_id)) == cpus[1:2]
        assert available_cpus() == cpus
    finally:
        leave.set()
        worker.join()
