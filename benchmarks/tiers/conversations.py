"""Many conversations whose K/V is ten times the pool, with no tiers, RAM, and RAM and disk; and a restart."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.engines import CLOCK, Bench
from benchmarks.report import Table
from benchmarks.tiers.machinery import settle
from ostinato.cache.layout import KVDtype
from ostinato.cache.report import CacheReport
from ostinato.cache.types import Tier, TokenArray
from ostinato.config_sections import TiersConfig
from ostinato.engine.async_engine import STALL_SECONDS
from ostinato.engine.core import EngineCore
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampling_params import SamplingParams

FIRST, NEXT, OUTPUT, TURNS = 192, 48, 8, 3
"""Tokens of the first message, of each later one, of an answer; and turns."""
AT_ONCE = 4
POOL_SHARE = 10
"""The conversations' K/V is this many times the pool."""
COLUMNS = (
    *("token hit rate", "from device", "from RAM", "from disk"),
    *("TTFT p50 s", "TTFT p95 s", "total s"),
)
RESTART_CONVERSATIONS, RESTART_FIRST = 20, 512


@dataclass(slots=True)
class Traffic:
    """Conversations under way, and what their requests experienced.

    Attributes:
        histories: tokens of each conversation so far.
        ttft: seconds from arrival to first token, in order of arrival.
        reports: of all requests.
        seconds: from first arrival to last token.
    """

    histories: list[TokenArray]
    ttft: list[float] = field(default_factory=list)
    reports: list[CacheReport] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that was reused; first turns have nothing to reuse."""
        return sum(r.cached_tokens for r in self.reports) / sum(
            r.prompt_tokens for r in self.reports
        )

    def read(self, tier: Tier) -> int:
        return sum(report.read_by_tier.get(tier, 0) for report in self.reports)


def conversations(bench: Bench, progress: Progress, count: int) -> tuple[Table, Any]:
    """All conversations take their turns in random order, a few at a time."""
    longest = FIRST + (TURNS - 1) * (NEXT + OUTPUT) + OUTPUT
    pool = max(count * longest // POOL_SHARE, AT_ONCE * (longest + 64))
    kv_bytes = count * longest * bench.model.config.kv_spec(KVDtype.FP16, 16).bytes_per_token
    table = Table(
        f"{count} conversations of {TURNS} turns, K/V {POOL_SHARE} times the pool ({kv_bytes / 1e6:.0f} MB)",
        ("tiers", *COLUMNS),
        note=f"{AT_ONCE} requests at once, turns in random order. Last row: RAM for a third of all K/V.",
    )
    raw: dict[str, Any] = {}
    task = progress.add_task("conversations", total=3 * TURNS)
    with tempfile.TemporaryDirectory() as name:
        for label, tiers in (
            ("none", None),
            ("RAM", TiersConfig(ram_bytes=2 * kv_bytes)),
            (
                "RAM + disk",
                TiersConfig(
                    ram_bytes=kv_bytes // 3,
                    disk_bytes=2 * kv_bytes,
                    disk_dir=Path(name),
                    flush_seconds=0.0,
                ),
            ),
        ):
            core = bench.engine("radix", pool, tiers)
            traffic = start_traffic(bench, count, FIRST)
            for turn in range(TURNS):
                take_turn(bench, core, traffic, turn)
                progress.advance(task)
            core.close()
            raw[label] = _figures(traffic)
            table.rows.append((label, *_cells(traffic)))
    return table, raw


def start_traffic(bench: Bench, count: int, first: int) -> Traffic:
    """Conversations with their first message."""
    rng = np.random.default_rng(11)
    return Traffic([bench.prompt(rng, first) for _ in range(count)])


def take_turn(bench: Bench, core: EngineCore, traffic: Traffic, turn: int) -> None:
    """Every conversation sends its history once, gets an answer and goes on with another message."""
    rng = np.random.default_rng([turn, 5])
    order = rng.permutation(len(traffic.histories)).tolist()
    params = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True)
    arrived: dict[str, float] = {}
    answers: dict[str, list[int]] = {}
    start = CLOCK.monotonic()
    while order or core.has_work:
        while order and len(arrived) < AT_ONCE:
            name = f"c{order.pop()}"
            arrived[name] = CLOCK.monotonic()
            prompt = traffic.histories[int(name[1:])]
            core.add_request(EngineRequest(request_id=name, prompt_token_ids=prompt, params=params))
        if core.is_stalled:
            core.tiers.wait(STALL_SECONDS)
        for delta in core.step():
            name = delta.request_id
            if name not in answers:
                traffic.ttft.append(CLOCK.monotonic() - arrived[name])
            answers.setdefault(name, []).extend(delta.token_ids)
            if delta.finish_reason is not None:
                assert delta.report is not None
                traffic.reports.append(delta.report)
                del arrived[name]
        core.tiers.tend()
    traffic.seconds += CLOCK.monotonic() - start
    for at, history in enumerate(traffic.histories):
        parts = (history, np.array(answers[f"c{at}"], np.int32), bench.prompt(rng, NEXT))
        traffic.histories[at] = np.concatenate(parts)


def restart(bench: Bench, progress: Progress) -> tuple[Table, Any]:
    """A turn of every conversation, a restart, the next turn: all that was said before comes from disk."""
    count = RESTART_CONVERSATIONS
    table = Table(
        f"{count} conversations of {RESTART_FIRST} tokens before a restart",
        ("run", *COLUMNS),
        note="The second turn is the first thing that the new engine sees, after a clean stop.",
    )
    raw: dict[str, Any] = {}
    task = progress.add_task("restart", total=2)
    traffic = start_traffic(bench, count, RESTART_FIRST)
    with tempfile.TemporaryDirectory() as name:
        tiers = TiersConfig(
            ram_bytes=2**29, disk_bytes=2**31, disk_dir=Path(name), flush_seconds=30.0
        )
        for turn, label in enumerate(("before", "after the restart")):
            start = CLOCK.monotonic()
            core = bench.engine("radix", 2 * count * RESTART_FIRST, tiers)
            opened = CLOCK.monotonic() - start
            traffic = Traffic(traffic.histories)
            take_turn(bench, core, traffic, turn)
            settle(core)
            start = CLOCK.monotonic()
            core.close()
            closed = CLOCK.monotonic() - start
            raw[label] = {**_figures(traffic), "open_seconds": opened, "close_seconds": closed}
            table.rows.append((label, *_cells(traffic)))
            progress.advance(task)
    return table, raw


def _figures(traffic: Traffic) -> dict[str, Any]:
    return {
        "ttft": traffic.ttft,
        "seconds": traffic.seconds,
        "hit_rate": traffic.hit_rate,
        "read": {tier.value: traffic.read(tier) for tier in Tier},
    }


def _cells(traffic: Traffic) -> Sequence[str]:
    p50, p95 = np.percentile(traffic.ttft, [50, 95])
    reads = [f"{traffic.read(tier):,}" for tier in (Tier.DEVICE, Tier.RAM, Tier.DISK)]
    return (f"{traffic.hit_rate:.1%}", *reads, f"{p50:.3f}", f"{p95:.3f}", f"{traffic.seconds:.1f}")
