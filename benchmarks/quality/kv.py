"""`python -m benchmarks.quality kv`: what each K/V format saves in memory and costs in quality."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.quality.divergence import Divergence
from benchmarks.quality.handbook import TextMissingError, load_handbook
from benchmarks.quality.kv_windows import (
    BLOCK_SIZE,
    PagedText,
    Tokens,
    Window,
    WindowLog,
    score_window,
)
from benchmarks.quality.text import Corpus, load_corpus
from benchmarks.report import Table, machine, save
from ostinato.cache.layout import LAYOUT_VERSION, KVDtype
from ostinato.config import load_config
from ostinato.models.loader import LoadedModel, load_model
from ostinato.models.registry import resolve_model
from ostinato.ops.base import OpsBackend
from ostinato.ops.select import KernelOptions, select_backend

REFERENCE = KVDtype.FP16
MEASURED = (KVDtype.FP32, KVDtype.FP8, KVDtype.INT8, KVDtype.INT4)

EPILOG = """
The reference keeps K/V in fp16. Every other format predicts the same tokens in the same windows, through
paged memory, so that all K/V but that of the chunk itself is read back as it is stored. Activations are float32
unless --activation-dtype says otherwise: their rounding would add to each difference. Finished windows are kept
in the data folder; the same command goes on where it was broken off.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """All windows of all texts."""

    windows: list[tuple[str, int, Tokens]]
    missing: list[str]


def main(arguments: Sequence[str]) -> None:
    options = _parser().parse_args(arguments)
    console, before = Console(), machine()
    config = load_config({"model": options.model} if options.model else {})
    path = resolve_model(config.model, config.data_dir)
    kernels = KernelOptions(options.threads, activation_dtype=options.activation_dtype)
    ops = select_backend(options.backend, kernels)
    model = load_model(path, ops, config.data_dir)
    folder = config.data_dir / "benchmarks"
    plan = plan_windows(model, folder, options.tokens, options.window, options.skip)
    for reason in plan.missing:
        console.print(f"Without {reason}")
    settings = {
        "model": model.digest.hex(),
        "backend": str(ops.info),
        "formats": [dtype.value for dtype in MEASURED],
        "layout": LAYOUT_VERSION,
        "chunk": options.chunk,
        "window": options.window,
        "tokens": options.tokens,
        "skip": options.skip,
    }
    log = WindowLog(folder, settings)
    done = measure(model, ops, plan, log, options.window, options.chunk, console)
    tables = [memory_table(model), *quality_tables(model, done, str(ops.info), options)]
    for table in tables:
        console.print(Markdown(table.markdown()))
    saved = save(f"kv_quality_{model.name}", before, tables, _raw(done, settings))
    console.print(f"Saved benchmarks/results/{saved.name} and its .json")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality kv", description=__doc__, epilog=EPILOG
    )
    parser.add_argument("--model", help="a name or GGUF file (default: the default model)")
    parser.add_argument(
        "--tokens", type=int, default=8192, help="of each of the three texts (default 8,192)"
    )
    parser.add_argument("--window", type=int, default=2048, help="tokens a window (default 2,048)")
    parser.add_argument(
        "--chunk",
        type=int,
        default=BLOCK_SIZE,
        help="tokens computed at once (default 16: one block, as in decoding)",
    )
    parser.add_argument(
        "--skip", type=int, default=4096, help="tokens to pass over first (default 4,096)"
    )
    parser.add_argument("--backend", choices=("auto", "cpu", "reference"), default="auto")
    parser.add_argument(
        "--threads", type=int, default=0, help="of the native kernels (default: all)"
    )
    parser.add_argument("--activation-dtype", choices=("fp32", "int8"), default="fp32")
    return parser


def plan_windows(model: LoadedModel, folder: Path, tokens: int, window: int, skip: int) -> Plan:
    """Whole windows of Shakespeare and of the handbook in two languages, as token ids."""
    texts: list[Corpus] = [load_corpus(folder)]
    missing = []
    for language in ("en-US", "zh-CN"):
        try:
            texts.append(load_handbook(folder, language))
        except TextMissingError as error:
            missing.append(f"the handbook, {language}: {error}")
    windows = []
    for text in texts:
        # Characters enough for the tokens wanted: no text here has more than eight a token.
        encoded = model.tokenizer.encode(text.text[: 8 * (tokens + skip)])
        ids = np.array(encoded[skip : skip + tokens], dtype=np.int32)
        for index in range(len(ids) // window):
            windows.append((text.name, index, ids[index * window : (index + 1) * window]))
    return Plan(windows, missing)


def measure(
    model: LoadedModel,
    ops: OpsBackend,
    plan: Plan,
    log: WindowLog,
    window: int,
    chunk: int,
    console: Console,
) -> list[Window]:
    """All windows of the plan: those that the log has, and the rest, computed now."""
    known = {(one.text, one.index): one for one in log.windows()}
    reference = PagedText(model, ops, REFERENCE, window, chunk)
    measured = {dtype: PagedText(model, ops, dtype, window, chunk) for dtype in MEASURED}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("windows", total=len(plan.windows))
        done = []
        for text, index, token_ids in plan.windows:
            found = known.get((text, index))
            if found is None:
                begin = time.perf_counter()
                own, others = score_window(token_ids, reference, measured, chunk)
                found = Window(text, index, time.perf_counter() - begin, own, others)
                log.add(found)
            done.append(found)
            progress.advance(task)
    return done


def memory_table(model: LoadedModel) -> Table:
    """Arithmetic, not measurement: sealed blocks of this model in every format."""
    table = Table(
        f"K/V memory of {model.name}",
        ("format", "bytes a token", "tokens that fit, of fp16"),
        note=f"Stored blocks of {BLOCK_SIZE} tokens, scales included. The few open blocks are in fp16.",
    )
    fp16 = model.config.kv_spec(REFERENCE, BLOCK_SIZE).bytes_per_block
    for dtype in (REFERENCE, *MEASURED):
        size = model.config.kv_spec(dtype, BLOCK_SIZE).bytes_per_block
        table.rows.append((dtype.value, f"{size / BLOCK_SIZE:,.0f}", f"{fp16 / size:.2f}"))
    return table


def quality_tables(
    model: LoadedModel, done: list[Window], backend: str, options: argparse.Namespace
) -> list[Table]:
    """Over all texts, then text by text."""
    minutes = sum(window.seconds for window in done) / 60
    note = (
        f"Windows of {options.window:,} tokens in chunks of {options.chunk}, teacher-forced, on {backend};"
        f" {minutes:.0f} minutes of computing. ± is one standard error."
    )
    texts = list(dict.fromkeys(window.text for window in done))
    every = [(f"all {len(texts)} texts", done)]
    each = [(text, [window for window in done if window.text == text]) for text in texts]
    return [_quality_table(model.name, name, windows, note) for name, windows in every + each]


def _quality_table(model: str, text: str, windows: list[Window], note: str) -> Table:
    own, found = merged(windows)
    table = Table(
        f"KL divergence from fp16 K/V on {model}, in nats: {text}",
        ("K/V", "KL mean", "±", "KL median", "KL 99 %", "same top token", "perplexity"),
        note=f"{own.positions:,} tokens. {note}",
    )
    table.rows.append((REFERENCE.value, "0", "", "0", "0", "100 %", f"{own.perplexity:.4f}"))
    for dtype, one in found.items():
        table.rows.append(
            (
                dtype.value,
                f"{one.mean:.6f}",
                f"{one.mean_error:.6f}",
                f"{one.percentile(50):.6f}",
                f"{one.percentile(99):.5f}",
                f"{one.top1_agreement:.2%}",
                f"{one.perplexity:.4f}",
            )
        )
    return table


def merged(windows: list[Window]) -> tuple[Divergence, dict[KVDtype, Divergence]]:
    """One divergence of many windows', for the reference and for each format."""
    own, found = Divergence(), {dtype: Divergence() for dtype in MEASURED}
    for window in windows:
        own.merge(window.own)
        for dtype, one in window.found.items():
            found[dtype].merge(one)
    return own, found


def _raw(done: list[Window], settings: dict[str, Any]) -> dict[str, Any]:
    windows = []
    for window in done:
        own, found = merged([window])
        row: dict[str, Any] = {
            "text": window.text,
            "index": window.index,
            "seconds": round(window.seconds, 1),
            "positions": own.positions,
            "perplexity": {REFERENCE.value: own.perplexity},
        }
        for dtype, one in found.items():
            row["perplexity"][dtype.value] = one.perplexity
            row[dtype.value] = {"kl_mean": one.mean, "top1_agreement": one.top1_agreement}
        windows.append(row)
    return {"settings": settings, "windows": windows}
