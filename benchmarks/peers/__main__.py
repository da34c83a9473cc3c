"""`python -m benchmarks.peers`: measure Ostinato and every installed peer, print and save."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.engines import Bench
from benchmarks.peers import inside
from benchmarks.peers.adapters import PEERS, build_engines
from benchmarks.peers.chart import save_chart
from benchmarks.peers.contract import Engine, EngineError
from benchmarks.peers.counts import ModelCounts, work_of
from benchmarks.peers.figures import Scenario, scenarios
from benchmarks.peers.install import RECIPES, install
from benchmarks.peers.limits import Limits, measure_limits
from benchmarks.peers.prompts import PromptMaker
from benchmarks.peers.runner import Results, measure, start_all
from benchmarks.peers.table import Row, comparison_table, make_row, row_json
from benchmarks.report import RESULTS, Table, machine, save
from ostinato.config import load_config
from ostinato.models.loader import read_config
from ostinato.models.registry import resolve_model
from ostinato.models.tokenizer_gguf import tokenizer_from_gguf
from ostinato.models.weights.gguf_format import read_header

EPILOG = """\
commands
  python -m benchmarks.peers                      measure everything that is installed
  python -m benchmarks.peers --quick              smaller loads, one round: minutes instead of an hour
  python -m benchmarks.peers --only prefill-512 shared
  python -m benchmarks.peers --peers openvino     Ostinato and this peer only
  python -m benchmarks.peers list                 peers, and what each costs to install
  python -m benchmarks.peers install llamacpp openvino

how it measures
  Every engine runs in a process of its own and gets the same token ids; greedy, end-of-sequence ignored, all
  cores. Ostinato, llama.cpp and vLLM answer over HTTP with streaming, libraries through a pipe (which favours
  them). Engines take turns, in an order that rotates, and are stopped (SIGSTOP) while another has its turn.
  Figures are medians; the load average before each round is saved with them. Close other programs first.
  The machine's limits are measured in the same run, and each figure is also given as a share of them.

A peer that is not installed is left out by name. Results go to benchmarks/results/; those of --quick and
--only under names of their own.
"""


def main() -> None:
    arguments = _arguments()
    config = load_config({"model": arguments.model} if arguments.model else {})
    peers_dir = arguments.venvs or config.data_dir / "peers"
    if arguments.command[:1] == ["list"]:
        for name, recipe in RECIPES.items():
            state = "installed" if (peers_dir / name / "bin" / "python").exists() else "–"
            print(f"{name:14} {state:10} {recipe.size}")
        return
    file = resolve_model(config.model, config.data_dir)
    if arguments.command[:1] == ["install"]:
        for name in arguments.command[1:]:
            install(name, peers_dir, file)
        return
    _run(arguments, config.model, file, peers_dir, config.data_dir)


def _arguments() -> argparse.Namespace:
    names = [peer.name for peer in PEERS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Ostinato beside other CPU engines, on the same prompts, in one run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="*", help="nothing (measure), list, or install NAME …")
    parser.add_argument("--peers", nargs="*", choices=names, default=names, help="default: all")
    parser.add_argument("--only", nargs="+", metavar="SCENARIO", help="scenarios to run, by name")
    parser.add_argument("--quick", action="store_true", help="small loads, one round")
    parser.add_argument("--repeats", type=int, help="rounds (default 3; with --quick 1)")
    parser.add_argument("--model", help="a name or a GGUF file (default: the default model)")
    parser.add_argument("--venvs", type=Path, help="peers' folder (default: DATA_DIR/peers)")
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment for Ostinato, e.g. OSTINATO_THREADS=1; repeatable",
    )
    arguments = parser.parse_args()
    command = arguments.command
    if command and command[0] not in ("list", "install"):
        parser.error(f"no command {command[0]!r}: list, or install NAME …")
    if unknown := set(command[1:]) - set(RECIPES):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}")
    if arguments.only:
        known = [scenario.name for scenario in scenarios(quick=arguments.quick)]
        if unknown := set(arguments.only) - set(known) - {"inside"}:
            parser.error(
                f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(known)}, inside"
            )
    return arguments


def _run(
    arguments: argparse.Namespace, model: str, file: Path, peers_dir: Path, data_dir: Path
) -> None:
    console = Console(soft_wrap=True)
    before = machine()
    say: Callable[[str], None] = lambda text: console.print(text, markup=False)  # noqa: E731
    repeats = arguments.repeats or (1 if arguments.quick else 3)
    chosen = [
        scenario
        for scenario in scenarios(quick=arguments.quick)
        if not arguments.only or scenario.name in arguments.only
    ]
    limits = measure_limits()
    say(f"limits of this machine: {limits.as_dict()}")
    maker = PromptMaker(tokenizer_from_gguf(read_header(file).metadata))
    environment = dict(setting.split("=", 1) for setting in arguments.setting)
    engines = build_engines(
        arguments.peers, model=model, file=file, peers_dir=peers_dir, environment=environment
    )
    results = Results()
    try:
        running = start_all(engines, maker, results, say) if chosen else []
        measure(running, chosen, maker, repeats, results, say)
    finally:
        for engine in engines:
            engine.stop()
    limits = limits.best(measure_limits())  # so that a neighbour's burst does not lower them
    counts = ModelCounts.of(read_config(file), file, data_dir)
    rows, figures = judge(chosen, running, results, counts, limits)
    titles = {engine.name: engine.title for engine in running}
    tables = [comparison_table(rows, titles, _note(repeats, results))] if rows else []
    raw: dict[str, Any] = {"repeats": repeats, "limits": limits.as_dict(), "figures": figures}
    raw |= _facts(results)
    if not arguments.only or "inside" in arguments.only:
        table, inner = _inside(arguments, model, maker, peers_dir, repeats)
        tables.append(table)
        raw["inside"] = inner
    for table in tables:
        console.print(Markdown(table.markdown()))
    name = "peers_" + file.stem.lower().replace(".", "-")
    name += ("_quick" if arguments.quick else "") + ("_partial" if arguments.only else "")
    path = save(name, before, tables, raw)
    pictures = save_chart(rows, titles, RESULTS / name) if rows else []
    say("Saved " + ", ".join(f"benchmarks/results/{one.name}" for one in (path, *pictures)))


def judge(
    chosen: Sequence[Scenario],
    engines: Sequence[Engine],
    results: Results,
    counts: ModelCounts,
    limits: Limits,
) -> tuple[list[Row], dict[str, Any]]:
    """A row for each figure, and all that is known of it."""
    rows, figures = [], {}
    names = [engine.name for engine in engines]
    for scenario in chosen:
        work = work_of(scenario, counts)
        for figure in scenario.figures():
            least, tokens = work[figure.key]
            row = make_row(figure, names, results, least, tokens, limits)
            rows.append(row)
            figures[figure.key] = row_json(row, results, least, limits)
    return rows, figures


def _facts(results: Results) -> dict[str, Any]:
    return {
        "left_out": results.left_out,
        "failures": results.failures,
        "load_average_before_each_round": results.loads,
        "start_seconds": results.start_seconds,
    }


def _note(repeats: int, results: Results) -> str:
    loads = results.loads
    note = f"Medians of {repeats}, engines in turns; load average {min(loads)}–{max(loads)}."
    for name, reason in results.left_out.items():
        note += f"\nLeft out: {name} ({reason.splitlines()[0][:120]})."
    for key, reason in results.failures.items():
        note += f"\nFailed: {key} ({reason.splitlines()[0][:120]})."
    return note


def _inside(
    arguments: argparse.Namespace, model: str, maker: PromptMaker, peers_dir: Path, repeats: int
) -> tuple[Table, dict[str, Any]]:
    """What a client cannot see."""
    table = Table("Ostinato from inside", ("figure", "value", "goal"))
    bench = Bench.load(arguments.model)
    raw: dict[str, Any] = {"overhead": [], "index": {}, "start_seconds": []}
    for streams in (1, 16):
        seen = inside.overhead(bench, maker, streams, 40 if arguments.quick else 100)
        raw["overhead"].append(seen)
        text = f"{seen['share']:.1%} ({seen['outside_ms']:.2f} of {seen['step_ms']:.2f} ms)"
        table.rows.append((f"decode step outside kernels, {streams} streams", text, "≤ 10 %"))
    raw["index"] = inside.index_times(max(repeats, 3), peers_dir)
    for title, found in raw["index"].items():
        value = f"{found['ms']:.2f} ms" if "ms" in found else found["missing"]
        if what := found.get("what"):
            value += f" ({what})"
        goal = "≤ 10 ms" if title.startswith("Ostinato") else "–"
        table.rows.append((f"match + hash + insert, 100,000 tokens: {title}", value, goal))
    try:
        first, *others = inside.start_times(model, peers_dir / "logs", repeats)
    except EngineError as error:
        table.rows.append(("start of `ostinato serve`", str(error), "≤ 1.5 s"))
        return table, raw
    raw["start_seconds"] = [first, *others]
    table.rows.append(("`ostinato serve` to ready, first start", f"{first:.2f} s", "–"))
    again = sorted(others)[len(others) // 2]
    table.rows.append(("`ostinato serve` to ready, second start", f"{again:.2f} s", "≤ 1.5 s"))
    return table, raw


if __name__ == "__main__":
    main()
