"""Guards the bytes of sealed K/V: where they lie, how far decoded values may be off, and that nothing leaks in.

The layout is spelled out here a second time, element by element, since other implementations (native kernels,
files on disk) rely on it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.codec import KEY, VALUE, codec_named
from ostinato.cache.codec.base import FP16_MAX
from ostinato.cache.codec.per_token import encode_e4m3

QUANTISED = ("fp8", "int8", "int4")
SUBNORMAL = 2.0**-25
"""A scale in fp16 is off by at most this, beyond its relative error."""

geometries = st.tuples(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 5, 16]),
    st.sampled_from([2, 6, 16]),
)
"""Layers, K/V heads, block size, head dim."""


def sealed(name: str, block: np.ndarray, num_tokens: int) -> np.ndarray:
    layers, _, heads, block_size, head_dim = block.shape
    out = np.full(
        codec_named(name).block_bytes(layers, heads, block_size, head_dim), 0xA5, np.uint8
    )
    codec_named(name).encode(block, num_tokens, out)
    return out


def decoded(name: str, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    out = np.full(shape, np.nan, dtype=np.float32)
    codec_named(name).decode(data, out)
    return out


@st.composite
def blocks(draw: st.DrawFn) -> np.ndarray:
    """Values of any magnitude that fp16 has, with channels and tokens that stick out, and zeros."""
    layers, heads, block_size, head_dim = draw(geometries)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (layers, 2, heads, block_size, head_dim)
    values = rng.standard_normal(shape)
    kind = draw(st.sampled_from(["plain", "channels", "tokens", "zeros", "one sign"]))
    if kind == "channels":
        values *= 10.0 ** rng.uniform(-3, 3, (layers, 2, heads, 1, head_dim))
    elif kind == "tokens":
        values *= 10.0 ** rng.uniform(-3, 3, (layers, 2, heads, block_size, 1))
    elif kind == "zeros":
        values *= rng.integers(0, 2, (layers, 2, heads, block_size, 1))
    elif kind == "one sign":
        values = np.abs(values) + 3
    scale = 10.0 ** draw(st.integers(-7, 4))
    return np.clip(values * scale, -FP16_MAX, FP16_MAX).astype(np.float16)


def error_bound(name: str, block: np.ndarray) -> np.ndarray:
    """What rounding to the format may cost each value of a full block."""
    values = block.astype(np.float64)
    largest = np.abs(values).max(axis=-1, keepdims=True)
    if name == "int8":  # half a step of absmax / 127
        return np.broadcast_to(largest / 254 * 1.001 + 127 * SUBNORMAL, values.shape)
    if name == "fp8":  # half of 1/8 of a value, or half of the smallest step, 2⁻⁹ of the scale
        return np.abs(values) / 16 * 1.001 + largest / 448 * 2**-10 * 1.001 + 448 * SUBNORMAL
    bound = np.empty_like(values)  # half of 1/15 of the group's range
    for part, axis in ((KEY, -2), (VALUE, -1)):
        bound[:, part] = np.ptp(values[:, part], axis=axis, keepdims=True) / 30 * 1.001
    return bound + 15 * SUBNORMAL


@pytest.mark.parametrize("name", QUANTISED)
@given(block=blocks())
@settings(max_examples=60, deadline=None)
def test_decoded_values_are_within_half_a_step(name: str, block: np.ndarray) -> None:
    found = decoded(name, sealed(name, block, block.shape[3]), block.shape)
    error = np.abs(found - block.astype(np.float64))
    # Float32 arithmetic of the decoder itself: 2⁻²² of the largest number it adds up.
    slack = np.abs(block).astype(np.float64).max() * 2.0**-22
    assert (error <= error_bound(name, block) + slack).all()


@pytest.mark.parametrize("name", ["fp16", "fp32"])
@given(block=blocks())
@settings(max_examples=15, deadline=None)
def test_unquantised_formats_change_nothing(name: str, block: np.ndarray) -> None:
    data = sealed(name, block, block.shape[3])
    np.testing.assert_array_equal(decoded(name, data, block.shape), block.astype(np.float32))


@pytest.mark.parametrize("name", ["fp16", "fp32"])
def test_an_unquantised_sealed_block_is_the_block_itself(name: str) -> None:
    dtype = {"fp16": np.float16, "fp32": np.float32}[name]
    block = np.random.default_rng(0).standard_normal((2, 2, 3, 4, 6)).astype(dtype)
    assert sealed(name, block, 4).tobytes() == block.tobytes()


@pytest.mark.parametrize("name", QUANTISED)
@given(block=blocks(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_what_lies_behind_the_tokens_that_count_influences_nothing(
    name: str, block: np.ndarray, data: st.DataObject
) -> None:
    num_tokens = data.draw(st.integers(1, block.shape[3]))
    clean, dirty = block.copy(), block.copy()
    clean[..., num_tokens:, :] = 0
    dirty[..., num_tokens:, :] = np.nan
    found = sealed(name, dirty, num_tokens)
    np.testing.assert_array_equal(found, sealed(name, clean, num_tokens))
    values = decoded(name, found, block.shape)
    assert np.isfinite(values).all()
    alone = np.ascontiguousarray(block[..., :num_tokens, :])
    own = decoded(name, sealed(name, alone, num_tokens), alone.shape)
    np.testing.assert_array_equal(values[..., :num_tokens, :], own)


@pytest.mark.parametrize("name", QUANTISED)
def test_zeros_stay_zeros(name: str) -> None:
    block = np.zeros((1, 2, 2, 4, 6), dtype=np.float16)
    data = sealed(name, block, 4)
    assert not data.any()
    assert not decoded(name, data, block.shape).any()


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_largest_values_survive_and_larger_ones_are_clipped(
    name: str, dtype: type[np.floating]
) -> None:
    block = np.zeros((1, 2, 1, 4, 6), dtype=np.float32)
    block[..., 0, 0], block[..., 1, 1] = np.inf, -1e30
    out = np.empty(block.shape, dtype=dtype)
    codec_named(name).decode(sealed(name, block, 4), out)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[..., 0, 0], FP16_MAX, rtol=1e-3)
    np.testing.assert_allclose(out[..., 1, 1], -FP16_MAX, rtol=1e-3)


@pytest.mark.parametrize("name", QUANTISED)
def test_a_value_that_is_no_number_is_never_read_as_one(name: str) -> None:
    block = np.ones((1, 2, 1, 4, 6), dtype=np.float16)
    block[..., 2, 3] = np.nan
    found = decoded(name, sealed(name, block, 4), block.shape)
    assert np.isnan(found[..., 2, 3]).all()
    np.testing.assert_allclose(found[..., 0, 0], 1, rtol=1e-3)


@pytest.mark.parametrize("name", ["fp8", "int8"])
@given(block=blocks())
@settings(max_examples=25, deadline=None)
def test_sealing_again_what_was_decoded_costs_next_to_nothing(name: str, block: np.ndarray) -> None:
    """A partial block may be sealed, opened and sealed again: its tokens must not wear out."""
    once = decoded(name, sealed(name, block, block.shape[3]), block.shape).astype(np.float16)
    twice = decoded(name, sealed(name, once, block.shape[3]), block.shape)
    largest = np.abs(once).max(axis=-1, keepdims=True).astype(np.float64)
    assert (np.abs(twice - once) <= largest * 2**-10 + 448 * SUBNORMAL).all()


def test_int4_keys_keep_small_channels_beside_a_large_one() -> None:
    """Why keys have a scale for each channel: one for each token would round the small ones to nothing."""
    rng = np.random.default_rng(0)
    block = rng.uniform(-0.1, 0.1, (1, 2, 1, 16, 8)).astype(np.float16)
    block[..., 5] += np.float16(100)
    error = np.abs(decoded("int4", sealed("int4", block, 16), block.shape) - block)
    small = np.arange(8) != 5
    assert error[:, KEY][..., small].max() < 0.01
    assert error[:, VALUE][..., small].max() > 0.05


def per_token_value(data: np.ndarray, at: tuple[int, ...], shape: tuple[int, ...]) -> float:
    """An element of an int8 block, found by hand."""
    layer, part, head, token, channel = at
    _, _, heads, block_size, head_dim = shape
    record_bytes = -(-(block_size * head_dim + 2 * block_size) // 16) * 16
    record = data[((layer * 2 + part) * heads + head) * record_bytes :][:record_bytes].tobytes()
    quotient = np.frombuffer(record, np.int8)[token * head_dim + channel]
    (scale,) = np.frombuffer(record, "<f2", 1, block_size * head_dim + 2 * token)
    return float(np.float32(quotient) * np.float32(scale))


def int4_value(data: np.ndarray, at: tuple[int, ...], shape: tuple[int, ...]) -> float:
    """An element of an int4 block, found by hand."""
    layer, part, head, token, channel = at
    _, _, heads, block_size, head_dim = shape
    groups = (head_dim, block_size)
    payload_bytes = block_size * head_dim // 2
    key_bytes, value_bytes = (-(-(payload_bytes + 4 * n) // 16) * 16 for n in groups)
    start = layer * heads * (key_bytes + value_bytes)
    start += head * key_bytes if part == 0 else heads * key_bytes + head * value_bytes
    record = data[start : start + (key_bytes, value_bytes)[part]].tobytes()
    half = head_dim // 2
    byte = record[token * half + channel % half]
    code = byte & 15 if channel < half else byte >> 4
    scales = np.frombuffer(record, "<f2", groups[part], payload_bytes)
    minima = np.frombuffer(record, "<f2", groups[part], payload_bytes + 2 * groups[part])
    group = channel if part == 0 else token
    return float(np.float32(code) * np.float32(scales[group]) + np.float32(minima[group]))


@pytest.mark.parametrize(("name", "find"), [("int8", per_token_value), ("int4", int4_value)])
@pytest.mark.parametrize("shape", [(2, 2, 3, 4, 6), (1, 2, 1, 5, 2), (2, 2, 2, 16, 16)])
def test_every_byte_lies_where_the_layout_says(
    name: str, find: object, shape: tuple[int, ...]
) -> None:
    block = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    data = sealed(name, block, shape[3])
    found = decoded(name, data, shape)
    for at in np.ndindex(*shape):
        assert found[at] == find(data, at, shape)  # type: ignore[operator]


@pytest.mark.parametrize("name", QUANTISED)
def test_one_layer_of_some_blocks_is_decoded_like_the_whole(name: str) -> None:
    shape = (3, 2, 2, 4, 6)
    rng = np.random.default_rng(2)
    made = [rng.standard_normal(shape).astype(np.float16) for _ in range(5)]
    data = np.stack([sealed(name, block, 4) for block in made])
    whole = np.stack([decoded(name, row, shape) for row in data])
    for part in (KEY, VALUE):
        found = codec_named(name).decode_heads(data, np.array([3, 0, 3]), 1, part, shape)
        np.testing.assert_array_equal(found, whole[[3, 0, 3], 1, part])


def test_e4m3_has_two_hundred_and_fifty_four_numbers_and_each_is_its_own_nearest() -> None:
    codes = np.delete(np.arange(256), [0x7F, 0xFF]).astype(np.uint8)
    values = e4m3(codes)
    assert values.max() == 448.0
    assert np.abs(values)[values != 0].min() == 2.0**-9
    np.testing.assert_array_equal(encode_e4m3(values.astype(np.float32)), codes)


@given(st.floats(-1000, 1000, width=32))
def test_e4m3_rounds_to_the_nearest_and_halves_to_even(value: float) -> None:
    codes = np.delete(np.arange(0x80), [0x7F]).astype(np.uint8)
    distance = np.abs(e4m3(codes) - min(abs(value), 448.0))
    nearest = codes[distance == distance.min()]
    (found,) = encode_e4m3(np.array([value], dtype=np.float32))
    assert found & 0x7F == (nearest[0] if len(nearest) == 1 else nearest[nearest % 2 == 0][0])
    assert bool(found & 0x80) == bool(np.signbit(np.float32(value)))


def e4m3(codes: np.ndarray) -> np.ndarray:
    """Said bit by bit."""
    numbers = []
    for code in codes.tolist():
        exponent, mantissa = code >> 3 & 15, code & 7
        size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        numbers.append(-size if code & 0x80 else size)
    return np.array(numbers)


def test_wrong_sizes_are_refused() -> None:
    codec = codec_named("int8")
    block = np.zeros((1, 2, 1, 4, 6), dtype=np.float16)
    right = codec.block_bytes(1, 1, 4, 6)
    for num_tokens in (0, 5):
        with pytest.raises(ValueError, match=f"cannot hold {num_tokens}"):
            codec.encode(block, num_tokens, np.empty(right, np.uint8))
    with pytest.raises(ValueError, match=f"takes {right} bytes, not {right - 1}"):
        codec.encode(block, 4, np.empty(right - 1, np.uint8))
    with pytest.raises(ValueError, match=f"takes {right} bytes, not {right + 16}"):
        codec.decode(np.zeros(right + 16, np.uint8), block)


def test_int4_refuses_heads_of_an_odd_size() -> None:
    with pytest.raises(ValueError, match="even head_dim, not 7"):
        codec_named("int4").block_bytes(1, 1, 16, 7)
