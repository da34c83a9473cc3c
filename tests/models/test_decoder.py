"""Guards the loading of a decoder: a file that contradicts its configuration must not be run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ostinato.errors import ConfigError, ModelFormatError, UnsupportedModelError
from ostinato.models.config import ModelConfig
from ostinato.models.decoder import Decoder
from ostinato.ops.base import Float32Array, Int32Array, WeightTensor
from ostinato.ops.reference import ReferenceBackend
from tests.ops.dense import ArrayTensor
from tests.parity.passes import run_in_chunks
from tests.tiny import TinyArchitecture, tiny_config, tiny_tensors


class WeightsInMemory:
    """A `WeightFile` over a dictionary."""

    def __init__(self, tensors: dict[str, Float32Array]) -> None:
        self.tensors = tensors

    def tensor(self, hf_name: str) -> WeightTensor:
        if hf_name not in self.tensors:
            raise ModelFormatError(f"no {hf_name}")
        return ArrayTensor(hf_name, self.tensors[hf_name])

    def __contains__(self, hf_name: str) -> bool:
        return hf_name in self.tensors

    def digest(self) -> bytes:
        return bytes(32)

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for values in self.tensors.values())


def tiny_weights(architecture: TinyArchitecture = "llama", **arguments: Any) -> WeightsInMemory:
    return WeightsInMemory(tiny_tensors(tiny_config(architecture, **arguments)))


def load(
    weights: WeightsInMemory,
    architecture: TinyArchitecture = "llama",
    max_position: int = 128,
    **arguments: Any,
) -> Decoder:
    config = ModelConfig.from_hf(tiny_config(architecture, **arguments))
    return Decoder(config, weights, ReferenceBackend(), max_position)


def tokens(count: int) -> Int32Array:
    return np.random.default_rng(5).integers(0, 290, count, dtype=np.int32)


def logits(decoder: Decoder, ids: Int32Array) -> Float32Array:
    return run_in_chunks(decoder, ReferenceBackend(), ids, [len(ids)])


def test_a_forward_pass_returns_a_row_of_the_vocabulary_for_each_wanted_token() -> None:
    found = logits(load(tiny_weights()), tokens(20))
    assert found.shape == (20, tiny_config()["vocab_size"])
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


def test_a_token_changes_the_logits_after_it_and_none_before_it() -> None:
    decoder, ids = load(tiny_weights()), tokens(20)
    changed = ids.copy()
    changed[10] += 1
    before, after = logits(decoder, ids), logits(decoder, changed)
    np.testing.assert_allclose(before[:10], after[:10], atol=1e-6)
    assert np.abs(before[10:] - after[10:]).max(axis=1).min() > 1e-3


def test_an_own_output_matrix_is_used_when_the_configuration_says_so() -> None:
    weights = tiny_weights(tie_embeddings=False)
    untied = logits(load(weights, tie_embeddings=False), tokens(4))
    tied = logits(load(weights, tie_embeddings=True), tokens(4))
    assert np.abs(untied - tied).max() > 0.1


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_word_on_tying_the_file_decides(tied: bool) -> None:
    """GGUF metadata does not say; an output matrix in the file does."""
    weights = tiny_weights(tie_embeddings=tied)
    config = ModelConfig.from_hf(tiny_config(tie_embeddings=tied))
    silent = replace(config, tie_embeddings=None)
    decoder = Decoder(silent, weights, ReferenceBackend(), 128)
    expected = logits(load(weights, tie_embeddings=tied), tokens(4))
    np.testing.assert_array_equal(logits(decoder, tokens(4)), expected)


def test_biases_in_the_file_are_used_even_if_the_architecture_has_none() -> None:
    weights = tiny_weights()
    plain = logits(load(weights), tokens(4))
    weights.tensors["model.layers.0.self_attn.v_proj.bias"] = np.ones(32, dtype=np.float32)
    assert np.abs(logits(load(weights), tokens(4)) - plain).max() > 1e-2


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "model.norm.weight"),
        ("llama", "model.layers.1.mlp.down_proj.weight"),
        ("qwen2", "model.layers.0.self_attn.k_proj.bias"),
        ("qwen3", "model.layers.1.self_attn.q_norm.weight"),
    ],
)
def test_a_missing_tensor_is_an_error_that_names_it(
    architecture: TinyArchitecture, name: str
) -> None:
    weights = tiny_weights(architecture)
    del weights.tensors[name]
    with pytest.raises(ModelFormatError, match=name):
        load(weights, architecture)


def test_a_tensor_of_the_wrong_shape_is_an_error_that_gives_both_shapes() -> None:
    weights = tiny_weights(num_kv_heads=4)
    expected = r"k_proj\.weight has shape \(64, 64\), the model's configuration says \(32, 64\)"
    with pytest.raises(ModelFormatError, match=expected):
        load(weights, num_kv_heads=2)


@pytest.mark.parametrize("name", ["self_attn.o_proj.bias", "mlp.gate_proj.bias"])
def test_a_tensor_that_we_would_have_to_ignore_is_refused(name: str) -> None:
    weights = tiny_weights()
    weights.tensors[f"model.layers.1.{name}"] = np.ones(64, dtype=np.float32)
    with pytest.raises(UnsupportedModelError, match=name):
        load(weights)


@pytest.mark.parametrize("max_position", [0, 4097])
def test_a_context_beyond_the_model_is_refused(max_position: int) -> None:
    with pytest.raises(ConfigError, match="context is 4096 tokens"):
        load(tiny_weights(), max_position=max_position)


def test_progress_reports_every_tensor_once_with_its_size() -> None:
    weights, seen = tiny_weights("qwen2"), []
    config = ModelConfig.from_hf(tiny_config("qwen2"))
    Decoder(config, weights, ReferenceBackend(), 128, lambda name, size: seen.append((name, size)))
    assert sorted(seen) == sorted((name, t.size) for name, t in weights.tensors.items())


def test_an_error_while_a_tensor_is_read_reaches_the_caller() -> None:
    class Unreadable(ArrayTensor):
        def to_float32(self) -> Float32Array:
            raise OSError("bad sector")

    class Broken(WeightsInMemory):
        def tensor(self, hf_name: str) -> WeightTensor:
            found = super().tensor(hf_name)
            if hf_name == "model.layers.1.mlp.up_proj.weight":
                return Unreadable(hf_name, self.tensors[hf_name])
            return found

    with pytest.raises(OSError, match="bad sector"):
        load(Broken(tiny_weights().tensors))


def test_divisors_of_the_rope_frequencies_are_taken_from_the_file() -> None:
    weights = tiny_weights()
    plain = logits(load(weights), tokens(30))
    weights.tensors["rope_freqs.weight"] = np.full(8, 4.0, dtype=np.float32)
    scaled = logits(load(weights), tokens(30))
    linear = load(tiny_weights(), rope_scaling={"rope_type": "linear", "factor": 4.0})
    np.testing.assert_allclose(scaled, logits(linear, tokens(30)), atol=1e-5)
    assert np.abs(scaled - plain).max() > 0.1
