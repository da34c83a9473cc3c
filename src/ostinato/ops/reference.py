"""Plain NumPy in float32: the oracle that every other backend is tested against.

Written to be read. It is as fast as BLAS makes it, and no faster: weights are kept in float32, and
attention gathers a request's K/V out of its blocks, one layer at a time, and multiplies matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.cache.codec import KEY, VALUE
from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.quantised_storage import QuantisedKVStorage
from ostinato.cache.storage import HostKVStorage, KVStorage
from ostinato.errors import ConfigError, NonFiniteKVError
from ostinato.ops.base import (
    AttentionMass,
    BackendInfo,
    BatchMetadata,
    DecoderShape,
    Float32Array,
    HeadTensors,
    Int32Array,
    LayerTensors,
    OpsBackend,
    WeightTensor,
)

SCORE_BUDGET = 1 << 21
"""Attention scores held at once, over all heads: 8 MiB."""

MAX_TILE = 128
"""Queries a tile at most: half a tile's products with its own keys are wasted on the future."""


@dataclass(frozen=True, slots=True)
class ReferenceLayer:
    """One decoder layer; matrices are ``(out_features, in_features)``.

    Attributes:
        qkv: rows of Q, K and V, in this order.
        qkv_bias: ``(rows of qkv,)`` or None.
        gate_up: rows of the gate, then of the up projection.
    """

    shape: DecoderShape
    attention_norm: Float32Array
    qkv: Float32Array
    qkv_bias: Float32Array | None
    q_norm: Float32Array | None
    k_norm: Float32Array | None
    o_proj: Float32Array
    mlp_norm: Float32Array
    gate_up: Float32Array
    down_proj: Float32Array


@dataclass(frozen=True, slots=True)
class ReferenceHead:
    """`output` is the same array as `embedding` when the two are tied."""

    shape: DecoderShape
    embedding: Float32Array
    final_norm: Float32Array
    output: Float32Array


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Each ``(max_position, head_dim / 2)``."""

    cos: Float32Array
    sin: Float32Array


class ReferenceBackend(OpsBackend):
    """NumPy on the host. `Hidden`, `Query` and `Context` are float32 arrays of their full shapes."""

    @property
    def info(self) -> BackendInfo:
        return BackendInfo("reference", {"numpy": np.__version__, "arithmetic": "float32"})

    def allocate_kv(
        self, spec: KVCacheSpec, num_blocks: int, max_open: int | None = None
    ) -> HostKVStorage | QuantisedKVStorage:
        if spec.dtype.is_quantised:
            return QuantisedKVStorage(spec, num_blocks, max_open or num_blocks)
        return HostKVStorage(spec, num_blocks)

    def load_layer(self, shape: DecoderShape, tensors: LayerTensors) -> ReferenceLayer:
        t = tensors
        return ReferenceLayer(
            shape=shape,
            attention_norm=t.attention_norm.to_float32(),
            qkv=_stack_rows([t.q_proj, t.k_proj, t.v_proj]),
            qkv_bias=t.qkv_bias(),
            q_norm=None if t.q_norm is None else t.q_norm.to_float32(),
            k_norm=None if t.k_norm is None else t.k_norm.to_float32(),
            o_proj=t.o_proj.to_float32(),
            mlp_norm=t.mlp_norm.to_float32(),
            gate_up=_stack_rows([t.gate_proj, t.up_proj]),
            down_proj=t.down_proj.to_float32(),
        )

    def load_head(self, shape: DecoderShape, tensors: HeadTensors) -> ReferenceHead:
        embedding = tensors.embedding.to_float32()
        tied = tensors.output is tensors.embedding
        return ReferenceHead(
            shape=shape,
            embedding=embedding,
            final_norm=tensors.final_norm.to_float32(),
            output=embedding if tied else tensors.output.to_float32(),
        )

    def load_rope(self, cos: Float32Array, sin: Float32Array) -> RopeTables:
        return RopeTables(cos, sin)

    def embed(self, head: ReferenceHead, batch: BatchMetadata) -> Float32Array:
        return head.embedding[batch.token_ids]

    def qkv(
        self,
        hidden: Float32Array,
        layer: ReferenceLayer,
        layer_index: int,
        rope: RopeTables,
        batch: BatchMetadata,
        kv: KVStorage,
    ) -> Float32Array:
        shape = layer.shape
        packed = rms_norm(hidden, layer.attention_norm, shape.rms_norm_eps) @ layer.qkv.T
        if layer.qkv_bias is not None:
            packed += layer.qkv_bias
        heads = packed.reshape(batch.num_tokens, -1, shape.head_dim)
        first_key = shape.num_heads
        first_value = first_key + shape.num_kv_heads
        query, key = heads[:, :first_key], heads[:, first_key:first_value]
        if layer.q_norm is not None:
            query = rms_norm(query, layer.q_norm, shape.rms_norm_eps)
        if layer.k_norm is not None:
            key = rms_norm(key, layer.k_norm, shape.rms_norm_eps)
        cos, sin = rope.cos[batch.positions], rope.sin[batch.positions]
        write_kv(kv, layer_index, batch, rotate(key, cos, sin), heads[:, first_value:])
        return rotate(query, cos, sin)

    def attention(
        self,
        query: Float32Array,
        layer: ReferenceLayer,
        layer_index: int,
        batch: BatchMetadata,
        kv: KVStorage,
    ) -> Float32Array:
        memory = host_memory(kv)
        context = np.empty_like(query)
        for request in range(batch.num_requests):
            start, end = batch.query_start[request : request + 2]
            if start == end:
                continue
            seq_len = int(batch.seq_lens[request])
            oldest = first_visible(seq_len - int(end - start), layer.shape.sliding_window)
            skipped = oldest // kv.spec.block_size
            table, seen = (
                batch.block_tables[request, skipped:],
                seq_len - skipped * kv.spec.block_size,
            )
            keys = gather(memory, layer_index, KEY, table, seen)
            values = gather(memory, layer_index, VALUE, table, seen)
            scaled = query[start:end] * np.float32(layer.shape.attention_scale)
            context[start:end] = causal_attention(scaled, keys, values, layer.shape.sliding_window)
        return context

    def attention_mass(
        self,
        query: Float32Array,
        layer: ReferenceLayer,
        layer_index: int,
        batch: BatchMetadata,
        kv: KVStorage,
        mass: AttentionMass,
    ) -> None:
        window = layer.shape.sliding_window
        for request in range(batch.num_requests):
            start, end = batch.query_start[request : request + 2]
            seq_len = int(batch.seq_lens[request])
            if mass.window is not None:
                start = max(start, end - mass.window)
            if start == end:
                continue
            oldest = first_visible(seq_len - int(end - start), window)
            skipped = oldest // kv.spec.block_size
            table = batch.block_tables[request, skipped : kv.spec.blocks_for(seq_len)]
            seen = seq_len - skipped * kv.spec.block_size
            keys = gather(host_memory(kv), layer_index, KEY, table, seen)
            scaled = query[start:end] * np.float32(layer.shape.attention_scale)
            by_key = attention_received(scaled, keys, window)
            first = np.arange(0, seen, kv.spec.block_size)
            mass.sums[request, skipped : skipped + len(table)] += np.add.reduceat(by_key, first)

    def attention_output(
        self, context: Float32Array, layer: ReferenceLayer, hidden: Float32Array
    ) -> Float32Array:
        hidden += context.reshape(context.shape[0], -1) @ layer.o_proj.T
        return hidden

    def mlp(self, hidden: Float32Array, layer: ReferenceLayer) -> Float32Array:
        gate_up = rms_norm(hidden, layer.mlp_norm, layer.shape.rms_norm_eps) @ layer.gate_up.T
        gate, up = np.split(gate_up, 2, axis=1)
        hidden += (silu(gate) * up) @ layer.down_proj.T
        return hidden

    def logits(
        self, hidden: Float32Array, head: ReferenceHead, batch: BatchMetadata
    ) -> Float32Array:
        wanted = hidden[batch.logits_indices]
        return rms_norm(wanted, head.final_norm, head.shape.rms_norm_eps) @ head.output.T


def rms_norm(values: Float32Array, weight: Float32Array, eps: float) -> Float32Array:
    """Root-mean-square norm over the last axis (Zhang & Sennrich 2019, arXiv 1910.07467)."""
    mean_square = np.mean(np.square(values), axis=-1, keepdims=True, dtype=np.float32)
    return np.multiply(values / np.sqrt(mean_square + np.float32(eps)), weight, dtype=np.float32)


def silu(values: Float32Array) -> Float32Array:
    """``x × sigmoid(x)``; the sigmoid through tanh, which cannot overflow."""
    half = values * np.float32(0.5)
    gated: Float32Array = half * np.tanh(half) + half
    return gated


def rotate(heads: Float32Array, cos: Float32Array, sin: Float32Array) -> Float32Array:
    """Rotary embedding, rotate-half form: element i turns with element ``i + head_dim / 2``.

    Args:
        heads: ``(T, heads, head_dim)``.
        cos: ``(T, head_dim / 2)``, of each token's position.
        sin: likewise.
    """
    first, second = np.split(heads, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def host_memory(kv: KVStorage) -> HostKVStorage | QuantisedKVStorage:
    """K/V memory of this process.

    Raises:
        ConfigError: for any other storage; a backend reads only what it allocated.
    """
    if not isinstance(kv, HostKVStorage | QuantisedKVStorage):
        raise ConfigError(
            f"the reference backend needs K/V in host memory, not {type(kv).__name__}"
        )
    return kv


def write_kv(
    kv: KVStorage, layer_index: int, batch: BatchMetadata, key: Float32Array, value: Float32Array
) -> None:
    """Store K and V, each ``(T, kv heads, head_dim)``, in the slots of the batch.

    Raises:
        NonFiniteKVError: they are not finite in the memory's type; nothing is stored.
    """
    memory = host_memory(kv)
    dtype = memory.array.dtype if isinstance(memory, HostKVStorage) else memory.open.dtype
    with np.errstate(over="ignore"):
        if not all(np.isfinite(part.astype(dtype, copy=False)).all() for part in (key, value)):
            raise NonFiniteKVError
    block_ids, offsets = np.divmod(batch.slot_mapping, kv.spec.block_size)
    memory.write(block_ids, offsets, layer_index, key, value)


def gather(
    kv: HostKVStorage | QuantisedKVStorage,
    layer_index: int,
    part: int,
    block_table: Int32Array,
    seq_len: int,
) -> Float32Array:
    """K or V (`part`) of one sequence and one layer, ``(kv heads, seq_len, head_dim)`` float32.

    Slots behind `seq_len` may hold anything, NaN included, and are cut off before any arithmetic.
    """
    pages = kv.read(block_table[: kv.spec.blocks_for(seq_len)], layer_index, part)
    num_pages, num_kv_heads, block_size, head_dim = pages.shape
    ordered = np.empty((num_kv_heads, num_pages, block_size, head_dim), dtype=np.float32)
    ordered[...] = pages.transpose(1, 0, 2, 3)
    return ordered.reshape(num_kv_heads, -1, head_dim)[:, :seq_len]


def first_visible(position: int, window: int | None) -> int:
    """The oldest position that a token at `position` sees."""
    return 0 if window is None else max(0, position - window + 1)


def causal_attention(
    query: Float32Array, keys: Float32Array, values: Float32Array, window: int | None = None
) -> Float32Array:
    """Attention of the last q positions of a sequence over all of it.

    Queries go in tiles, so that the scores of a long chunk over a long context never lie in memory
    at once, and a tile is multiplied only with the keys that one of its queries sees.

    Args:
        query: ``(q, heads, head_dim)``, already scaled; query i is at position ``s - q + i``.
        keys: ``(kv heads, s, head_dim)``.
        values: likewise.
        window: how many positions a query sees, its own included; None for all before it.

    Returns:
        ``(q, heads, head_dim)``.
    """
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    group = num_heads // num_kv_heads
    # (kv heads, group, q, head_dim): a group shares its keys, so that one product serves all of it
    grouped = query.reshape(num_queries, num_kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    context = np.empty((num_queries, num_kv_heads, group, head_dim), dtype=np.float32)
    tile = max(1, min(num_queries, MAX_TILE, SCORE_BUDGET // (num_heads * seq_len)))
    for start in range(0, num_queries, tile):
        end = min(start + tile, num_queries)
        visible = seq_len - num_queries + end
        oldest = first_visible(visible - (end - start), window)
        rows = grouped[:, :, start:end].reshape(num_kv_heads, -1, head_dim)
        scores = rows @ keys[:, oldest:visible].transpose(0, 2, 1)
        by_head = scores.reshape(num_heads, end - start, visible - oldest)
        hide_future(by_head)
        if window is not None:
            hide_past(by_head, window)
        weights, totals = exponentials(scores)
        mixed = (weights @ values[:, oldest:visible]) / totals
        context[start:end] = mixed.reshape(num_kv_heads, group, -1, head_dim).transpose(2, 0, 1, 3)
    return context.reshape(num_queries, num_heads, head_dim)


def attention_received(query: Float32Array, keys: Float32Array, window: int | None) -> Float32Array:
    """Softmax weights of `causal_attention` with the same arguments, ``(s,)``: summed over queries and heads.

    One query at a time: slow, and nothing to get wrong. Keys that no query sees may hold anything.
    """
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    received = np.zeros(seq_len, dtype=np.float32)
    for index, position in enumerate(range(seq_len - num_queries, seq_len)):
        oldest = first_visible(position, window)
        grouped = query[index].reshape(num_kv_heads, num_heads // num_kv_heads, head_dim)
        weights, totals = exponentials(grouped @ keys[:, oldest : position + 1].transpose(0, 2, 1))
        received[oldest : position + 1] += (weights / totals).sum(axis=(0, 1))
    return received


def hide_future(scores: Float32Array) -> None:
    """Set to -inf what lies after each query; ``(heads, n, visible)``, the last query sees all."""
    num_queries = scores.shape[1]
    if num_queries > 1:
        future = np.full((num_queries, num_queries), -np.inf, dtype=np.float32)
        scores[:, :, -num_queries:] += np.triu(future, k=1)


def hide_past(scores: Float32Array, window: int) -> None:
    """Set to -inf what is older than each query's window; shaped as for `hide_future`."""
    num_queries, num_keys = scores.shape[1:]
    newest = num_keys - num_queries + np.arange(num_queries)[:, None]  # each query's own key
    scores[:, np.arange(num_keys) <= newest - window] = -np.inf


def exponentials(scores: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Numerators and denominators of a softmax over the last axis; works in place.

    The division is left to the caller, who does it after the product with the values, where there is
    less to divide. Every row must have a finite score.
    """
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return scores, scores.sum(axis=-1, keepdims=True)


def _stack_rows(tensors: Sequence[WeightTensor]) -> Float32Array:
    """One matrix of the rows of several: one product instead of several."""
    parts = [tensor.to_float32() for tensor in tensors]
    return np.concatenate(parts)
