"""The native CPU backend: the contract of `base.py` over the C++ kernels of `csrc`.

`Hidden`, `Query` and `Context` are float32 arrays of their full shapes. With ``activation_dtype="fp32"`` every
product multiplies float32 activations with the dequantised weights. With ``"int8"`` activations are rounded
to int8 in groups of 32 before a product with integer weights; see docs/kernels.md for what that costs in
quality and saves in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ostinato import _native
from ostinato.cache.codec.native import NativeKVCodec
from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.quantised_storage import QuantisedKVStorage
from ostinato.cache.storage import HostKVStorage, KVStorage
from ostinato.errors import ConfigError, NonFiniteKVError, UnsupportedKernelsError
from ostinato.ops.base import (
    AttentionMass,
    BackendInfo,
    BatchMetadata,
    DecoderShape,
    Float32Array,
    HeadTensors,
    LayerTensors,
    OpsBackend,
    WeightTensor,
)
from ostinato.ops.cpu_sampling import CpuSampling
from ostinato.ops.cpu_weights import RowTargets, WeightDtype, pack
from ostinato.ops.packed_weights import PackedWeights

ActivationDtype: TypeAlias = Literal["int8", "fp32"]

GATE_UP_UNIT = 32
"""Channels of the gate that lie together before the same channels of the up projection."""

HEAD_DIM_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class CpuLayer:
    """One layer: the packed weights, and its shape for the calls that allocate outputs."""

    shape: DecoderShape
    weights: Any


@dataclass(frozen=True, slots=True)
class CpuHead:
    """Embedding, final norm and output matrix."""

    hidden_size: int
    vocab_size: int
    weights: Any


class CpuBackend(OpsBackend):
    """Kernels for AVX2, AVX-512, AVX-512 VNNI and NEON; the best that this CPU runs is chosen.

    Args:
        threads: workers, the calling thread included; 0 takes as many as CPUs may really be used.
        isa: forces an instruction set, for tests; "" takes the best.
        activation_dtype: see the module's docstring.
        weight_dtype: what matrices are packed to.

    Raises:
        UnsupportedKernelsError: if this CPU cannot run `isa`, or the system does not give so many threads.
    """

    def __init__(
        self,
        threads: int = 0,
        isa: str = "",
        activation_dtype: ActivationDtype = "int8",
        weight_dtype: WeightDtype = "auto",
    ) -> None:
        exact = activation_dtype == "fp32"
        try:
            self._runtime = _native.Runtime(threads=threads, isa=isa, exact=exact)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise UnsupportedKernelsError(
                f"The native kernels cannot run here: {error}."
            ) from error
        self._activation_dtype = activation_dtype
        self._weight_dtype: WeightDtype = weight_dtype
        self._packed = PackedWeights(None)
        self._quantised: WeakKeyDictionary[QuantisedKVStorage, Any] = WeakKeyDictionary()

    @property
    def info(self) -> BackendInfo:
        facts = {
            "isa": str(self._runtime.isa),
            "threads": str(self._runtime.threads),
            "activations": self._activation_dtype,
            "weights": self._weight_dtype,
        }
        return BackendInfo("cpu", facts)

    def keep_packed_weights(self, folder: Path) -> None:
        self._packed = PackedWeights(folder)

    def sampling(self) -> CpuSampling:
        return CpuSampling(self._runtime)

    def allocate_kv(
        self, spec: KVCacheSpec, num_blocks: int, max_open: int | None = None
    ) -> HostKVStorage | QuantisedKVStorage:
        if spec.dtype.is_quantised:
            codec = NativeKVCodec(spec.dtype.codec)
            return QuantisedKVStorage(spec, num_blocks, max_open or num_blocks, codec)
        return HostKVStorage(spec, num_blocks)

    def load_layer(self, shape: DecoderShape, tensors: LayerTensors) -> CpuLayer:
        t = tensors
        if shape.head_dim % HEAD_DIM_MULTIPLE:
            raise UnsupportedKernelsError(
                f"The native kernels need a head_dim that is a multiple of {HEAD_DIM_MULTIPLE}, "
                f"not {shape.head_dim}; --backend reference takes any."
            )
        inner = t.gate_proj.shape[0]
        weights = _native.LayerWeights(
            _native.DecoderShape(
                shape.hidden_size,
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_dim,
                shape.rms_norm_eps,
                shape.attention_scale,
                sliding_window=shape.sliding_window,
            ),
            inner,
            t.attention_norm.to_float32(),
            t.mlp_norm.to_float32(),
            self._pack(t.q_proj, t.k_proj, t.v_proj),
            self._pack(t.o_proj),
            self._pack(t.gate_proj, t.up_proj, targets=_gate_up_rows(inner)),
            self._pack(t.down_proj),
            qkv_bias=t.qkv_bias(),
            q_norm=None if t.q_norm is None else t.q_norm.to_float32(),
            k_norm=None if t.k_norm is None else t.k_norm.to_float32(),
        )
        return CpuLayer(shape, weights)

    def load_head(self, shape: DecoderShape, tensors: HeadTensors) -> CpuHead:
        embedding = self._pack(tensors.embedding)
        tied = tensors.output is tensors.embedding
        output = embedding if tied else self._pack(tensors.output)
        weights = _native.HeadWeights(
            shape.rms_norm_eps, tensors.final_norm.to_float32(), embedding, output
        )
        return CpuHead(shape.hidden_size, tensors.output.shape[0], weights)

    def load_rope(self, cos: Float32Array, sin: Float32Array) -> Any:
        return _native.RopeTables(np.ascontiguousarray(cos), np.ascontiguousarray(sin))

    def embed(self, head: CpuHead, batch: BatchMetadata) -> Float32Array:
        hidden = np.empty((batch.num_tokens, head.hidden_size), dtype=np.float32)
        self._runtime.embed(head.weights, batch.token_ids, hidden)
        return hidden

    def qkv(
        self,
        hidden: Float32Array,
        layer: CpuLayer,
        layer_index: int,
        rope: Any,
        batch: BatchMetadata,
        kv: KVStorage,
    ) -> Float32Array:
        shape = layer.shape
        query = np.empty((batch.num_tokens, shape.num_heads, shape.head_dim), dtype=np.float32)
        with _finite_kv():
            self._runtime.qkv(
                layer.weights,
                rope,
                hidden,
                batch.positions,
                batch.slot_mapping,
                self._memory(kv),
                layer_index,
                query,
            )
        return query

    def attention(
        self,
        query: Float32Array,
        layer: CpuLayer,
        layer_index: int,
        batch: BatchMetadata,
        kv: KVStorage,
    ) -> Float32Array:
        context = np.empty_like(query)
        self._runtime.attention(
            layer.weights,
            query,
            batch.positions,
            batch.query_start,
            batch.block_tables,
            self._memory(kv),
            layer_index,
            context,
        )
        return context

    def attention_mass(
        self,
        query: Float32Array,
        layer: CpuLayer,
        layer_index: int,
        batch: BatchMetadata,
        kv: KVStorage,
        mass: AttentionMass,
    ) -> None:
        observed = batch.num_tokens if mass.window is None else mass.window
        self._runtime.attention_mass(
            layer.weights,
            query,
            batch.positions,
            batch.query_start,
            batch.block_tables,
            self._memory(kv),
            layer_index,
            observed,
            mass.sums,
        )

    def attention_output(
        self, context: Float32Array, layer: CpuLayer, hidden: Float32Array
    ) -> Float32Array:
        self._runtime.attention_output(layer.weights, context, hidden)
        return hidden

    def mlp(self, hidden: Float32Array, layer: CpuLayer) -> Float32Array:
        self._runtime.mlp(layer.weights, hidden)
        return hidden

    def run_layers(
        self,
        hidden: Float32Array,
        layers: Sequence[CpuLayer],
        rope: Any,
        batch: BatchMetadata,
        kv: KVStorage,
        mass: AttentionMass | None = None,
    ) -> Float32Array:
        """One call for all layers: the interpreter lock is let go of once a step.

        Threads that serve HTTP hold that lock; a kernel that had to take it back between two sub-layers would
        wait for them a hundred times a token. Of the last layer, everything but K and V is computed for the
        rows ``batch.logits_indices`` alone.
        """
        if mass is not None:
            return super().run_layers(hidden, layers, rope, batch, kv, mass)  # type: ignore[no-any-return]
        with _finite_kv():
            self._runtime.layers(
                [layer.weights for layer in layers],
                rope,
                hidden,
                batch.positions,
                batch.slot_mapping,
                batch.query_start,
                batch.block_tables,
                batch.logits_indices,
                self._memory(kv),
            )
        return hidden

    def logits(self, hidden: Float32Array, head: CpuHead, batch: BatchMetadata) -> Float32Array:
        out = np.empty((batch.logits_indices.shape[0], head.vocab_size), dtype=np.float32)
        self._runtime.logits(head.weights, hidden, batch.logits_indices, batch.argmax_only, out)
        return out

    def _memory(self, kv: KVStorage) -> Any:
        """K/V as the kernels take it.

        Raises:
            ConfigError: for storage that this backend does not allocate.
        """
        if isinstance(kv, HostKVStorage):
            return kv.array
        if not isinstance(kv, QuantisedKVStorage):
            raise ConfigError(f"the CPU backend needs K/V in host memory, not {type(kv).__name__}")
        memory = self._quantised.get(kv)
        if memory is None:
            memory = _native.QuantisedKV(kv.spec.dtype.value, kv.open, kv.sealed, kv.open_slot)
            self._quantised[kv] = memory
        return memory

    def _pack(self, *tensors: WeightTensor, targets: RowTargets | None = None) -> Any:
        return pack(tensors, self._packed, self._weight_dtype, targets)


@contextmanager
def _finite_kv() -> Iterator[None]:
    try:
        yield
    except OverflowError as error:
        raise NonFiniteKVError from error


def _gate_up_rows(inner: int) -> list[npt.NDArray[np.int32]]:
    """Where gate and up rows go: 32 of one, then the same 32 of the other."""
    channel = np.arange(inner, dtype=np.int32)
    gate = channel // GATE_UP_UNIT * 2 * GATE_UP_UNIT + channel % GATE_UP_UNIT
    return [gate, gate + GATE_UP_UNIT]
