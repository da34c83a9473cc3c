"""Rotation tables of the rotary position embedding (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from ostinato.errors import ModelFormatError
from ostinato.models.rope_config import (
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    YarnScaling,
    default_attention_factor,
)
from ostinato.ops.base import Float32Array

if TYPE_CHECKING:
    from ostinato.models.config import ModelConfig

Float64Array: TypeAlias = npt.NDArray[np.float64]


def rope_tables(
    config: ModelConfig, max_position: int, frequency_divisors: Float32Array | None = None
) -> tuple[Float32Array, Float32Array]:
    """Cosines and sines for positions ``0 … max_position - 1``.

    Args:
        config: gives the head dimension and the scaling.
        max_position: rows of the tables.
        frequency_divisors: ``(head_dim / 2,)``, GGUF's ``rope_freqs.weight``.

    Returns:
        ``(cos, sin)``, each ``(max_position, head_dim / 2)`` float32; YaRN's attention factor is
        multiplied in.

    Raises:
        ModelFormatError: if the divisors do not fit the head dimension.
    """
    frequencies = inverse_frequencies(config.rope, config.head_dim)
    if frequency_divisors is not None:
        if frequency_divisors.shape != frequencies.shape:
            raise ModelFormatError(
                f"rope_freqs.weight has shape {frequency_divisors.shape}, "
                f"a head of {config.head_dim} needs {frequencies.shape}"
            )
        frequencies = frequencies / frequency_divisors.astype(np.float64)
    # Models were trained with float32 angles, whose rounding at far positions is not negligible: an
    # angle of 8,000 radians has an error of 5e-4. Round as they did, then take exact functions.
    positions = np.arange(max_position, dtype=np.float32)
    angles = np.outer(positions, frequencies.astype(np.float32)).astype(np.float64)
    magnitude = attention_factor(config.rope)
    cos = (np.cos(angles) * magnitude).astype(np.float32)
    sin = (np.sin(angles) * magnitude).astype(np.float32)
    return cos, sin


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Float64Array:
    """Radians a position for each of the ``head_dim / 2`` planes, scaling applied."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    plain = np.asarray(rope.theta**-exponents, dtype=np.float64)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return plain / factor
        case Llama3Scaling():
            return _llama3(plain, rope.scaling)
        case YarnScaling():
            return _yarn(plain, rope.scaling, rope.theta, head_dim)


def attention_factor(rope: RopeConfig) -> float:
    """What cos and sin are multiplied by: 1 except for YaRN."""
    scaling = rope.scaling
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return default_attention_factor(scaling.factor, scaling.mscale) / default_attention_factor(
            scaling.factor, scaling.mscale_all_dim
        )
    return default_attention_factor(scaling.factor)


def _llama3(plain: Float64Array, scaling: Llama3Scaling) -> Float64Array:
    # turns over the original context; few turns = low frequency
    turns = scaling.original_max_position * plain / (2 * math.pi)
    width = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / width, 0.0, 1.0)
    return plain * keep + plain / scaling.factor * (1.0 - keep)


def _yarn(plain: Float64Array, scaling: YarnScaling, theta: float, head_dim: int) -> Float64Array:
    def dimension_that_turns(times: float) -> float:
        wavelength = scaling.original_max_position / (times * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(theta))

    low = dimension_that_turns(scaling.beta_fast)
    high = dimension_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    if low == high:
        high += 0.001  # a step instead of a ramp
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    return plain * (1.0 - ramp) + plain / scaling.factor * ramp
