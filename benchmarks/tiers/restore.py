"""One prefix, five ways: computed, on the device, from RAM, from disk with a cold page cache, from Redis."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.engines import Bench, Timing, run_together
from benchmarks.report import Table
from benchmarks.tiers.machinery import (
    block_file,
    copy_rate,
    drop_page_cache,
    empty_device,
    fresh_meter,
    read_rate,
    redis_server,
    settle,
)
from ostinato.cache.layout import KVDtype
from ostinato.cache.types import Tier, TokenArray
from ostinato.config_sections import TiersConfig
from ostinato.engine.core import EngineCore

LENGTHS = (1024, 4096, 7900)


def restore(
    bench: Bench, progress: Progress, repeats: int, lengths: Sequence[int]
) -> tuple[list[Table], Any]:
    """TTFT of a prompt whose whole prefix lies on one level, and how fast it came from there."""
    table = Table(
        "Time to first token by where the prefix lies (seconds; in brackets: times faster than cold)",
        ("prefix tokens", "cold", "device", "RAM", "disk, cold page cache", "remote (Redis)"),
        note=f"Medians of {repeats} (cold: 1); one request at a time, in process, no HTTP.",
    )
    rates = Table(
        "Restoring K/V: GB/s, and share of a plain copy or a plain sequential read of the same bytes",
        ("prefix tokens", "MB", "RAM", "memcpy", "share", "disk", "plain read", "share", "remote"),
        note="Disk: pages dropped with posix_fadvise before every load and before every plain read.",
    )
    raw: dict[str, Any] = {}
    rng = np.random.default_rng(3)
    task = progress.add_task("restore", total=len(lengths))
    for length in lengths:
        seen = _one_length(bench, bench.prompt(rng, length), repeats)
        raw[str(length)] = seen
        cold = seen["cold"][0]
        cells = [f"{cold:.3f}"]
        for level in ("device", "ram", "disk", "remote"):
            if not seen[level]:
                cells.append("not measured")
                continue
            ttft = median(seen[level])
            cells.append(f"{ttft:.3f} ({cold / ttft:.0f} ×)")
        table.rows.append((f"{length:,}", *cells))
        rates.rows.append((f"{length:,}", *_rate_cells(seen)))
        progress.advance(task)
    return [table, rates], raw


def _rate_cells(seen: dict[str, Any]) -> list[str]:
    giga = {name: median(values) / 1e9 for name, values in seen["rates"].items() if values}
    remote = f"{giga['remote']:.2f}" if "remote" in giga else "not measured"
    return [
        f"{seen['bytes'] / 1e6:.0f}",
        f"{giga['ram']:.2f}",
        f"{giga['memcpy']:.2f}",
        f"{giga['ram'] / giga['memcpy']:.0%}",
        f"{giga['disk']:.2f}",
        f"{giga['plain_read']:.2f}",
        f"{giga['disk'] / giga['plain_read']:.0%}",
        remote,
    ]


def _one_length(bench: Bench, prompt: TokenArray, repeats: int) -> dict[str, Any]:
    num_bytes = (
        (len(prompt) - 1) // 16 * bench.model.config.kv_spec(KVDtype.FP16, 16).bytes_per_block
    )
    seen: dict[str, Any] = {level: [] for level in ("cold", "device", "ram", "disk", "remote")}
    seen["bytes"] = num_bytes
    rates: dict[str, list[float]] = {
        name: [] for name in ("ram", "memcpy", "disk", "plain_read", "remote")
    }
    seen["rates"] = rates
    with tempfile.TemporaryDirectory() as name, redis_server(Path(name)) as url:
        folder = Path(name) / "kv"
        _ram(bench, prompt, repeats, seen)
        _disk(bench, prompt, repeats, seen, folder)
        if url is not None:
            _remote(bench, prompt, repeats, seen, url)
    return seen


def _ram(bench: Bench, prompt: TokenArray, repeats: int, seen: dict[str, Any]) -> None:
    core = bench.engine("radix", len(prompt) + 256, TiersConfig(ram_bytes=4 * seen["bytes"]))
    seen["cold"].append(_serve(core, prompt).ttft)
    for _ in range(repeats):
        seen["device"].append(_serve(core, prompt).ttft)
    for _ in range(repeats):
        _load(core, prompt, Tier.RAM, seen)
        seen["rates"]["memcpy"].append(copy_rate(seen["bytes"]))
    core.close()


def _disk(
    bench: Bench, prompt: TokenArray, repeats: int, seen: dict[str, Any], folder: Path
) -> None:
    tiers = TiersConfig(disk_bytes=4 * seen["bytes"] + 2**20, disk_dir=folder, disk_keep_free=0.0)
    core = bench.engine("radix", len(prompt) + 256, tiers)
    _serve(core, prompt)
    for _ in range(repeats):
        empty_device(core)
        if not drop_page_cache(folder):
            break
        _load(core, prompt, Tier.DISK, seen)
        drop_page_cache(folder)
        seen["rates"]["plain_read"].append(read_rate(block_file(folder), seen["bytes"]))
    core.close()


def _remote(bench: Bench, prompt: TokenArray, repeats: int, seen: dict[str, Any], url: str) -> None:
    tiers = TiersConfig(remote_url=url, remote_bytes=4 * seen["bytes"])
    core = bench.engine("radix", len(prompt) + 256, tiers)
    _serve(core, prompt)
    for _ in range(repeats):
        _load(core, prompt, Tier.REMOTE, seen)
    core.close()


def _load(core: EngineCore, prompt: TokenArray, tier: Tier, seen: dict[str, Any]) -> None:
    """Serve `prompt`, all of whose whole blocks lie in `tier`, and take note of how long it took."""
    empty_device(core)
    meter = fresh_meter(core, tier)
    timing = _serve(core, prompt)
    whole = (len(prompt) - 1) // 16 * 16
    if timing.report is None or timing.report.read_by_tier != {tier: whole}:
        raise RuntimeError(f"the prefix did not come from {tier}: {timing.report}")
    seen[tier.value].append(timing.ttft)
    seen["rates"][tier.value].append(meter.rate)


def _serve(core: EngineCore, prompt: TokenArray) -> Timing:
    _, (timing,) = run_together(core, [prompt], 1)
    settle(core)
    return timing
