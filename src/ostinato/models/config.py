"""What a model is: the numbers of its architecture, from ``config.json`` or from GGUF metadata.

One decoder covers Llama, Mistral, Qwen2/2.5, Qwen3 and SmolLM; what sets them apart is in
`ModelConfig`. Whatever else would change the arithmetic is refused here, by name, at start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast, get_args

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.rope_config import RopeConfig, YarnScaling, rope_from_gguf, rope_from_hf
from ostinato.ops.base import DecoderShape

Architecture: TypeAlias = Literal["llama", "mistral", "qwen2", "qwen3"]
"""Decoder family. SmolLM and SmolLM2 are ``llama``, Qwen2.5 is ``qwen2``; GGUF files of Mistral say
``llama``."""

ARCHITECTURES: tuple[str, ...] = get_args(Architecture)

_MISTRAL_DEFAULT_WINDOW = 4096
_QWEN3_DEFAULT_HEAD_DIM = 128
_QWEN_DEFAULT_FULL_LAYERS = 28


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The architecture of one model.

    Attributes:
        architecture: decoder family.
        num_layers: decoder layers.
        hidden_size: width of the residual stream.
        intermediate_size: width inside the MLP.
        num_heads: query heads.
        num_kv_heads: key/value heads; divides `num_heads`.
        head_dim: elements of a head.
        vocab_size: rows of the embedding.
        max_position: longest context in tokens.
        rms_norm_eps: added to the mean square in RMSNorm.
        rope: position embedding.
        tie_embeddings: the output matrix is the embedding; None where only the file's tensors tell.
        qkv_bias: Q, K and V have biases. A file that has them although this is False is honoured.
        qk_norm: Q and K are normalised per head before RoPE.
        sliding_windows: by layer, how many tokens a token sees, itself included; None where it sees all
            before it. Empty if no layer has a window shorter than the context.
    """

    architecture: Architecture
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_embeddings: bool | None
    qkv_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"),
            *("head_dim", "vocab_size", "max_position"),
        ):
            if getattr(self, name) < 1:
                raise ModelFormatError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ModelFormatError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} K/V heads"
            )
        if self.head_dim % 2:
            raise ModelFormatError(f"RoPE needs an even head dimension, not {self.head_dim}")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Read a parsed ``config.json``, as transformers 4 or 5 writes it.

        Raises:
            UnsupportedModelError: names the architecture or the feature that we do not run.
            ModelFormatError: a number is missing or impossible.
        """
        architecture = _hf_architecture(config)
        num_layers = _integer(config, "num_hidden_layers")
        num_heads = _integer(config, "num_attention_heads")
        hidden_size = _integer(config, "hidden_size")
        default_head_dim = (
            _QWEN3_DEFAULT_HEAD_DIM if architecture == "qwen3" else hidden_size // num_heads
        )
        rope = rope_from_hf(config)
        max_position = _integer(config, "max_position_embeddings")
        if isinstance(rope.scaling, YarnScaling):
            # Qwen2.5's recipe adds YaRN to config.json and leaves max_position_embeddings as it was
            extended = int(rope.scaling.original_max_position * rope.scaling.factor)
            max_position = max(max_position, extended)
        _refuse_hf_features(config)
        return cls(
            architecture=architecture,
            num_layers=num_layers,
            hidden_size=hidden_size,
            intermediate_size=_integer(config, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=_integer(config, "num_key_value_heads", num_heads),
            head_dim=_integer(config, "head_dim", default_head_dim),
            vocab_size=_integer(config, "vocab_size"),
            max_position=max_position,
            rms_norm_eps=_epsilon(config, "rms_norm_eps", 1e-6),
            rope=rope,
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=architecture == "qwen2" or bool(config.get("attention_bias", False)),
            qk_norm=architecture == "qwen3",
            sliding_windows=_hf_windows(config, architecture, num_layers, max_position),
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> ModelConfig:
        """Read GGUF key/values, as `GgufFile.metadata` has them (always with ``vocab_size``).

        Raises:
            UnsupportedModelError: names the architecture or the feature that we do not run.
            ModelFormatError: a number is missing or impossible.
        """
        named = metadata.get("general.architecture")
        if named not in ARCHITECTURES:
            raise _unsupported_architecture(named)
        architecture = cast(Architecture, named)
        prefix = f"{architecture}."
        _refuse_gguf_features(metadata, prefix)
        num_heads = _integer(metadata, prefix + "attention.head_count")
        hidden_size = _integer(metadata, prefix + "embedding_length")
        head_dim = _integer(metadata, prefix + "attention.key_length", hidden_size // num_heads)
        value_dim = _integer(metadata, prefix + "attention.value_length", head_dim)
        if value_dim != head_dim:
            raise UnsupportedModelError(
                f"keys of {head_dim} and values of {value_dim} elements a head are not supported"
            )
        max_position = _integer(metadata, prefix + "context_length")
        rope = rope_from_gguf(metadata, architecture, head_dim, max_position)
        num_layers = _integer(metadata, prefix + "block_count")
        return cls(
            architecture=architecture,
            num_layers=num_layers,
            hidden_size=hidden_size,
            intermediate_size=_integer(metadata, prefix + "feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=_integer(metadata, prefix + "attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=_integer(metadata, prefix + "vocab_size"),
            max_position=max_position,
            rms_norm_eps=_epsilon(metadata, prefix + "attention.layer_norm_rms_epsilon", 1e-5),
            rope=rope,
            tie_embeddings=None,
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            sliding_windows=_gguf_windows(metadata, prefix, num_layers, max_position),
        )

    def kv_spec(self, dtype: KVDtype, block_size: int) -> KVCacheSpec:
        """The K/V memory that this model needs."""
        return KVCacheSpec(self.num_layers, self.num_kv_heads, self.head_dim, dtype, block_size)

    def shape(self) -> DecoderShape:
        """What a backend needs to know."""
        return DecoderShape(
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=self.rms_norm_eps,
            attention_scale=self.head_dim**-0.5,
        )

    def layer_shape(self, index: int) -> DecoderShape:
        """`shape` with the sliding window of one layer."""
        if not self.sliding_windows:
            return self.shape()
        return replace(self.shape(), sliding_window=self.sliding_windows[index])


def _hf_architecture(config: Mapping[str, Any]) -> Architecture:
    named = config.get("model_type")
    if named not in ARCHITECTURES:
        raise _unsupported_architecture(named)
    classes = config.get("architectures") or []
    if classes and not any(name.endswith("ForCausalLM") for name in classes):
        raise UnsupportedModelError(f"{', '.join(classes)} is not a causal language model")
    return cast(Architecture, named)


def _unsupported_architecture(named: object) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"architecture {named!r} is not supported; we run {', '.join(ARCHITECTURES)}"
    )


def _refuse_hf_features(config: Mapping[str, Any]) -> None:
    for key, feature in (
        ("quantization_config", "weights quantised by a Hugging Face quantiser"),
        ("num_experts", "mixture of experts"),
        ("num_local_experts", "mixture of experts"),
        ("kv_lora_rank", "multi-head latent attention"),
        ("attn_logit_softcapping", "capped attention logits"),
        ("final_logit_softcapping", "capped output logits"),
        ("mlp_bias", "biases in the MLP"),
    ):
        if config.get(key):
            raise UnsupportedModelError(f"{feature} ({key}) is not supported")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"activation {activation!r} is not supported; we run silu")


def _refuse_gguf_features(metadata: Mapping[str, Any], prefix: str) -> None:
    for key, feature in (
        ("expert_count", "mixture of experts"),
        ("attention.kv_lora_rank", "multi-head latent attention"),
        ("attn_logit_softcapping", "capped attention logits"),
        ("final_logit_softcapping", "capped output logits"),
        ("attention.scale", "an attention scale of its own"),
        ("attention.clamp_kqv", "clamped Q, K and V"),
        ("logit_scale", "scaled logits"),
        ("embedding_scale", "scaled embeddings"),
        ("residual_scale", "scaled residuals"),
    ):
        if metadata.get(prefix + key):
            raise UnsupportedModelError(f"{feature} ({prefix}{key}) is not supported")


def _hf_windows(
    config: Mapping[str, Any], architecture: Architecture, num_layers: int, max_position: int
) -> tuple[int | None, ...]:
    """`ModelConfig.sliding_windows`, as transformers decides them."""
    if architecture == "llama":
        _refuse_active_window(config.get("sliding_window"), max_position)
        return ()
    window = config.get("sliding_window", _MISTRAL_DEFAULT_WINDOW)
    first = 0
    if architecture in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", _QWEN_DEFAULT_FULL_LAYERS)
        if not config.get("use_sliding_window", False):
            window = None
    if not window or window >= max_position:
        return ()
    types = config.get("layer_types")
    if types is None:
        types = ["full_attention"] * first + ["sliding_attention"] * (num_layers - first)
    windows = tuple(window if kind == "sliding_attention" else None for kind in types[:num_layers])
    if len(windows) < num_layers:
        raise ModelFormatError(f"layer_types names {len(windows)} of {num_layers} layers")
    return windows if any(windows) else ()


def _gguf_windows(
    metadata: Mapping[str, Any], prefix: str, num_layers: int, max_position: int
) -> tuple[int | None, ...]:
    """`ModelConfig.sliding_windows`, as llama.cpp reads the two keys.

    ``attention.sliding_window_pattern`` says which layers have the window: by layer, or as a period n of which
    the last layer has none (0: all have it). Without it, files of Mistral mean all layers; Qwen's may mean
    some, and do not say which.
    """
    key = prefix + "attention.sliding_window"
    window = _integer(metadata, key) if metadata.get(key) else max_position
    if window >= max_position:
        return ()
    pattern = metadata.get(key + "_pattern")
    if pattern is None and prefix in ("llama.", "mistral."):
        pattern = 0
    elif pattern is None:
        _refuse_active_window(window, max_position)
    if isinstance(pattern, int) and pattern >= 0:
        pattern = [not pattern or layer % pattern < pattern - 1 for layer in range(num_layers)]
    if not isinstance(pattern, list) or len(pattern) != num_layers:
        raise ModelFormatError(f"{key}_pattern must name {num_layers} layers, found {pattern!r}")
    windows = tuple(window if here else None for here in pattern)
    return windows if any(windows) else ()


def _refuse_active_window(window: int | None, max_position: int) -> None:
    if window and window < max_position:
        raise UnsupportedModelError(
            f"sliding-window attention is not supported here: the window of {window} tokens "
            f"is shorter than the context of {max_position}, and the file does not say which "
            "layers it is for"
        )


def _integer(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(key)
    if value is None:
        value = default
    if isinstance(value, list) and len(set(value)) > 1:
        raise UnsupportedModelError(f"layers that differ in {key} are not supported")
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int):
        found = "nothing" if value is None else repr(value)
        raise ModelFormatError(f"the model's configuration needs an integer {key}, found {found}")
    if value < 1:
        raise ModelFormatError(f"{key} must be at least 1, not {value}")
    return value


def _epsilon(values: Mapping[str, Any], key: str, default: float) -> float:
    value = values.get(key, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:
        raise ModelFormatError(f"{key} must be a small positive number, not {value!r}")
    return float(value)
