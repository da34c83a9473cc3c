"""A decoder without pages, batches or tricks, in float64, written from the papers' formulas.

The tests' own idea of what the seven verbs compute together; shares no code with any backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.ops.base import (
    DecoderShape,
    Float32Array,
    HeadTensors,
    LayerTensors,
    OpsBackend,
    WeightTensor,
)

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ArrayTensor:
    """A `WeightTensor` over an array."""

    name: str
    values: Float32Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def encoding(self) -> str:
        return "F32"

    def raw(self) -> npt.NDArray[np.generic]:
        return self.values

    def to_float32(self) -> Float32Array:
        return self.values


@dataclass(frozen=True)
class RandomDecoder:
    """Random weights of one architecture."""

    shape: DecoderShape
    head: HeadTensors
    layers: list[LayerTensors]
    cos: Float32Array
    sin: Float32Array
    vocab_size: int

    def load(self, ops: OpsBackend) -> LoadedDecoder:
        return LoadedDecoder(
            ops,
            ops.load_head(self.shape, self.head),
            [ops.load_layer(self.shape, layer) for layer in self.layers],
            ops.load_rope(self.cos, self.sin),
        )


@dataclass(frozen=True)
class LoadedDecoder:
    """The same weights in a backend."""

    ops: OpsBackend
    head: Any
    layers: list[Any]
    rope: Any

    def forward(self, batch: Any, kv: Any) -> Float32Array:
        hidden = self.ops.embed(self.head, batch)
        hidden = self.ops.run_layers(hidden, self.layers, self.rope, batch, kv)
        return self.ops.logits(hidden, self.head, batch)


def random_decoder(
    rng: np.random.Generator,
    *,
    num_layers: int = 2,
    hidden_size: int = 12,
    inner_size: int = 20,
    num_kv_heads: int = 2,
    group: int = 2,
    head_dim: int = 8,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    tied: bool = True,
    vocab_size: int = 30,
    max_position: int = 64,
    sliding_window: int | None = None,
) -> RandomDecoder:
    """Weights scaled so that attention is neither flat nor a single spike."""

    def matrix(name: str, rows: int, columns: int) -> WeightTensor:
        values = rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        return ArrayTensor(name, values)

    def vector(name: str, size: int, mean: float) -> WeightTensor:
        return ArrayTensor(name, rng.normal(mean, 0.3, size).astype(np.float32))

    query, key = num_kv_heads * group * head_dim, num_kv_heads * head_dim
    layers = [
        LayerTensors(
            attention_norm=vector("attention_norm", hidden_size, 1),
            q_proj=matrix("q", query, hidden_size),
            k_proj=matrix("k", key, hidden_size),
            v_proj=matrix("v", key, hidden_size),
            o_proj=matrix("o", hidden_size, query),
            mlp_norm=vector("mlp_norm", hidden_size, 1),
            gate_proj=matrix("gate", inner_size, hidden_size),
            up_proj=matrix("up", inner_size, hidden_size),
            down_proj=matrix("down", hidden_size, inner_size),
            q_bias=vector("q_bias", query, 0) if qkv_bias else None,
            k_bias=vector("k_bias", key, 0) if qkv_bias else None,
            v_bias=vector("v_bias", key, 0) if qkv_bias else None,
            q_norm=vector("q_norm", head_dim, 1) if qk_norm else None,
            k_norm=vector("k_norm", head_dim, 1) if qk_norm else None,
        )
        for _ in range(num_layers)
    ]
    embedding = matrix("embedding", vocab_size, hidden_size)
    output = embedding if tied else matrix("output", vocab_size, hidden_size)
    angles = np.outer(np.arange(max_position), 20.0 ** -(np.arange(head_dim // 2) / head_dim))
    return RandomDecoder(
        shape=DecoderShape(
            hidden_size,
            num_kv_heads * group,
            num_kv_heads,
            head_dim,
            1e-5,
            head_dim**-0.5,
            sliding_window,
        ),
        head=HeadTensors(embedding, vector("final_norm", hidden_size, 1), output),
        layers=layers,
        cos=np.cos(angles).astype(np.float32),
        sin=np.sin(angles).astype(np.float32),
        vocab_size=vocab_size,
    )


def dense_logits(
    decoder: RandomDecoder, token_ids: npt.NDArray[np.int32], kv_dtype: npt.DTypeLike
) -> Float64Array:
    """Logits of a whole sequence, ``(T, vocab)``; K and V are rounded to `kv_dtype`."""
    shape = decoder.shape
    hidden = _wide(decoder.head.embedding)[token_ids]
    for layer in decoder.layers:
        hidden = hidden + _attention(decoder, layer, hidden, kv_dtype)
        normed = _norm(hidden, layer.mlp_norm, shape.rms_norm_eps)
        gate, up = normed @ _wide(layer.gate_proj).T, normed @ _wide(layer.up_proj).T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ _wide(layer.down_proj).T
    final = _norm(hidden, decoder.head.final_norm, shape.rms_norm_eps)
    logits: Float64Array = final @ _wide(decoder.head.output).T
    return logits


def _attention(
    decoder: RandomDecoder, layer: LayerTensors, hidden: Float64Array, kv_dtype: npt.DTypeLike
) -> Float64Array:
    shape, length = decoder.shape, len(hidden)
    normed = _norm(hidden, layer.attention_norm, shape.rms_norm_eps)

    def project(
        matrix: WeightTensor, bias: WeightTensor | None, norm: WeightTensor | None
    ) -> Float64Array:
        values = normed @ _wide(matrix).T + (0 if bias is None else _wide(bias))
        heads = values.reshape(length, -1, shape.head_dim)
        return heads if norm is None else _norm(heads, norm, shape.rms_norm_eps)

    query = _rotate(decoder, project(layer.q_proj, layer.q_bias, layer.q_norm))
    key = _rotate(decoder, project(layer.k_proj, layer.k_bias, layer.k_norm))
    value = project(layer.v_proj, layer.v_bias, None)
    key, value = (x.astype(kv_dtype).astype(np.float64) for x in (key, value))
    context = np.empty_like(query)
    for head in range(shape.num_heads):
        kv_head = head // (shape.num_heads // shape.num_kv_heads)
        for t in range(length):
            first = max(0, t + 1 - (shape.sliding_window or length))
            scores = key[first : t + 1, kv_head] @ query[t, head] * shape.attention_scale
            weights = np.exp(scores - scores.max())
            context[t, head] = weights @ value[first : t + 1, kv_head] / weights.sum()
    mixed: Float64Array = context.reshape(length, -1) @ _wide(layer.o_proj).T
    return mixed


def _rotate(decoder: RandomDecoder, heads: Float64Array) -> Float64Array:
    half = decoder.shape.head_dim // 2
    turn = decoder.cos[: len(heads)] + 1j * decoder.sin[: len(heads)].astype(np.float64)
    planes = (heads[..., :half] + 1j * heads[..., half:]) * turn[:, None, :]
    return np.concatenate((planes.real, planes.imag), axis=-1)


def _norm(values: Float64Array, weight: WeightTensor, eps: float) -> Float64Array:
    scale = 1 / np.sqrt((values**2).mean(axis=-1, keepdims=True) + eps)
    normed: Float64Array = values * scale * _wide(weight)
    return normed


def _wide(tensor: WeightTensor) -> Float64Array:
    return tensor.to_float32().astype(np.float64)
