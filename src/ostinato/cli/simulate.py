"""``ostinato simulate``: what a cache with some eviction policy would make of recorded traffic."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cache.tiers.policy import WritePolicy
from ostinato.cli import console
from ostinato.clock import SystemClock

if TYPE_CHECKING:
    from rich.table import Table

    from ostinato.cache.types import Tier
    from ostinato.insight.simulate.chart import Curves
    from ostinato.insight.simulate.replay import ReplayResult, TierSizes
    from ostinato.insight.simulate.trace import TraceRequest

EPILOG = """
A trace is a file of JSON lines as published with the Mooncake paper: `timestamp` (ms), `input_length`,
`output_length`, `hash_ids` (one id per block of 512 tokens).

**Examples**

- All policies at five capacities, beside Belady's optimum: `ostinato simulate trace.jsonl`
- One cache: `ostinato simulate trace.jsonl --blocks 20000 --policy lru`
- With RAM and disk below the device: `ostinato simulate trace.jsonl --ram-blocks 40000 --disk-blocks 200000`
- A picture, as SVG and PNG: `ostinato simulate chat.jsonl agents.jsonl --plot hit-rates`
- The second half of 8,000 requests: `ostinato simulate trace.jsonl --skip 4000`
"""

TracesArgument = Annotated[
    list[Path],
    typer.Argument(help="Block-hash traces, each replayed by itself.", metavar="TRACE..."),
]
BlocksFlag = Annotated[
    list[int] | None,
    typer.Option(
        "--blocks",
        help="Capacity of the device in blocks of the trace; may be repeated. Default: 2, 5, 10, 20 and"
        " 40 % of the trace's distinct blocks.",
        metavar="N",
        min=1,
    ),
]
PolicyFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help="Eviction policy: lru, lfu, arc, reuse_rate, or belady for the optimum; may be repeated."
        " Default: all.",
        metavar="NAME",
    ),
]
RamBlocksFlag = Annotated[
    int, typer.Option(help="Capacity of a RAM tier; 0 for none.", min=0, metavar="N")
]
DiskBlocksFlag = Annotated[
    int, typer.Option(help="Capacity of a disk tier; 0 for none.", min=0, metavar="N")
]
WritePolicyFlag = Annotated[
    WritePolicy, typer.Option(help="What is copied down before it must be, as in `serve`.")
]
BlockTokensFlag = Annotated[
    int, typer.Option(help="Tokens of a block of the trace.", min=1, metavar="N")
]
IndexFlag = Annotated[str, typer.Option(help="Prefix index: radix or block_hash.", metavar="NAME")]
SkipFlag = Annotated[int, typer.Option(help="Leave out the first N requests.", min=0, metavar="N")]
LimitFlag = Annotated[
    int | None,
    typer.Option(help="Replay at most N requests.", min=1, metavar="N", show_default=False),
]
PlotFlag = Annotated[
    Path | None,
    typer.Option(
        help="Draw hit rate over capacity: PATH.svg and, with the extra `plots`, PATH.png.",
        metavar="PATH",
        show_default=False,
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def simulate(
    traces: TracesArgument,
    blocks: BlocksFlag = None,
    policy: PolicyFlag = None,
    ram_blocks: RamBlocksFlag = 0,
    disk_blocks: DiskBlocksFlag = 0,
    write_policy: WritePolicyFlag = WritePolicy.WRITE_THROUGH_SELECTIVE,
    block_tokens: BlockTokensFlag = 512,
    index: IndexFlag = "radix",
    skip: SkipFlag = 0,
    limit: LimitFlag = None,
    plot: PlotFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay recorded traffic through the cache's own index, pool, eviction and tiers, without a model.

    Says how many prompt tokens each eviction policy would have found at each capacity, and in which tier.
    """
    from ostinato.cache.types import Tier
    from ostinato.insight.simulate.chart import save_chart
    from ostinato.insight.simulate.replay import INDEXES, TierSizes
    from ostinato.insight.simulate.sweep import ALL_POLICIES, default_capacities, sweep
    from ostinato.insight.simulate.trace import read_trace

    if index not in INDEXES:
        raise typer.BadParameter(f"there are {', '.join(INDEXES)}", param_hint="--index")
    if plot is not None and not plot.name:
        raise typer.BadParameter(f"{plot} is a folder: name a file in it", param_hint="--plot")
    end = None if limit is None else skip + limit
    requests = {str(path): read_trace(path, block_tokens)[skip:end] for path in traces}
    _refuse_empty(requests)
    policies = list(dict.fromkeys(policy)) if policy else list(ALL_POLICIES)
    sizes = {Tier.RAM: ram_blocks, Tier.DISK: disk_blocks}
    below = TierSizes({tier: size for tier, size in sizes.items() if size}, write_policy)
    panels: dict[str, Curves] = {}
    num_replayed, started = 0, SystemClock().monotonic()
    for title, trace in requests.items():
        capacities = sorted(set(blocks)) if blocks else default_capacities(trace)
        total = len(trace) * len(policies) * len(capacities)
        num_replayed += total
        with console.steps_bar(f"Replaying {title}", total) as bar:
            panels[title] = sweep(
                trace,
                policies,
                capacities,
                block_tokens=block_tokens,
                index=index,
                below=below,
                advance=bar.advance,
            )
    seconds = SystemClock().monotonic() - started
    console.messages().print(
        f"Replayed {num_replayed:,} requests, {num_replayed / seconds:,.0f} a second"
    )
    if as_json:
        typer.echo(
            json.dumps({title: _as_json(curves) for title, curves in panels.items()}, indent=2)
        )
    else:
        for title, curves in panels.items():
            _print_tables(title, requests[title], curves, below)
    if plot is not None:
        for written in save_chart(panels, plot):
            console.messages().print(f"Wrote {written}")


def _refuse_empty(requests: Mapping[str, Sequence[TraceRequest]]) -> None:
    for title, trace in requests.items():
        if not trace:
            raise typer.BadParameter(f"{title} has no requests there", param_hint="TRACE")


def _as_json(curves: Curves) -> list[dict[str, Any]]:
    return [
        {**asdict(result), "hit_tokens": result.hit_tokens, "hit_rate": result.hit_rate}
        for curve in curves.values()
        for result in curve
    ]


def _print_tables(
    title: str, trace: Sequence[TraceRequest], curves: Curves, below: TierSizes
) -> None:
    from ostinato.cache.types import Tier
    from ostinato.insight.simulate.trace import distinct_blocks, total_tokens

    out = console.output()
    out.print(
        f"{console.escape(title)}: {len(trace):,} requests, {total_tokens(trace):,} prompt tokens,"
        f" {distinct_blocks(trace):,} distinct blocks"
    )
    if below.blocks:
        sizes = " and ".join(f"{size:,} blocks of {tier}" for tier, size in below.blocks.items())
        out.print(f"Below the device: {sizes}, {below.write_policy}")
    out.print(_table("Prompt tokens found", curves, lambda r: f"{100 * r.hit_rate:.2f} %"))
    for tier in (Tier.DEVICE, *below.blocks):
        _print_tier(tier, curves, below)
    refused = max(result.refused for curve in curves.values() for result in curve)
    if refused:
        out.print(
            f"Up to {refused:,} requests did not fit the smallest device alone: they count as not found."
        )


def _print_tier(tier: Tier, curves: Curves, below: TierSizes) -> None:
    """One level's tables. The optimum is one level that is as large as all together."""
    from ostinato.insight.simulate.replay import OPTIMUM

    shown = {n: c for n, c in curves.items() if n != OPTIMUM or not below.blocks}
    if not shown:
        return
    out = console.output()
    if below.blocks:
        out.print(_table(f"… on {tier}", shown, lambda r: f"{100 * r.hit_rate_of(tier):.2f} %"))
    out.print(
        _table(f"Blocks evicted from {tier}", shown, lambda r: f"{r.evicted_by_tier[tier]:,}")
    )


def _table(heading: str, curves: Curves, cell: Callable[[ReplayResult], str]) -> Table:
    from rich import box
    from rich.table import Table

    first: Sequence[ReplayResult] = next(iter(curves.values()))
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("policy \\ blocks")
    for result in first:
        table.add_column(f"{result.num_blocks:,}", justify="right")
    for name, curve in curves.items():
        table.add_row(name, *(cell(result) for result in curve))
    return table
