"""Guards the native kernels of a whole layer against the NumPy oracle, on random shapes, block tables, windows
and K/V types, with NaN wherever nothing may be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.ops.base import (
    BatchMetadata,
    DecoderShape,
    Float32Array,
    LayerTensors,
    OpsBackend,
    WeightTensor,
)
from ostinato.ops.reference import ReferenceBackend
from tests.ops.backends import all_isas, cpu_backend
from tests.ops.dense import ArrayTensor
from tests.ops.paging import PagedSequence, Piece, make_batch

LAYER, NUM_LAYERS = 1, 2
REFERENCE = ReferenceBackend()


@dataclass(frozen=True)
class HalfTensor(ArrayTensor):
    """An `ArrayTensor` that a file would hold as fp16."""

    @property
    def encoding(self) -> str:
        return "F16"

    def raw(self) -> np.ndarray:
        return self.values.astype(np.float16)


@dataclass
class Case:
    """A layer, and the requests of one step."""

    rng: np.random.Generator
    shape: DecoderShape
    inner: int
    spec: KVCacheSpec
    counts: list[int]
    past: list[int]
    shared: int
    bias: bool
    qk_norm: bool
    half_weights: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3, 4, 7, 8]))
    dim = draw(st.sampled_from([16, 32, 48, 64, 80, 96, 128]))
    hidden = draw(st.sampled_from([8, 32, 65, 96, 256]))
    window = draw(st.sampled_from([None, None, 1, 33, 64, 100, 250]))
    block_size = draw(st.sampled_from([1, 4, 16, 32, 128]))
    dtype = draw(st.sampled_from([KVDtype.FP16, KVDtype.FP32]))
    requests = draw(st.integers(1, 6))
    shared = draw(st.sampled_from([0, 64, 128, 200])) // block_size * block_size
    return Case(
        rng=np.random.default_rng(draw(st.integers(0, 2**31))),
        shape=DecoderShape(hidden, heads, kv_heads, dim, 1e-5, dim**-0.5, window),
        inner=draw(st.sampled_from([16, 32, 70, 128])),
        spec=KVCacheSpec(NUM_LAYERS, kv_heads, dim, dtype, block_size),
        counts=[draw(st.sampled_from([1, 1, 1, 2, 5, 9, 70])) for _ in range(requests)],
        past=[shared + draw(st.integers(0, 300)) for _ in range(requests)],
        shared=shared,
        bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        half_weights=draw(st.booleans()),
    )


def layer_tensors(case: Case) -> LayerTensors:
    shape = case.shape
    query, key = (n * shape.head_dim for n in (shape.num_heads, shape.num_kv_heads))

    def vector(size: int) -> WeightTensor:
        return ArrayTensor("v", case.rng.standard_normal(size).astype(np.float32))

    def matrix(rows: int, columns: int) -> WeightTensor:
        values = case.rng.standard_normal((rows, columns)).astype(np.float32) / np.sqrt(columns)
        if case.half_weights:
            return HalfTensor("m", values.astype(np.float16).astype(np.float32))
        return ArrayTensor("m", values.astype(np.float32))

    return LayerTensors(
        attention_norm=vector(shape.hidden_size),
        q_proj=matrix(query, shape.hidden_size),
        k_proj=matrix(key, shape.hidden_size),
        v_proj=matrix(key, shape.hidden_size),
        o_proj=matrix(shape.hidden_size, query),
        mlp_norm=vector(shape.hidden_size),
        gate_proj=matrix(case.inner, shape.hidden_size),
        up_proj=matrix(case.inner, shape.hidden_size),
        down_proj=matrix(shape.hidden_size, case.inner),
        q_bias=vector(query) if case.bias else None,
        k_bias=vector(key) if case.bias else None,
        v_bias=vector(key) if case.bias else None,
        q_norm=vector(shape.head_dim) if case.qk_norm else None,
        k_norm=vector(shape.head_dim) if case.qk_norm else None,
    )


def batch_of(case: Case) -> tuple[BatchMetadata, int]:
    """The step, and how many blocks the K/V memory must have."""
    size = case.spec.block_size
    ends = [past + count for past, count in zip(case.past, case.counts, strict=True)]
    width = -(-max(ends) // size)
    tables = case.rng.permutation(len(ends) * width + 1).astype(np.int32)[: len(ends) * width]
    tables = tables.reshape(len(ends), width)
    tables[:, : case.shared // size] = tables[0, : case.shared // size]
    pieces = []
    for table, past, end in zip(tables, case.past, ends, strict=True):
        sequence = PagedSequence(table[: -(-end // size)], size, past)
        pieces.append(Piece(sequence, [0] * (end - past)))
    return make_batch(pieces), len(ends) * width + 1


def poisoned_memories(case: Case, batch: BatchMetadata, num_blocks: int, count: int) -> list[Any]:
    """The same random K/V of earlier tokens several times, NaN everywhere else."""
    spec = case.spec
    kvs = [REFERENCE.allocate_kv(spec, num_blocks) for _ in range(count)]
    kvs[0].array[...] = np.nan
    for request, past in enumerate(case.past):
        for position in range(0 if request == 0 else case.shared, past):
            block = batch.block_tables[request, position // spec.block_size]
            values = case.rng.standard_normal((NUM_LAYERS, 2, spec.num_kv_heads, spec.head_dim))
            kvs[0].array[block, :, :, :, position % spec.block_size] = values
    for kv in kvs[1:]:
        kv.array[...] = kvs[0].array
    return kvs


def run_layer(
    ops: OpsBackend,
    case: Case,
    tensors: LayerTensors,
    batch: BatchMetadata,
    kv: Any,
    hidden: Float32Array,
    rope: tuple[Float32Array, Float32Array],
) -> tuple[Float32Array, Float32Array]:
    """The attention's output, and the layer's."""
    layer = ops.load_layer(case.shape, tensors)
    query = ops.qkv(hidden, layer, LAYER, ops.load_rope(*rope), batch, kv)
    context = ops.attention(query, layer, LAYER, batch, kv)
    return context.copy(), ops.mlp(ops.attention_output(context, layer, hidden.copy()), layer)


@all_isas
@given(case=cases())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_layer_agrees_with_the_oracle(isa: str, case: Case) -> None:
    tensors = layer_tensors(case)
    batch, num_blocks = batch_of(case)
    mine, theirs, fast = poisoned_memories(case, batch, num_blocks, 3)
    hidden = case.rng.standard_normal((batch.num_tokens, case.shape.hidden_size), np.float32)
    angles = case.rng.uniform(0, 6, (int(batch.seq_lens.max()), case.shape.head_dim // 2))
    rope = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    step = (case, tensors, batch)
    context, out = run_layer(cpu_backend(isa), *step, mine, hidden, rope)
    wanted_context, wanted = run_layer(REFERENCE, *step, theirs, hidden, rope)
    half = case.spec.dtype is KVDtype.FP16  # the two may round a key to neighbouring halves
    np.testing.assert_allclose(context, wanted_context, atol=6e-3 if half else 2e-4, rtol=1e-3)
    np.testing.assert_allclose(out, wanted, atol=6e-3 if half else 3e-4, rtol=1e-3)
    stored, wanted_stored = (kv.array.astype(np.float32) for kv in (mine, theirs))
    np.testing.assert_allclose(stored, wanted_stored, atol=2e-5, rtol=2e-3)
    # The weights are floats, so of the fast mode only the attention differs, in int16 or, with VNNI, in int8.
    fast_context, _ = run_layer(cpu_backend(isa, "int8"), *step, fast, hidden, rope)
    if isa == "avx512_vnni":
        assert_near(fast_context, wanted_context, 4e-2)
    else:
        np.testing.assert_allclose(
            fast_context, wanted_context, atol=6e-3 if half else 4e-3, rtol=1e-2
        )


def assert_near(actual: Float32Array, wanted: Float32Array, share: float) -> None:
    """The error is at most `share` of the values by norm, and four times that in any one place.

    Rounding errors of single elements have tails: over thousands of random cases a limit on the largest
    alone is either broken by chance or too wide to find anything.
    """
    error = np.abs(actual - wanted)
    assert np.linalg.norm(error) <= share * np.linalg.norm(wanted) + 1e-6
    assert error.max() <= 4 * share * max(1.0, float(np.abs(wanted).max()))
