"""Logits as `transformers` computes them, in float32 on the CPU. Imports PyTorch only when called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ostinato.ops.base import Float32Array, Int32Array


def oracle_logits(model: Any, token_ids: Int32Array) -> Float32Array:
    """``(len(token_ids), vocab)``: one forward pass over the whole sequence."""
    import torch

    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids.astype("int64"))[None]).logits[0]
    result: Float32Array = logits.float().numpy()
    return result


def load_oracle_folder(folder: Path) -> Any:
    """A transformers model over a folder of safetensors."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def load_oracle_gguf(file: Path) -> Any:
    """A transformers model over a GGUF file, dequantised by transformers to float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
