"""Guards the rotation tables: a wrong frequency shows only at far positions, where nobody looks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ostinato.errors import ModelFormatError
from ostinato.models.config import ModelConfig
from ostinato.models.rope import attention_factor, inverse_frequencies, rope_tables
from ostinato.models.rope_config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from tests.tiny import tiny_config

# Index and value of some inverse frequencies, and the factor, as transformers 5.24.0 computes them.
KNOWN = {
    "llama-3.1": (
        RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        128,
        1.0,
        {0: 1.0, 16: 0.03760603070, 32: 5.24846022e-4, 40: 3.428102355e-5, 63: 3.068925878e-7},
    ),
    "qwen2.5-yarn": (
        RopeConfig(1e6, YarnScaling(factor=4.0, original_max_position=32_768)),
        128,
        1.138629436111989,
        {0: 1.0, 16: 0.03162277862, 32: 6.029411452e-4, 40: 4.445698505e-5, 63: 3.102344408e-7},
    ),
    "yarn-with-a-ramp-between-dimensions": (
        RopeConfig(150_000.0, YarnScaling(32.0, 4096, truncate=False)),
        64,
        1.3465735902799727,
        {0: 1.0, 10: 0.01933499984, 16: 4.564839182e-4, 20: 1.818833698e-5, 31: 3.023511397e-7},
    ),
    "yarn-with-two-magnitudes": (
        RopeConfig(1e4, YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=0.5)),
        64,
        1.1557219901962608,
        {0: 1.0, 10: 0.05623412877, 16: 0.005500000436, 20: 7.905694074e-4, 31: 3.333803534e-6},
    ),
}


def config_with(rope: RopeConfig) -> ModelConfig:
    return replace(ModelConfig.from_hf(tiny_config(max_position=512)), rope=rope)


@pytest.mark.parametrize("name", KNOWN)
def test_scaled_frequencies_are_those_of_transformers(name: str) -> None:
    rope, head_dim, factor, expected = KNOWN[name]
    frequencies = inverse_frequencies(rope, head_dim)
    assert frequencies.shape == (head_dim // 2,)
    np.testing.assert_allclose(frequencies[list(expected)], list(expected.values()), rtol=1e-6)
    assert attention_factor(rope) == pytest.approx(factor)


def test_the_tables_hold_cosine_and_sine_of_position_times_frequency() -> None:
    config = config_with(RopeConfig(theta=100.0))
    cos, sin = rope_tables(config, 32)
    assert cos.shape == sin.shape == (32, config.head_dim // 2)
    assert cos.dtype == sin.dtype == np.float32
    for position in (0, 1, 31):
        for plane in (0, 3, config.head_dim // 2 - 1):
            angle = position * 100.0 ** (-2 * plane / config.head_dim)
            assert cos[position, plane] == pytest.approx(math.cos(angle), abs=1e-5)
            assert sin[position, plane] == pytest.approx(math.sin(angle), abs=1e-5)


def test_linear_scaling_makes_a_position_turn_like_a_nearer_one() -> None:
    plain_cos, plain_sin = rope_tables(config_with(RopeConfig()), 64)
    cos, sin = rope_tables(config_with(RopeConfig(scaling=LinearScaling(4.0))), 256)
    np.testing.assert_allclose(cos[::4], plain_cos, atol=1e-5)
    np.testing.assert_allclose(sin[::4], plain_sin, atol=1e-5)


def test_the_factor_of_yarn_scales_both_tables() -> None:
    yarn = RopeConfig(scaling=YarnScaling(4.0, 128, attention_factor=1.5))
    cos, sin = rope_tables(config_with(yarn), 300)
    np.testing.assert_allclose(np.hypot(cos, sin), 1.5, rtol=1e-6)


def test_an_unextended_yarn_changes_nothing() -> None:
    yarn = RopeConfig(scaling=YarnScaling(1.0, 128))
    np.testing.assert_allclose(
        rope_tables(config_with(yarn), 64), rope_tables(config_with(RopeConfig()), 64)
    )


def test_divisors_of_a_gguf_file_reproduce_llama3_scaling() -> None:
    """Converters store llama3 scaling as divisors; both ways must give one table."""
    scaled = RopeConfig(500_000.0, Llama3Scaling(8.0, 1.0, 4.0, 128))
    plain = RopeConfig(500_000.0)
    head_dim = config_with(plain).head_dim
    divisors = inverse_frequencies(plain, head_dim) / inverse_frequencies(scaled, head_dim)
    assert divisors.min() == pytest.approx(1.0)
    assert divisors.max() == pytest.approx(8.0)
    from_divisors = rope_tables(config_with(plain), 512, divisors.astype(np.float32))
    np.testing.assert_allclose(from_divisors, rope_tables(config_with(scaled), 512), atol=1e-4)


def test_divisors_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(ModelFormatError, match=r"rope_freqs\.weight has shape \(3,\)"):
        rope_tables(config_with(RopeConfig()), 8, np.ones(3, dtype=np.float32))
