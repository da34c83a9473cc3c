"""Guards the K/V that later tokens read: what became NaN or infinite when it was stored is an error on every
backend, at once, since attention may make plausible numbers of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.quantised_storage import BlockWrites, QuantisedKVStorage
from ostinato.errors import NonFiniteKVError
from ostinato.ops.base import Float32Array, OpsBackend
from tests.ops.backends import EXACT_BACKENDS, ISAS, cpu_backend, exact_backend
from tests.ops.dense import ArrayTensor, RandomDecoder, random_decoder
from tests.ops.paging import PagedSequence, Piece, make_batch

HEAD_DIM, BLOCK_SIZE, TOKENS = 16, 16, 20
ALL_BACKENDS = [*EXACT_BACKENDS, *(f"int8-{isa}" for isa in ISAS)]


def backend_named(name: str) -> OpsBackend:
    if name.startswith("int8-"):
        found: OpsBackend = cpu_backend(name.removeprefix("int8-"), "int8")
        return found
    return exact_backend(name)


def decoder_with_bias(part: str, layer: int, size: float) -> RandomDecoder:
    """One element of K or V of one layer is about `size` for every token."""
    rng = np.random.default_rng(7)
    decoder = random_decoder(
        rng, hidden_size=32, inner_size=64, head_dim=HEAD_DIM, qkv_bias=True, vocab_size=40
    )
    name = f"{part}_bias"
    tensor = getattr(decoder.layers[layer], name)
    values = tensor.to_float32().copy()
    values[HEAD_DIM + 3] = size  # of the second head
    decoder.layers[layer] = replace(decoder.layers[layer], **{name: ArrayTensor(name, values)})
    return decoder


def logits(decoder: RandomDecoder, backend: str, dtype: KVDtype, wanted: int) -> Float32Array:
    ops = backend_named(backend)
    spec = KVCacheSpec(len(decoder.layers), 2, HEAD_DIM, dtype, BLOCK_SIZE)
    kv = ops.allocate_kv(spec, 4)
    sequence = PagedSequence(np.array([2, 0], np.int32), BLOCK_SIZE)
    batch = make_batch([Piece(sequence, list(range(TOKENS)), range(TOKENS - wanted, TOKENS))])
    if isinstance(kv, QuantisedKVStorage):
        kv.open_for_write(BlockWrites.of_slots(batch.slot_mapping, BLOCK_SIZE))
    return decoder.load(ops).forward(batch, kv)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize("part", ["k", "v"])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("dtype", [KVDtype.FP16, KVDtype.INT8])
def test_k_and_v_beyond_fp16_are_an_error(
    backend: str, part: str, layer: int, dtype: KVDtype
) -> None:
    for wanted in (0, 1, TOKENS):  # also of a chunk in the middle of a prompt, which has no logits
        with pytest.raises(NonFiniteKVError, match="--kv-dtype fp32"):
            logits(decoder_with_bias(part, layer, 3e5), backend, dtype, wanted)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize("dtype", [KVDtype.FP16, KVDtype.FP32])
@pytest.mark.parametrize("size", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_an_error_in_every_type(
    backend: str, dtype: KVDtype, size: float
) -> None:
    with pytest.raises(NonFiniteKVError):
        logits(decoder_with_bias("v", 1, size), backend, dtype, 1)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize(("dtype", "size"), [(KVDtype.FP16, 65_000.0), (KVDtype.FP32, 3e5)])
def test_what_the_type_can_hold_is_computed(backend: str, dtype: KVDtype, size: float) -> None:
    assert np.isfinite(logits(decoder_with_bias("v", 1, size), backend, dtype, 1)).all()
