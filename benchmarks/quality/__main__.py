"""`python -m benchmarks.quality`: KL divergence from float32, ours and llama.cpp's, on the same text.

`python -m benchmarks.quality kv` measures K/V formats instead.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track

from benchmarks.quality import kv
from benchmarks.quality.divergence import Divergence, paired_difference
from benchmarks.quality.llama_logits import LlamaLogits
from benchmarks.quality.ostinato_logits import REFERENCE, VARIANTS, OstinatoLogits
from benchmarks.quality.text import Corpus, load_corpus
from benchmarks.report import Table, machine, save
from ostinato.config import load_config
from ostinato.models.registry import resolve_model

EPILOG = """
The reference multiplies the file's dequantised weights with float32 activations and keeps K/V in float32.
Each other engine predicts the same tokens in the same windows, each beginning at position 0; every position
counts. llama.cpp is left out unless it was installed: python -m benchmarks.peers install llamacpp
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality", description=__doc__, epilog=EPILOG
    )
    parser.add_argument("--model", help="a name or GGUF file (default: the default model)")
    parser.add_argument("--tokens", type=int, default=20_480, help="of text (default 20,480)")
    parser.add_argument("--window", type=int, default=512, help="tokens a window (default 512)")
    parser.add_argument(
        "--skip",
        type=int,
        default=4096,
        help="tokens to pass over at the beginning (default 4,096)",
    )
    parser.add_argument("--venvs", type=Path, help="peers' environments (default: data folder)")
    arguments = parser.parse_args()
    before = machine()
    config = load_config({"model": arguments.model} if arguments.model else {})
    path = resolve_model(config.model, config.data_dir)
    venvs = arguments.venvs or config.data_dir / "peers"
    corpus = load_corpus(config.data_dir / "benchmarks")
    reference = OstinatoLogits(REFERENCE, path, config.data_dir)
    windows = cut(corpus, reference, arguments.tokens, arguments.window, arguments.skip)
    engines: list[Any] = [OstinatoLogits(one, path, config.data_dir) for one in VARIANTS]
    console = Console()
    if reason := LlamaLogits.missing(venvs / "llamacpp"):
        console.print(f"Without llama.cpp: {reason}")
    else:
        vocab = reference.model.config.vocab_size
        log = venvs / "logs" / "llama-logits.log"
        engines.append(LlamaLogits(venvs / "llamacpp", path, vocab, arguments.window, log))
    own, found = compare(reference, engines, windows)
    table = quality_table(path.name, corpus.name, own, found)
    console.print(Markdown(table.markdown()))
    raw = {title: summary(divergence) for title, divergence in [(REFERENCE.title, own), *found]}
    saved = save(f"quality_{reference.model.name}", before, [table], raw)
    console.print(f"Saved benchmarks/results/{saved.name} and its .json")


def cut(
    corpus: Corpus, reference: OstinatoLogits, tokens: int, window: int, skip: int
) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    """Whole windows of the corpus, as token ids."""
    # Characters enough for the tokens wanted: English has four or five a token, never more than eight.
    text = corpus.text[: 8 * (tokens + skip)]
    ids = np.array(reference.model.tokenizer.encode(text), dtype=np.int32)[skip:]
    count = min(tokens, len(ids)) // window
    return [ids[at * window : (at + 1) * window] for at in range(count)]


def compare(
    reference: OstinatoLogits, engines: list[Any], windows: list[Any]
) -> tuple[Divergence, list[tuple[str, Divergence]]]:
    """The reference against itself (for its perplexity), and every engine against the reference."""
    own = Divergence()
    found = [(engine.title, Divergence()) for engine in engines]
    for window in track(windows, description="windows"):
        exact = reference.window(window)
        own.add(exact, exact, window)
        for engine, (_, divergence) in zip(engines, found, strict=True):
            divergence.add(exact, engine.window(window), window)
    for engine in engines:
        if isinstance(engine, LlamaLogits):
            engine.close()
    return own, found


def quality_table(
    model: str, corpus: str, own: Divergence, found: list[tuple[str, Divergence]]
) -> Table:
    table = Table(
        f"KL divergence from float32 on {model}, in nats",
        ("engine", "KL mean", "±", "KL median", "KL 99 %", "same top token", "perplexity"),
        note=f"{own.positions:,} tokens of {corpus}, teacher-forced; ± is one standard error.",
    )
    by_title = dict(found)
    ours, theirs = by_title[VARIANTS[-1].title], by_title.get(LlamaLogits.title)
    if theirs is not None:
        mean, error = paired_difference(ours, theirs)
        table.note += (
            f" Int8 activations minus llama.cpp at each position: {mean:+.6f} ± {error:.6f}."
        )
    table.rows.append((REFERENCE.title, "0", "", "0", "0", "100 %", f"{own.perplexity:.4f}"))
    for title, divergence in found:
        table.rows.append(
            (
                title,
                f"{divergence.mean:.5f}",
                f"{divergence.mean_error:.5f}",
                f"{divergence.percentile(50):.5f}",
                f"{divergence.percentile(99):.4f}",
                f"{divergence.top1_agreement:.2%}",
                f"{divergence.perplexity:.4f}",
            )
        )
    return table


def summary(divergence: Divergence) -> dict[str, float]:
    return {
        "positions": divergence.positions,
        "kl_mean": divergence.mean,
        "kl_standard_error": divergence.mean_error,
        "kl_median": divergence.percentile(50),
        "kl_p99": divergence.percentile(99),
        "top1_agreement": divergence.top1_agreement,
        "perplexity": divergence.perplexity,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["kv"]:
        kv.main(sys.argv[2:])
    else:
        main()
