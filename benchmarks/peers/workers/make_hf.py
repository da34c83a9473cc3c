"""A GGUF file as a folder of safetensors, config and tokenizer, for engines that read no GGUF."""

import os
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(path, out):
    folder, name = os.path.split(path)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # A model that came from a GGUF file refuses to be saved; a fresh one with its tensors does not.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
