"""Guards the native K/V codecs: the NumPy ones' very bytes, so that either reads what the other sealed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.codec import KVCodec, codec_named

native = pytest.importorskip("ostinato.cache.codec.native")
FORMATS = ("fp8", "int8", "int4")
KINDS = ("normal", "outliers", "tiny", "huge", "zeros", "constant", "infinite")


def block_of(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    block = rng.standard_normal(shape)
    match kind:
        case "outliers":
            block *= np.where(rng.random(shape[-1]) < 0.2, 50, 1)
        case "tiny":
            block *= 2.0 ** rng.integers(-26, -10, shape)
        case "huge":
            block *= 20000
        case "zeros":
            block *= rng.random(shape[:-1])[..., None] < 0.5
        case "constant":
            block[...] = 1.25
        case "infinite":
            block[rng.random(shape) < 0.02] = np.inf
    with np.errstate(over="ignore"):
        return block.astype(np.float16)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    block_size = draw(st.sampled_from([1, 3, 16, 32]))
    dim = draw(st.sampled_from([16, 32, 48, 64, 80, 128]))
    shape = (draw(st.integers(1, 2)), 2, draw(st.integers(1, 3)), block_size, dim)
    block = block_of(rng, shape, draw(st.sampled_from(KINDS)))
    num_tokens = draw(st.integers(1, block_size))
    block[:, :, :, num_tokens:] = np.nan
    return block, num_tokens


def sealed(codec: KVCodec, block: np.ndarray, num_tokens: int) -> np.ndarray:
    layers, _, heads, block_size, dim = block.shape
    out = np.full(codec.block_bytes(layers, heads, block_size, dim), 0xFF, np.uint8)
    codec.encode(block, num_tokens, out)
    return out


def isas() -> list[str]:
    from tests.ops.backends import ISAS

    return ISAS


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40, deadline=None)
@given(block=blocks())
def test_both_codecs_write_and_read_the_same(
    isa: str, name: str, block: tuple[np.ndarray, int]
) -> None:
    codec = codec_named(name)
    ours = native.NativeKVCodec(codec, isa)
    if name == "int4":  # of 0 and -0 either may be the minimum
        block = block[0] + np.float16(0), block[1]
    wanted = sealed(codec, *block)
    np.testing.assert_array_equal(sealed(ours, *block), wanted)
    opened, wanted_opened = np.full_like(block[0], np.nan), np.empty_like(block[0])
    wanted.flags.writeable = False  # as bytes that a tier has mapped
    ours.decode(wanted, opened)
    codec.decode(wanted, wanted_opened)
    # One of the two may multiply and add in one rounding.
    np.testing.assert_allclose(opened, wanted_opened, rtol=1e-3, atol=1e-7)
    assert (opened == wanted_opened).mean() > 0.98


@pytest.mark.parametrize("name", FORMATS)
def test_a_nan_spoils_its_group_and_nothing_else(name: str) -> None:
    block = np.ones((1, 2, 1, 4, 32), np.float16)
    block[0, :, 0, 2, 5] = np.nan
    codec = native.NativeKVCodec(codec_named(name))
    opened = np.empty_like(block)
    codec.decode(sealed(codec, block, 4), opened)
    spoilt = np.isnan(opened)
    wanted = np.zeros_like(spoilt)
    wanted[0, 1, 0, 2] = True
    if name == "int4":
        wanted[0, 0, 0, :, 5] = True
    else:
        wanted[0, 0, 0, 2] = True
    np.testing.assert_array_equal(spoilt, wanted)
    np.testing.assert_allclose(opened[~spoilt], 1, rtol=2e-3)


@pytest.mark.parametrize("name", FORMATS)
def test_what_the_kernels_do_not_take_is_sealed_all_the_same(name: str) -> None:
    rng = np.random.default_rng(2)
    codec = codec_named(name)
    ours = native.NativeKVCodec(codec)
    odd = rng.standard_normal((1, 2, 1, 4, 24)).astype(np.float16)
    strided = rng.standard_normal((1, 2, 1, 4, 64)).astype(np.float16)[..., ::2]
    for block in (odd, strided, strided.astype(np.float32)):
        np.testing.assert_array_equal(sealed(ours, block, 3), sealed(codec, block, 3))
        opened, wanted = np.empty(block.shape, np.float16), np.empty(block.shape, np.float16)
        ours.decode(sealed(codec, block, 3), opened)
        codec.decode(sealed(codec, block, 3), wanted)
        np.testing.assert_allclose(opened, wanted, rtol=1e-3)


def test_wrong_shapes_are_value_errors() -> None:
    codec = native.NativeKVCodec(codec_named("int8"))
    block = np.zeros((1, 2, 1, 4, 32), np.float16)
    right = np.zeros(codec.block_bytes(1, 1, 4, 32), np.uint8)
    for tokens in (0, 5, -1):
        with pytest.raises(ValueError, match="tokens"):
            codec.encode(block, tokens, right)
    for size in (right.size - 16, right.size + 16):
        with pytest.raises(ValueError, match="size"):
            codec.encode(block, 1, np.zeros(size, np.uint8))
        with pytest.raises(ValueError, match="size"):
            codec.decode(np.zeros(size, np.uint8), block)
    with pytest.raises(ValueError, match="no native codec"):
        native.NativeKVCodec(codec_named("fp16"))
