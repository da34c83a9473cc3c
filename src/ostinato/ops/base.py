"""The contract between a model and the machine it runs on.

A model (`models/decoder.py`) is a list of calls of these seven verbs. They are cut at the level of
sub-layers so that a backend may fuse everything inside one call into one pass over memory:

    embed ─► for each layer:  qkv ─► attention ─► attention_output ─► mlp  ─► logits

Tensors between the calls (`Hidden`, `Query`, `Context`) and loaded weights (`Weights`) are opaque:
only the backend that made them looks inside. What the scheduler decides travels as plain NumPy arrays
in a `BatchMetadata`. A backend writes K and V of a step's tokens in `qkv` and reads them in
`attention`, so a chunk attends to itself as well as to everything before it. Where K/V is quantised, the
runner opens the blocks that a step writes to before it and seals the full ones after it
(`cache/quantised_storage.py`).

`reference.py` is the oracle: every other backend is tested against it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.storage import KVStorage
from ostinato.ops.sampling import SamplingKernels

Float32Array: TypeAlias = npt.NDArray[np.float32]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Hidden: TypeAlias = Any
"""Residual stream of a batch, ``(num_tokens, hidden_size)`` in the backend's own form."""
Query: TypeAlias = Any
"""Rotated queries, ``(num_tokens, num_heads, head_dim)`` in the backend's own form."""
Context: TypeAlias = Any
"""Attention output, ``(num_tokens, num_heads, head_dim)`` in the backend's own form."""
Weights: TypeAlias = Any
"""A `LayerTensors` or `HeadTensors` after the backend has packed it."""


class WeightTensor(Protocol):
    """A tensor in a model file, not yet read.

    Attributes:
        name: name inside the file, for errors.
        shape: logical shape; matrices are ``(out_features, in_features)``.
        encoding: ``F32``, ``F16``, ``BF16`` or a GGUF type name such as ``Q4_1``.
    """

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def encoding(self) -> str: ...

    def raw(self) -> npt.NDArray[np.generic]:
        """The stored bytes: ``(rows, bytes a row)`` uint8 if quantised, else the elements.

        May be a read-only view of a memory-mapped file.
        """
        ...

    def to_float32(self) -> Float32Array:
        """The dequantised values, a fresh or read-only array of `shape`."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What a backend must know of an architecture.

    Attributes:
        hidden_size: width of the residual stream.
        num_heads: query heads.
        num_kv_heads: key/value heads; divides `num_heads`.
        head_dim: elements a head; `num_heads × head_dim` need not equal `hidden_size`.
        rms_norm_eps: added to the mean square in RMSNorm.
        attention_scale: multiplies q·k; usually ``head_dim ** -0.5``.
        sliding_window: the number of tokens that a token sees, itself included; None for all before it.
            May differ from layer to layer.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    attention_scale: float
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """Unpacked weights of one decoder layer, Hugging Face row order (rotate-half RoPE)."""

    attention_norm: WeightTensor
    q_proj: WeightTensor
    k_proj: WeightTensor
    v_proj: WeightTensor
    o_proj: WeightTensor
    mlp_norm: WeightTensor
    gate_proj: WeightTensor
    up_proj: WeightTensor
    down_proj: WeightTensor
    q_bias: WeightTensor | None = None
    k_bias: WeightTensor | None = None
    v_bias: WeightTensor | None = None
    q_norm: WeightTensor | None = None
    k_norm: WeightTensor | None = None

    def qkv_bias(self) -> Float32Array | None:
        """Biases of Q, K and V in one vector, zeros where one lacks; None if there is none at all."""
        biases = (self.q_bias, self.k_bias, self.v_bias)
        if all(bias is None for bias in biases):
            return None
        matrices = (self.q_proj, self.k_proj, self.v_proj)
        return np.concatenate(
            [
                np.zeros(matrix.shape[0], np.float32) if bias is None else bias.to_float32()
                for bias, matrix in zip(biases, matrices, strict=True)
            ]
        )


@dataclass(frozen=True, slots=True)
class HeadTensors:
    """Unpacked weights outside the layers. `output` is `embedding` itself when the two are tied."""

    embedding: WeightTensor
    final_norm: WeightTensor
    output: WeightTensor


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """One step over B requests and T tokens.

    Request b owns the tokens ``query_start[b]:query_start[b + 1]``; if there are none, nothing is
    read or written for it.

    Attributes:
        token_ids: ``(T,)`` int32.
        positions: ``(T,)`` int32, position of each token in its own sequence.
        slot_mapping: ``(T,)`` int64, where each token's K/V goes: ``block_id × block_size + offset``.
        query_start: ``(B + 1,)`` int32, prefix sums of the requests' token counts in this step.
        seq_lens: ``(B,)`` int32, tokens of each sequence including this step's.
        block_tables: ``(B, max_blocks)`` int32, block ids in token order; unused entries are 0 and
            never read.
        logits_indices: ``(L,)`` int32, the tokens of the step whose logits are wanted.
        argmax_only: ``(L,)``, rows of logits of which only the largest is wanted: it and its equals must be
            right, the others at least below it. None: all of every row is wanted.
    """

    token_ids: Int32Array
    positions: Int32Array
    slot_mapping: Int64Array
    query_start: Int32Array
    seq_lens: Int32Array
    block_tables: Int32Array
    logits_indices: Int32Array
    argmax_only: BoolArray | None = None

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_requests(self) -> int:
        return int(self.seq_lens.shape[0])


@dataclass(frozen=True, slots=True)
class AttentionMass:
    """How much attention blocks receive: what an eviction of K/V by its use looks at.

    Softmax weights are summed over tokens, query heads and every call that gets this object (so over
    layers, if all of them do): a block spans all heads and layers, and can only go as a whole. Heavy hitters
    (H2O, Zhang et al. 2023, arXiv 2306.14048) count all tokens of a step; SnapKV (Li et al. 2024,
    arXiv 2404.14469) looks at the last few of a prompt, its observation window.

    Attributes:
        sums: ``(B, max_blocks)`` float32, C-contiguous, shaped as the batch's block tables; added to. A
            call adds ``heads × observed tokens`` to each request's row.
        window: how many of each request's last tokens of a step are observed; None for all.
    """

    sums: Float32Array
    window: int | None = None

    @classmethod
    def of(cls, batch: BatchMetadata, window: int | None = None) -> AttentionMass:
        """Zeros for a step."""
        return cls(np.zeros(batch.block_tables.shape, dtype=np.float32), window)


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """For the start-up line and ``/health``: what runs, and facts about it (threads, …)."""

    name: str
    facts: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        facts = ", ".join(f"{key} {value}" for key, value in self.facts.items())
        return f"{self.name} ({facts})" if facts else self.name


LoadProgress: TypeAlias = Callable[[str, int], None]
"""Called with a tensor's name and its number of elements after it was loaded."""


class OpsBackend(ABC):
    """One machine's way to run a decoder.

    `load_layer` and `load_head` may be called from several threads at once, so that dequantising runs
    in parallel; everything else comes from one thread. No call keeps a reference to a `BatchMetadata`.
    A tensor that was passed to a call as `hidden` may be changed in place by that call; use only what
    it returns.
    """

    @property
    @abstractmethod
    def info(self) -> BackendInfo:
        """Name and facts."""

    def keep_packed_weights(self, folder: Path) -> None:
        """Weights that are costly to pack may be kept in `folder`, which stands for one model's content.

        Called before the first `load_*`. A backend that packs nothing ignores it.
        """
        return

    def sampling(self) -> SamplingKernels | None:
        """Kernels for choosing tokens; None leaves it to NumPy."""
        return None

    @abstractmethod
    def allocate_kv(
        self, spec: KVCacheSpec, num_blocks: int, max_open: int | None = None
    ) -> KVStorage:
        """Block memory in the layout of `cache/layout.py` that this backend can read and write.

        Args:
            spec: shape and format of the blocks.
            num_blocks: capacity.
            max_open: of a quantised format: how many blocks may be open at once; None: all.

        Raises:
            ConfigError: this backend does not know the format.
        """

    @abstractmethod
    def load_layer(self, shape: DecoderShape, tensors: LayerTensors) -> Weights:
        """Pack one layer's weights.

        Raises:
            UnsupportedKernelsError: this backend has no kernels for the shape.
        """

    @abstractmethod
    def load_head(self, shape: DecoderShape, tensors: HeadTensors) -> Weights:
        """Pack embedding, final norm and output matrix (packing a tied one once)."""

    @abstractmethod
    def load_rope(self, cos: Float32Array, sin: Float32Array) -> Weights:
        """Take the rotation tables, each ``(max_position, head_dim / 2)`` float32."""

    @abstractmethod
    def embed(self, head: Weights, batch: BatchMetadata) -> Hidden:
        """Look up the embeddings of ``batch.token_ids``."""

    @abstractmethod
    def qkv(
        self,
        hidden: Hidden,
        layer: Weights,
        layer_index: int,
        rope: Weights,
        batch: BatchMetadata,
        kv: KVStorage,
    ) -> Query:
        """RMSNorm, Q/K/V projections with bias, QK-norm, RoPE.

        Writes K and V to ``batch.slot_mapping``. Does not change `hidden`.

        Raises:
            NonFiniteKVError: what was written is not finite; nothing may read it.
        """

    @abstractmethod
    def attention(
        self, query: Query, layer: Weights, layer_index: int, batch: BatchMetadata, kv: KVStorage
    ) -> Context:
        """Causal attention of every token over its own sequence, read through the block tables.

        Token t of request b sees positions ``0 … positions[t]``, of those the last ``sliding_window`` if the
        layer has one; a block that no token of the request sees is not read. Prefill chunks and decodes
        mix freely.
        """

    @abstractmethod
    def attention_mass(
        self,
        query: Query,
        layer: Weights,
        layer_index: int,
        batch: BatchMetadata,
        kv: KVStorage,
        mass: AttentionMass,
    ) -> None:
        """Add the weights of `attention` with the same arguments to `mass`, by block. Reads keys alone.

        A verb of its own, so that `attention` costs nothing more where nobody asks.
        """

    @abstractmethod
    def attention_output(self, context: Context, layer: Weights, hidden: Hidden) -> Hidden:
        """``hidden + context @ o_projᵀ``."""

    @abstractmethod
    def mlp(self, hidden: Hidden, layer: Weights) -> Hidden:
        """``hidden + down(silu(gate(norm(hidden))) × up(norm(hidden)))``."""

    def run_layers(
        self,
        hidden: Hidden,
        layers: Sequence[Weights],
        rope: Weights,
        batch: BatchMetadata,
        kv: KVStorage,
        mass: AttentionMass | None = None,
    ) -> Hidden:
        """All layers of a decoder, in order: the verbs above for each. May be overridden to save calls.

        Of what it returns only the rows ``batch.logits_indices`` need be right.
        `mass`, if given, gets the attention of all layers.

        Raises:
            NonFiniteKVError: as `qkv`.
        """
        for index, layer in enumerate(layers):
            query = self.qkv(hidden, layer, index, rope, batch, kv)
            if mass is not None:
                self.attention_mass(query, layer, index, batch, kv, mass)
            context = self.attention(query, layer, index, batch, kv)
            hidden = self.attention_output(context, layer, hidden)
            hidden = self.mlp(hidden, layer)
        return hidden

    @abstractmethod
    def logits(self, hidden: Hidden, head: Weights, batch: BatchMetadata) -> Float32Array:
        """Final norm and output matrix of ``batch.logits_indices`` only, ``(L, vocab)`` float32.

        May do less for rows that are true in ``batch.argmax_only``.
        """
