"""One decoder for all supported architectures: a short list of the verbs in `ops/base.py`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

from ostinato.cache.storage import KVStorage
from ostinato.errors import ConfigError, ModelFormatError, UnsupportedModelError
from ostinato.models.config import ModelConfig
from ostinato.models.rope import rope_tables
from ostinato.models.weights.base import WeightFile
from ostinato.ops.base import (
    AttentionMass,
    BackendInfo,
    BatchMetadata,
    Float32Array,
    HeadTensors,
    LayerTensors,
    LoadProgress,
    OpsBackend,
    WeightTensor,
)

LOAD_THREADS = 2
"""Dequantising is NumPy, which releases the interpreter lock; more threads only add peak memory."""

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"
FINAL_NORM = "model.norm.weight"
ROPE_DIVISORS = "rope_freqs.weight"
"""A GGUF name; Hugging Face has no tensor for it."""


class Decoder:
    """A loaded model: token ids and a K/V storage in, logits out. Holds no state of any request.

    Attributes:
        config: the architecture.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightFile,
        ops: OpsBackend,
        max_position: int,
        progress: LoadProgress | None = None,
    ) -> None:
        """Load all weights.

        Args:
            config: what the file is said to hold.
            weights: the file.
            ops: who runs it.
            max_position: longest sequence that will be asked for, in tokens.
            progress: told of each tensor, from the calling thread.

        Raises:
            ModelFormatError: a tensor is missing or its shape contradicts `config`.
            UnsupportedModelError: the file has a tensor that we would have to ignore.
            ConfigError: `max_position` is beyond the model's own.
        """
        if not 1 <= max_position <= config.max_position:
            raise ConfigError(
                f"the model's context is {config.max_position} tokens; {max_position} cannot work"
            )
        self.config = config
        self._ops = ops
        head = head_tensors(config, weights)
        layers = [layer_tensors(config, weights, index) for index in range(config.num_layers)]
        with ThreadPoolExecutor(LOAD_THREADS, thread_name_prefix="load") as pool:
            # the head first: it is the largest single piece
            head_future = pool.submit(ops.load_head, config.shape(), head)
            layer_futures = [
                pool.submit(ops.load_layer, config.layer_shape(index), tensors)
                for index, tensors in enumerate(layers)
            ]
            try:
                self._layers = []
                for tensors, future in zip(layers, layer_futures, strict=True):
                    self._layers.append(future.result())
                    _report(tensors, progress)
                self._head = head_future.result()
                _report(head, progress)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        divisors = None
        if ROPE_DIVISORS in weights:
            divisors = weights.tensor(ROPE_DIVISORS).to_float32()
        self._rope = ops.load_rope(*rope_tables(config, max_position, divisors))

    @property
    def backend(self) -> BackendInfo:
        """Which kernels run this decoder."""
        return self._ops.info

    def forward(
        self, batch: BatchMetadata, kv: KVStorage, mass: AttentionMass | None = None
    ) -> Float32Array:
        """Run one step: writes K/V of the batch's tokens, returns the logits that it asks for.

        Args:
            batch: tokens of any mix of prefill chunks and decodes.
            kv: storage made by the same backend.
            mass: gets the attention that blocks receive in this step, summed over layers.

        Returns:
            ``(L, vocab_size)`` float32, a row for each of ``batch.logits_indices``.
        """
        ops = self._ops
        hidden = ops.embed(self._head, batch)
        hidden = ops.run_layers(hidden, self._layers, self._rope, batch, kv, mass)
        return ops.logits(hidden, self._head, batch)


def head_tensors(config: ModelConfig, weights: WeightFile) -> HeadTensors:
    """Find embedding, final norm and output matrix, and check their shapes."""
    embedding = _find(weights, EMBEDDING, config.vocab_size, config.hidden_size)
    tied = config.tie_embeddings
    if tied is None:
        tied = OUTPUT not in weights
    return HeadTensors(
        embedding=embedding,
        final_norm=_find(weights, FINAL_NORM, config.hidden_size),
        output=embedding if tied else _find(weights, OUTPUT, config.vocab_size, config.hidden_size),
    )


def layer_tensors(config: ModelConfig, weights: WeightFile, index: int) -> LayerTensors:
    """Find the tensors of one layer, and check their shapes."""
    prefix = f"model.layers.{index}."
    for name in ("self_attn.o_proj.bias", "mlp.gate_proj.bias", "mlp.down_proj.bias"):
        if prefix + name in weights:
            raise UnsupportedModelError(f"a model with {prefix}{name} is not supported")
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = (heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads))

    def find(name: str, *shape: int) -> WeightTensor:
        return _find(weights, prefix + name, *shape)

    def find_bias(name: str, size: int) -> WeightTensor | None:
        expected = config.qkv_bias or prefix + name in weights
        return find(name, size) if expected else None

    def find_head_norm(name: str) -> WeightTensor | None:
        return find(name, config.head_dim) if config.qk_norm else None

    return LayerTensors(
        attention_norm=find("input_layernorm.weight", hidden),
        q_proj=find("self_attn.q_proj.weight", query, hidden),
        k_proj=find("self_attn.k_proj.weight", key, hidden),
        v_proj=find("self_attn.v_proj.weight", key, hidden),
        o_proj=find("self_attn.o_proj.weight", hidden, query),
        mlp_norm=find("post_attention_layernorm.weight", hidden),
        gate_proj=find("mlp.gate_proj.weight", inner, hidden),
        up_proj=find("mlp.up_proj.weight", inner, hidden),
        down_proj=find("mlp.down_proj.weight", hidden, inner),
        q_bias=find_bias("self_attn.q_proj.bias", query),
        k_bias=find_bias("self_attn.k_proj.bias", key),
        v_bias=find_bias("self_attn.v_proj.bias", key),
        q_norm=find_head_norm("self_attn.q_norm.weight"),
        k_norm=find_head_norm("self_attn.k_norm.weight"),
    )


def _find(weights: WeightFile, name: str, *shape: int) -> WeightTensor:
    tensor = weights.tensor(name)
    if tensor.shape != shape:
        raise ModelFormatError(
            f"{tensor.name} has shape {tensor.shape}, the model's configuration says {shape}"
        )
    return tensor


def _report(tensors: LayerTensors | HeadTensors, progress: LoadProgress | None) -> None:
    if progress is None:
        return
    for tensor in _distinct(tensors):
        size = 1
        for extent in tensor.shape:
            size *= extent
        progress(tensor.name, size)


def _distinct(tensors: LayerTensors | HeadTensors) -> Iterator[WeightTensor]:
    """Each tensor once: a tied output matrix is the embedding."""
    found = (getattr(tensors, field.name) for field in fields(tensors))
    yield from {tensor.name: tensor for tensor in found if tensor is not None}.values()
