"""Which rotary embedding a model uses, read from ``config.json`` or from GGUF metadata.

Four kinds: default, linear (position interpolation), llama3 (Llama 3.1's scaling by frequency) and
yarn. How the tables follow from them is in `rope.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ostinato.errors import ModelFormatError, UnsupportedModelError

DEFAULT_THETA = 10_000.0
_MAX_PARAMETER = 1e15


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a smooth ramp between the two.

    Attributes:
        factor: divisor of the low frequencies.
        low_freq_factor: a wavelength above ``original_max_position / low_freq_factor`` is low.
        high_freq_factor: a wavelength below ``original_max_position / high_freq_factor`` is high.
        original_max_position: context of pre-training, in tokens.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv 2309.00071).

    Attributes:
        factor: context extension.
        original_max_position: context of pre-training, in tokens.
        beta_fast: dimensions that turn more often than this over the original context are kept.
        beta_slow: dimensions that turn less often than this are interpolated.
        attention_factor: multiplies cos and sin; None means ``0.1 × ln(factor) + 1``.
        mscale: set with `mscale_all_dim`, makes the default a quotient and weighs its numerator.
        mscale_all_dim: weighs the denominator.
        truncate: round the bounds of the ramp outwards to whole dimensions.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | None


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base of the frequencies and what is done to them; `scaling` None is the plain embedding."""

    theta: float = DEFAULT_THETA
    scaling: RopeScaling = None


def rope_from_hf(config: Mapping[str, Any]) -> RopeConfig:
    """Read ``rope_parameters`` (transformers 5) or ``rope_scaling`` + ``rope_theta`` (before).

    Raises:
        UnsupportedModelError: a kind we do not run, or rotation of a part of the head only.
        ModelFormatError: a parameter of the kind is missing or not a positive number.
    """
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise UnsupportedModelError("RoPE parameters that differ between layers are not supported")
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedModelError(
            f"partial rotary embedding (partial_rotary_factor {partial}) is not supported"
        )
    theta = parameters.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    return RopeConfig(_positive(theta, "rope_theta"), _scaling_from_hf(kind, parameters, config))


def _scaling_from_hf(
    kind: str, parameters: Mapping[str, Any], config: Mapping[str, Any]
) -> RopeScaling:
    if parameters.get("mrope_section"):
        raise UnsupportedModelError("multimodal RoPE (mrope_section) is not supported")
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(_parameter(parameters, "factor"))
    # the order of precedence is that of transformers
    original = int(
        config.get("original_max_position_embeddings")
        or parameters.get("original_max_position_embeddings")
        or config.get("max_position_embeddings")
        or 0
    )
    if original < 1:
        raise ModelFormatError(f"RoPE scaling {kind!r} lacks original_max_position_embeddings")
    if kind == "llama3":
        low = _parameter(parameters, "low_freq_factor")
        high = _parameter(parameters, "high_freq_factor")
        if high <= low:
            raise ModelFormatError(f"high_freq_factor {high} must be above low_freq_factor {low}")
        return Llama3Scaling(_parameter(parameters, "factor"), low, high, original)
    if kind == "yarn":
        return YarnScaling(
            factor=_yarn_factor(parameters, config, original),
            original_max_position=original,
            beta_fast=float(parameters.get("beta_fast") or 32),
            beta_slow=float(parameters.get("beta_slow") or 1),
            attention_factor=parameters.get("attention_factor"),
            mscale=parameters.get("mscale"),
            mscale_all_dim=parameters.get("mscale_all_dim"),
            truncate=bool(parameters.get("truncate", True)),
        )
    raise UnsupportedModelError(
        f"RoPE scaling {kind!r} is not supported; we run default, linear, llama3 and yarn"
    )


def _yarn_factor(parameters: Mapping[str, Any], config: Mapping[str, Any], original: int) -> float:
    if parameters.get("factor") is None and config.get("max_position_embeddings"):
        return float(config["max_position_embeddings"]) / original
    return _parameter(parameters, "factor")


def rope_from_gguf(
    metadata: Mapping[str, Any], architecture: str, head_dim: int, context_length: int
) -> RopeConfig:
    """Read ``{architecture}.rope.*``.

    llama3 scaling does not appear here: GGUF carries it as divisors in the tensor
    ``rope_freqs.weight``, which the decoder hands to `rope.rope_tables`.

    Raises:
        UnsupportedModelError: a kind we do not run, or rotation of a part of the head only.
        ModelFormatError: a value is not a positive number.
    """
    prefix = f"{architecture}.rope."
    dimensions = metadata.get(prefix + "dimension_count", head_dim)
    if dimensions != head_dim:
        raise UnsupportedModelError(
            f"partial rotary embedding ({dimensions} of {head_dim} dimensions) is not supported"
        )
    if metadata.get(prefix + "dimension_sections"):
        raise UnsupportedModelError("multimodal RoPE (rope.dimension_sections) is not supported")
    theta = _positive(metadata.get(prefix + "freq_base", DEFAULT_THETA), prefix + "freq_base")
    scale_linear = float(metadata.get(prefix + "scale_linear", 0.0))
    kind = metadata.get(prefix + "scaling.type") or ("linear" if scale_linear else "none")
    if kind == "none":
        return RopeConfig(theta)
    factor = float(metadata.get(prefix + "scaling.factor", 0.0)) or scale_linear or 1.0
    if kind == "linear":
        return RopeConfig(theta, LinearScaling(_positive(factor, prefix + "scaling.factor")))
    if kind == "yarn":
        return RopeConfig(
            theta, _yarn_from_gguf(metadata, prefix + "scaling.", factor, context_length)
        )
    raise UnsupportedModelError(
        f"RoPE scaling {kind!r} is not supported; GGUF files may use none, linear and yarn"
    )


def _yarn_from_gguf(
    metadata: Mapping[str, Any], prefix: str, factor: float, context_length: int
) -> YarnScaling:
    plain = YarnScaling(factor=_positive(factor, prefix + "factor"), original_max_position=1)
    for key in ("yarn_ext_factor", "yarn_log_multiplier"):
        if metadata.get(prefix + key) not in (None, 0.0, 1.0):
            raise UnsupportedModelError(f"YaRN with {prefix}{key} = {metadata[prefix + key]}")
    # GGUF's attention factors multiply the default magnitude; transformers' one replaces it.
    multiplier = float(metadata.get(prefix + "yarn_attn_factor", 1.0))
    multiplier *= float(metadata.get(prefix + "attn_factor", 1.0))
    return YarnScaling(
        factor=plain.factor,
        original_max_position=int(
            _positive(
                metadata.get(prefix + "original_context_length", context_length),
                prefix + "original_context_length",
            )
        ),
        beta_fast=float(metadata.get(prefix + "yarn_beta_fast", plain.beta_fast)),
        beta_slow=float(metadata.get(prefix + "yarn_beta_slow", plain.beta_slow)),
        attention_factor=None
        if multiplier == 1.0
        else multiplier * default_attention_factor(factor),
    )


def default_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """YaRN's magnitude correction: ``0.1 × mscale × ln(factor) + 1``; 1 without extension."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _parameter(parameters: Mapping[str, Any], name: str) -> float:
    if parameters.get(name) is None:
        raise ModelFormatError(f"the model's RoPE parameters lack {name!r}")
    return _positive(parameters[name], name)


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ModelFormatError(f"{name} must be a positive number, not {value!r}")
    if value > _MAX_PARAMETER:
        raise ModelFormatError(f"{name} must be at most {_MAX_PARAMETER:g}, not {value:g}")
    return float(value)
