"""Small GGUF files for tests, written with the `gguf` package as converters write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from tests import tiny

ROOT_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(hf_name: str) -> str:
    """The converter's name of a tensor, written down independently of the reader's table."""
    if hf_name in ROOT_NAMES:
        return ROOT_NAMES[hf_name]
    _, _, layer, *middle, kind = hf_name.split(".")
    return f"blk.{layer}.{LAYER_NAMES['.'.join(middle)]}.{kind}"


def interleave(weight: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """The converter's permutation of Q and K rows: the two halves of each head, shuffled together."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write_gguf(
    path: Path,
    architecture: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, npt.NDArray[Any]] | None = None,
    types: Mapping[str, GGMLQuantizationType] | None = None,
) -> Path:
    """Write a file.

    Args:
        path: the file.
        architecture: ``general.architecture``.
        metadata: key/values; the type follows from the Python type (int is uint32).
        tensors: by GGUF name; float arrays, or bytes of quantised rows where `types` has the name.
        types: of tensors that are given as bytes.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata or {}).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_tokenizer_metadata(**changes: Any) -> dict[str, Any]:
    """The tokenizer of `tests.tiny` as GGUF arrays."""
    vocabulary = list(tiny.tiny_vocabulary())
    special = set(tiny.SPECIAL_TOKENS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in vocabulary],
        "tokenizer.ggml.merges": list(dict.fromkeys(tiny.MERGES)),
        "tokenizer.ggml.bos_token_id": vocabulary.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": vocabulary.index("<|im_end|>"),
        **changes,
    }


def write_tiny_gguf(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.float32]]
) -> Path:
    """The model of a ``config.json`` and its Hugging Face tensors, in float32, as a GGUF file."""
    architecture = "llama" if config["model_type"] == "mistral" else config["model_type"]
    stored = {}
    for hf_name, tensor in tensors.items():
        if architecture == "llama" and ".q_proj." in hf_name:
            tensor = interleave(tensor, config["num_attention_heads"])
        if architecture == "llama" and ".k_proj." in hf_name:
            tensor = interleave(tensor, config["num_key_value_heads"])
        stored[gguf_name(hf_name)] = tensor
    numbers = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    metadata = {f"{architecture}.{key}": value for key, value in numbers.items()}
    metadata |= tiny_tokenizer_metadata()
    metadata["tokenizer.chat_template"] = tiny.CHAT_TEMPLATE
    return write_gguf(path, architecture, metadata, stored)
