"""`python -m benchmarks [NAME …]`: measure, print and save. Without names, everything."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

from benchmarks import prefix_caching
from benchmarks.engines import Bench
from benchmarks.report import Table, machine, save

PARTS = ("ttft", "shared", "waste", "index")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure prefix caching off and on, side by side in one run.",
        epilog="Close other programs first: the load average is part of the result.",
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--model", help="a name, GGUF file or folder (default: the default model)")
    parser.add_argument(
        "--backend", choices=("auto", "cpu", "reference"), default="auto", help="kernels to run"
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=prefix_caching.LENGTHS,
        help="prompt lengths for ttft",
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each figure (default 3)")
    arguments = parser.parse_args()
    parts = arguments.parts or list(PARTS)
    before = machine()
    console = Console()
    tables: list[Table] = []
    raw: dict[str, Any] = {}
    with Progress(console=console) as progress:
        bench = Bench.load(arguments.model, arguments.backend) if set(parts) - {"index"} else None
        for part in parts:
            table, figures = _run(part, bench, progress, arguments)
            tables.append(table)
            raw[part] = figures
    for table in tables:
        console.print(Markdown(table.markdown()))
    if bench is not None:
        before["backend"] = bench.backend
    name = "prefix_caching" if len(parts) == len(PARTS) else "prefix_caching_" + "_".join(parts)
    if arguments.backend != "auto":
        name += f"_{arguments.backend}"
    path = save(name, before, tables, raw)
    console.print(f"Saved benchmarks/results/{path.name} and its .json")


def _run(
    part: str, bench: Bench | None, progress: Progress, arguments: argparse.Namespace
) -> tuple[Table, Any]:
    if bench is None or part == "index":
        return prefix_caching.index_cost(progress, arguments.repeats)
    if part == "ttft":
        return prefix_caching.ttft(bench, progress, arguments.repeats, arguments.lengths)
    if part == "shared":
        return prefix_caching.shared_prefix(bench, progress)
    return prefix_caching.memory_waste(bench, progress)


if __name__ == "__main__":
    main()
