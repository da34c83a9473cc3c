"""Guards products with quantised weights: exact with float32 activations, and with int8 activations exactly the
product of the rounded ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.ops.base import Float32Array
from tests.ops.backends import all_isas, cpu_backend, needs_native

pytestmark = needs_native

GROUP = 32
LOSSLESS = [
    ("Q4_0", "int4"),
    ("Q4_1", "int4_minimum"),
    ("Q4_0", "int4_minimum"),
    ("Q8_0", "int8"),
    ("Q4_0", "int8"),
    ("Q5_0", "int8"),
    ("Q4_0", "int8_minimum"),
    ("Q4_1", "int8_minimum"),
    ("Q5_0", "int8_minimum"),
    ("Q5_1", "int8_minimum"),
    ("Q8_0", "int8_minimum"),
]
"""Encodings and the packed formats that take them as they are."""


def packed_matrix(packed: str, encoding: str, raw: np.ndarray, columns: int) -> Any:
    from ostinato import _native

    matrix = _native.PackedMatrix(packed, len(raw), columns)
    matrix.put(encoding, raw, np.arange(len(raw), dtype=np.int32))
    return matrix


def unpacked(matrix: Any, rows: int, columns: int) -> Float32Array:
    values = np.full((rows, columns), np.nan, np.float32)
    for row in range(rows):
        matrix.get(row, values[row])
    return values


def random_blocks(
    rng: np.random.Generator, encoding: str, rows: int, groups: int
) -> tuple[np.ndarray, Float32Array]:
    """Stored bytes that use every code, and the values that the gguf package reads from them."""
    scale = (rng.standard_normal((rows, groups, 1)) * 0.01).astype(np.float16).view(np.uint8)
    minimum = (rng.standard_normal((rows, groups, 1)) * 0.1).astype(np.float16).view(np.uint8)
    code_bytes = {"4": 16, "5": 20, "8": 32}[encoding[1]]
    codes = rng.integers(0, 256, (rows, groups, code_bytes), np.uint8)
    parts = [scale, minimum, codes] if encoding.endswith("_1") else [scale, codes]
    raw = np.concatenate(parts, axis=-1).reshape(rows, -1)
    return raw, quants.dequantize(raw, GGMLQuantizationType[encoding])


@pytest.mark.parametrize(("encoding", "packed"), LOSSLESS)
@all_isas
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 100),
    groups=st.integers(1, 20),
    tokens=st.integers(1, 80),
)
@settings(max_examples=60, deadline=None)
def test_quantised_weights_multiply_as_their_values(
    isa: str, encoding: str, packed: str, seed: int, rows: int, groups: int, tokens: int
) -> None:
    rng = np.random.default_rng(seed)
    raw, values = random_blocks(rng, encoding, rows, groups)
    matrix = packed_matrix(packed, encoding, raw, groups * GROUP)
    np.testing.assert_array_equal(unpacked(matrix, rows, groups * GROUP), values)
    x = rng.standard_normal((tokens, groups * GROUP)).astype(np.float32)
    out = np.full((tokens, rows), np.nan, np.float32)
    cpu_backend(isa)._runtime.linear(matrix, x, out)
    np.testing.assert_allclose(out, x @ values.T, atol=2e-4, rtol=1e-4)
    grouped = x.reshape(tokens, groups, GROUP)
    unit = np.abs(grouped).max(-1, keepdims=True) * np.float32(1 / 127)
    rounded = (np.rint(grouped * (np.float32(1) / unit)) * unit).reshape(tokens, -1)
    out[...] = np.nan
    cpu_backend(isa, "int8")._runtime.linear(matrix, x, out)
    np.testing.assert_allclose(out, rounded @ values.T, atol=3e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("packed", "steps"),
    [("int8", 127.0), ("int8_minimum", 127.5), ("int4", 7.0), ("int4_minimum", 7.5)],
)
@pytest.mark.parametrize("columns", [1, 32, 70, 320])
def test_rounding_to_integers_is_off_by_half_a_step_at_most(
    packed: str, steps: float, columns: int
) -> None:
    values = np.random.default_rng(columns).uniform(-1, 1, (40, columns)).astype(np.float32)
    matrix = packed_matrix(packed, "F32", values.view(np.uint8), columns)
    found = unpacked(matrix, *values.shape)
    starts = np.arange(0, columns, GROUP)
    largest = np.maximum.reduceat(np.abs(values), starts, axis=1)
    # Half a step, and what rounding scale and minimum to fp16 adds; int4 clips the top code of 7.5.
    slack = 1.01 * 0.5 / steps + 2e-3 + (0.5 / steps if packed == "int4" else 0)
    bound = np.repeat(largest, GROUP, axis=1)[:, :columns] * slack
    assert np.all(np.abs(found - values) <= bound)


@pytest.mark.parametrize(("packed", "rtol"), [("fp32", 0.0), ("fp16", 2.0**-11)])
def test_float_weights_keep_their_precision(packed: str, rtol: float) -> None:
    values = np.random.default_rng(0).standard_normal((33, 50)).astype(np.float32)
    matrix = packed_matrix(packed, "F32", values.view(np.uint8), 50)
    np.testing.assert_allclose(unpacked(matrix, *values.shape), values, rtol=rtol, atol=1e-7 * rtol)
