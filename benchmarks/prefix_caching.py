"""Prefix caching off and on, side by side: time to first token, shared prefixes, memory waste, index cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.engines import CLOCK, Bench, run_together
from benchmarks.report import Table
from ostinato.cache.build import build_manager
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.storage import NullKVStorage
from ostinato.cache.types import NamespaceKey
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampling_params import SamplingParams

LENGTHS = (512, 1024, 2048, 4096, 7900)
SHARED, SUFFIX, REQUESTS, OUTPUT = 1024, 64, 16, 64
INDEX_TOKENS = 100_000


def ttft(
    bench: Bench, progress: Progress, repeats: int, lengths: Sequence[int]
) -> tuple[Table, Any]:
    """Cold and repeated prompts of each length with caching off and on, interleaved."""
    table = Table(
        "Time to first token, one request at a time (seconds)",
        (
            "prompt tokens",
            "off, first",
            "off, again",
            "on, cold",
            "on, warm",
            "cached",
            "cold ÷ warm",
        ),
        note=f"Medians of {repeats} (cold runs of 4,096 tokens and more: 1); in process, no HTTP.",
    )
    rng = np.random.default_rng(0)
    off = bench.engine("none", 2 * max(lengths))
    on = bench.engine("radix", 4 * max(lengths))
    raw: dict[str, Any] = {}
    task = progress.add_task("time to first token", total=sum(lengths))
    for length in lengths:
        seen: dict[str, list[float]] = {"off_first": [], "off_again": [], "cold": [], "warm": []}
        cached = 0
        for _ in range(repeats if length < 4096 else 1):
            prompt = bench.prompt(rng, length)
            for key, core in (
                ("off_first", off), ("cold", on), ("off_again", off), *[("warm", on)] * repeats
            ):  # fmt: skip
                _, (timing,) = run_together(core, [prompt], 1)
                seen[key].append(timing.ttft)
                if key == "warm" and timing.report is not None:
                    cached = timing.report.cached_tokens
        middle = {key: median(values) for key, values in seen.items()}
        raw[str(length)] = {**seen, "cached_tokens": cached}
        table.rows.append(
            (
                f"{length:,}",
                *(f"{middle[key]:.3f}" for key in ("off_first", "off_again", "cold", "warm")),
                f"{cached:,}",
                f"{middle['cold'] / middle['warm']:.0f} ×",
            )
        )
        progress.advance(task, length)
    return table, raw


def shared_prefix(bench: Bench, progress: Progress) -> tuple[Table, Any]:
    """Requests that arrive together and begin alike; primed = somebody asked with this prefix before."""
    table = Table(
        f"{REQUESTS} requests at once, {SHARED:,} shared + {SUFFIX} own tokens, {OUTPUT} out each",
        (
            "prefix caching",
            "run",
            "wall s",
            "median TTFT s",
            "output tokens/s",
            "prompt tokens computed",
        ),
        note="Off: every request computes everything. On: the shared prefix is computed once.",
    )
    rng = np.random.default_rng(1)
    prefix = bench.prompt(rng, SHARED)
    size = REQUESTS * (SHARED + SUFFIX + OUTPUT) + 2048
    raw: list[Any] = []
    task = progress.add_task("shared prefix", total=4)
    for index, runs in (
        ("none", ("cold",)),
        ("radix", ("cold", "primed")),
        ("block_hash", ("cold",)),
    ):
        core = bench.engine(index, size)  # type: ignore[arg-type]
        for run in runs:
            prompts = [np.concatenate((prefix, bench.prompt(rng, SUFFIX))) for _ in range(REQUESTS)]
            wall, timings = run_together(core, prompts, OUTPUT)
            computed = sum(t.report.computed_tokens for t in timings if t.report is not None)
            out = sum(t.output_tokens for t in timings)
            first = median(t.ttft for t in timings)
            raw.append(
                {
                    "index": index,
                    "run": run,
                    "wall": wall,
                    "median_ttft": first,
                    "computed": computed,
                }
            )
            table.rows.append(
                (index, run, f"{wall:.1f}", f"{first:.2f}", f"{out / wall:.0f}", f"{computed:,}")
            )
            progress.advance(task)
    return table, raw


def memory_waste(bench: Bench, progress: Progress) -> tuple[Table, Any]:
    """Slots that are allocated but hold nothing, averaged over the steps of a mixed load."""
    rng = np.random.default_rng(2)
    count = 32
    core = bench.engine("radix", 32_768)
    for number in range(count):
        length = int(np.clip(rng.lognormal(5.0, 0.8), 16, 1024))
        params = SamplingParams(
            max_tokens=int(rng.integers(8, 96)), temperature=0.0, ignore_eos=True
        )
        prompt = bench.prompt(rng, length)
        core.add_request(
            EngineRequest(request_id=f"waste-{number}", prompt_token_ids=prompt, params=params)
        )
    task = progress.add_task("memory waste", total=count)
    paged, contiguous = [], []
    context = core.limits.max_model_len
    while core.has_work:
        done = sum(delta.finish_reason is not None for delta in core.step())
        progress.advance(task, done)
        stats = core.stats()
        if stats.running:
            paged.append(stats.waste)
            contiguous.append(1 - stats.used_slots / (stats.running * context))
    rows = (
        ("paged, blocks of 16", paged),
        (f"one reservation of {context:,} a request", contiguous),
    )
    table = Table(
        f"K/V slots allocated but unused, {count} requests of mixed lengths",
        ("allocation", "mean", "worst step"),
        [(name, f"{np.mean(v):.1%}", f"{max(v):.1%}") for name, v in rows],
        note=f"Over {len(paged)} steps. Blocks of a prompt are reserved when it is admitted.",
    )
    return table, {"paged": paged, "contiguous": contiguous}


def index_cost(progress: Progress, repeats: int) -> tuple[Table, Any]:
    """Match and insert of one very long prompt, without a model."""
    table = Table(
        f"Prefix index, one prompt of {INDEX_TOKENS:,} tokens, blocks of 16 (milliseconds)",
        ("index", "match, cold", "insert", "match, warm"),
        note=f"Medians of {repeats}. Block hashes include SHA-256 over the chain.",
    )
    raw: dict[str, Any] = {}
    spec = KVCacheSpec(1, 1, 1, KVDtype.FP16, 16)
    namespace = NamespaceKey(bytes(32))
    task = progress.add_task("prefix index", total=2 * repeats)
    for index in ("radix", "block_hash"):
        seen: list[tuple[float, float, float]] = []
        for repeat in range(repeats):
            storage = NullKVStorage(spec, INDEX_TOKENS // 16 + 1)
            manager = build_manager(spec, storage, index)
            tokens = np.random.default_rng(repeat).integers(0, 49152, INDEX_TOKENS).astype(np.int32)
            times = [CLOCK.monotonic()]
            match = manager.lookup(namespace, tokens)
            times.append(CLOCK.monotonic())
            table_of_blocks = manager.allocate(match, len(tokens))
            assert table_of_blocks is not None
            before = CLOCK.monotonic()
            manager.publish(table_of_blocks, tokens, len(tokens))
            inserted = CLOCK.monotonic() - before
            before = CLOCK.monotonic()
            assert manager.lookup(namespace, tokens).num_tokens >= INDEX_TOKENS - 16
            warm = CLOCK.monotonic() - before
            seen.append((times[1] - times[0], inserted, warm))
            progress.advance(task)
        raw[index] = seen
        table.rows.append(
            (index, *(f"{1000 * median(column):.2f}" for column in zip(*seen, strict=True)))
        )
    return table, raw
