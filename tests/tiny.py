"""Tiny random models on disk, for tests that need a real file but not a real answer.

A folder as Hugging Face lays it out: ``config.json``, safetensors, ``tokenizer.json``,
``tokenizer_config.json`` with a ChatML template. Everything is a function of the arguments and the
seed, so reference logits that were computed from such a folder once stay valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

TinyArchitecture: TypeAlias = Literal["llama", "mistral", "qwen2", "qwen3"]
Float32Array: TypeAlias = npt.NDArray[np.float32]

HF_CLASSES: dict[TinyArchitecture, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
MERGES = [
    *("t h", "h e", "th e", "i n", "a n", "e r", "r e", "o n", "n d", "in g", "o u", "e n", "o r"),
    *("Ġ t", "Ġ a", "Ġ the", "Ġa nd", "Ġ o", "Ġo f", "Ġt o", "Ġ i", "Ġi s", "Ġi n", "Ġ s", "Ġ w"),
    *("s t", "l e", "l l", "u s", "e r", "a s", "Ã ©", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "1 2", "ä ½", "ä½ ł"),
]
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable stand-ins of the 256 bytes, in byte order, as byte-level BPE writes them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
    shown += range(ord("®"), ord("ÿ") + 1)
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte if byte in shown else 256 + hidden.index(byte)) for byte in range(256)]


def tiny_vocabulary() -> dict[str, int]:
    """Bytes first (id = byte), then merges, then the special tokens."""
    merged = dict.fromkeys("".join(merge.split(" ")) for merge in MERGES)
    return {text: index for index, text in enumerate([*byte_alphabet(), *merged, *SPECIAL_TOKENS])}


TINY_VOCAB_SIZE = len(tiny_vocabulary())


def tiny_tokenizer_json() -> dict[str, Any]:
    """A byte-level BPE tokenizer in the `tokenizers` library's format."""
    vocabulary = tiny_vocabulary()
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[text],
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for text in SPECIAL_TOKENS
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for text, i in vocabulary.items() if text not in SPECIAL_TOKENS},
            "merges": [merge.split(" ") for merge in dict.fromkeys(MERGES)],
        },
    }


def tiny_config(
    architecture: TinyArchitecture = "llama",
    *,
    num_layers: int = 2,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    max_position: int = 4096,
    tie_embeddings: bool = True,
    rope_theta: float = 10_000.0,
    rope_scaling: Mapping[str, Any] | None = None,
    sliding_window: int | None = None,
    full_layers: int = 0,
) -> dict[str, Any]:
    """A ``config.json``. Qwen3 gets a `head_dim` of its own choice (24) unless one is given.

    The first `full_layers` of a Qwen model have no sliding window.
    """
    if head_dim is None:
        head_dim = 24 if architecture == "qwen3" else hidden_size // num_heads
    vocabulary = tiny_vocabulary()
    config: dict[str, Any] = {
        "architectures": [HF_CLASSES[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "vocab_size": TINY_VOCAB_SIZE,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-5,
        "rope_theta": rope_theta,
        "rope_scaling": None if rope_scaling is None else dict(rope_scaling),
        "tie_word_embeddings": tie_embeddings,
        "bos_token_id": vocabulary["<|im_start|>"],
        "eos_token_id": vocabulary["<|im_end|>"],
        "pad_token_id": vocabulary["<|endoftext|>"],
        "torch_dtype": "float32",
    }
    if architecture == "mistral":
        config["sliding_window"] = sliding_window
    if architecture in ("qwen2", "qwen3"):
        config["use_sliding_window"] = sliding_window is not None
        if sliding_window is not None:
            config |= {"sliding_window": sliding_window, "max_window_layers": full_layers}
    return config


def tiny_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, Float32Array]:
    """Random weights under their Hugging Face names, scaled so that attention is not flat."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int) -> Float32Array:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def norm(width: int) -> Float32Array:
        return rng.normal(1, 0.2, width).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(hidden),
            prefix + "self_attn.q_proj.weight": matrix(query, hidden) * np.float32(1.5),
            prefix + "self_attn.k_proj.weight": matrix(key, hidden) * np.float32(1.5),
            prefix + "self_attn.v_proj.weight": matrix(key, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, query),
            prefix + "post_attention_layernorm.weight": norm(hidden),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
        if config["model_type"] == "qwen2":
            for name, width in (("q", query), ("k", key), ("v", key)):
                bias = rng.normal(0, 0.5, width).astype(np.float32)
                tensors[f"{prefix}self_attn.{name}_proj.bias"] = bias
        if config["model_type"] == "qwen3":
            for name in ("q", "k"):
                tensors[f"{prefix}self_attn.{name}_norm.weight"] = norm(config["head_dim"])
    tensors["model.norm.weight"] = norm(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return tensors


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_safetensors(
    folder: Path, tensors: Mapping[str, npt.NDArray[Any]], num_shards: int
) -> None:
    if num_shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::num_shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(folder / "model.safetensors.index.json", index)


def write_tiny_model(
    folder: Path,
    architecture: TinyArchitecture = "llama",
    *,
    seed: int = 0,
    dtype: npt.DTypeLike = np.float32,
    num_shards: int = 1,
    **config_arguments: Any,
) -> Path:
    """Write a whole model folder and return it.

    Args:
        folder: made if it is not there.
        architecture: which decoder family.
        seed: of the weights.
        dtype: of the stored weights, ``float32`` or ``float16``.
        num_shards: safetensors files; more than one also writes the index file.
        config_arguments: passed to `tiny_config`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(architecture, **config_arguments)
    tensors = {name: t.astype(dtype) for name, t in tiny_tensors(config, seed).items()}
    _write_safetensors(folder, tensors, num_shards)
    _write_json(folder / "config.json", config)
    _write_json(folder / "tokenizer.json", tiny_tokenizer_json())
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": [config["eos_token_id"]]},
    )
    return folder
