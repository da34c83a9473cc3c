"""Write ``reference/*.npz``: what transformers answers, for tests that run without PyTorch.

    python -m tests.parity.make_reference [case …]

Needs the packages of the `parity` extra. A file holds

    token_ids   (T,) int32
    columns     (C,) int32              the stored columns of the vocabulary, C > hidden size
    logits      (T, C) float32
    logsumexp   (T,) float32            over the whole vocabulary
    argmax      (T,) int32              over the whole vocabulary
    made_with   versions
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

import numpy as np

from ostinato.ops.base import Float32Array, Int32Array
from tests.parity.cases import NUM_TOKENS, REFERENCE_FOLDER, SMOLLM2, TINY_CASES, smollm2_file
from tests.parity.oracle import load_oracle_folder, load_oracle_gguf, oracle_logits

TINY_COLUMNS = 72
SMOLLM2_COLUMNS = 640
PROMPT = Path(__file__).parent / "prompt.txt"


def log_sum_exp(logits: Float32Array) -> Float32Array:
    """Over the last axis, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1, keepdims=True)
    summed: Float32Array = (np.log(np.exp(wide - top).sum(axis=-1)) + top[:, 0]).astype(np.float32)
    return summed


def save(name: str, token_ids: Int32Array, logits: Float32Array, num_columns: int) -> None:
    import torch
    import transformers

    columns = np.linspace(0, logits.shape[1] - 1, num_columns).astype(np.int32)
    np.savez_compressed(
        REFERENCE_FOLDER / f"{name}.npz",
        token_ids=token_ids,
        columns=columns,
        logits=logits[:, columns],
        logsumexp=log_sum_exp(logits),
        argmax=logits.argmax(axis=-1).astype(np.int32),
        made_with=f"transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{platform.machine()}",
    )


def make_tiny(name: str) -> None:
    case = TINY_CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        model = load_oracle_folder(case.write(Path(folder)))
        token_ids = case.token_ids()
        save(name, token_ids, oracle_logits(model, token_ids), TINY_COLUMNS)


def make_smollm2() -> None:
    from transformers import AutoTokenizer

    file = smollm2_file()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    text = PROMPT.read_text(encoding="utf-8")
    token_ids = np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
    if len(token_ids) < NUM_TOKENS:
        raise SystemExit(f"{PROMPT.name} has {len(token_ids)} tokens, {NUM_TOKENS} are needed")
    token_ids = token_ids[:NUM_TOKENS]
    save(SMOLLM2, token_ids, oracle_logits(load_oracle_gguf(file), token_ids), SMOLLM2_COLUMNS)


def main(names: list[str]) -> None:
    REFERENCE_FOLDER.mkdir(exist_ok=True)
    for name in names or [*TINY_CASES, SMOLLM2]:
        if name == SMOLLM2:
            make_smollm2()
        else:
            make_tiny(name)
        print(name, (REFERENCE_FOLDER / f"{name}.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
