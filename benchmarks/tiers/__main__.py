"""`python -m benchmarks.tiers [PART …]`: measure, print and save. Without parts, everything."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

from benchmarks.engines import Bench
from benchmarks.report import Table, machine, save
from benchmarks.tiers.conversations import conversations, restart
from benchmarks.tiers.restore import LENGTHS, restore

PARTS = ("restore", "conversations", "restart")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tiers",
        description="Measure K/V that comes back from RAM, disk and a remote server.",
        epilog="Close other programs first: the load average is part of the result.",
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--model", help="a name, GGUF file or folder (default: the default model)")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="for restore")
    parser.add_argument("--conversations", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each figure (default 5)")
    arguments = parser.parse_args()
    parts = arguments.parts or list(PARTS)
    before = machine()
    console = Console()
    tables: list[Table] = []
    raw: dict[str, Any] = {}
    with Progress(console=console) as progress:
        bench = Bench.load(arguments.model)
        before["backend"] = bench.backend
        if "restore" in parts:
            found, raw["restore"] = restore(bench, progress, arguments.repeats, arguments.lengths)
            tables += found
        if "conversations" in parts:
            table, raw["conversations"] = conversations(bench, progress, arguments.conversations)
            tables.append(table)
        if "restart" in parts:
            table, raw["restart"] = restart(bench, progress)
            tables.append(table)
    for table in tables:
        console.print(Markdown(table.markdown()))
    name = "tiers" if len(parts) == len(PARTS) else "tiers_" + "_".join(parts)
    path = save(name, before, tables, raw)
    console.print(f"Saved benchmarks/results/{path.name} and its .json")


if __name__ == "__main__":
    main()
