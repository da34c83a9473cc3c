"""`python -m benchmarks.peers`: measure Ostinato and every installed peer, print and save."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from benchmarks.peers import inside
from benchmarks.peers.adapters import PEERS, build_engines
from benchmarks.peers.chart import save_chart
from benchmarks.peers.counts import ModelCounts, work_of
from benchmarks.peers.figures import LOADS, Scenario, scenarios
from benchmarks.peers.install import RECIPES, install
from benchmarks.peers.journal import Journal, JournalError
from benchmarks.peers.limits import Limits, measure_limits
from benchmarks.peers.prompts import PromptMaker
from benchmarks.peers.runner import Plan, Results, measure, start_all
from benchmarks.peers.table import Row, comparison_table, make_row, note, row_json
from benchmarks.report import RESULTS, machine, save
from ostinato.config import load_config
from ostinato.errors import ModelNotFoundError
from ostinato.models.loader import read_config
from ostinato.models.registry import resolve_model
from ostinato.models.tokenizer_gguf import tokenizer_from_gguf
from ostinato.models.weights.gguf_format import read_header

_LARGE_FILE = 256 << 20
"""Bytes of a model file above which the load is reduced."""

EPILOG = """\
commands
  python -m benchmarks.peers                      measure everything that is installed
  python -m benchmarks.peers --quick              smaller loads, one round: minutes instead of an hour
  python -m benchmarks.peers --resume             go on with a run that was broken off
  python -m benchmarks.peers --only prefill-512 shared
  python -m benchmarks.peers --model qwen2.5-coder-0.5b-instruct
  python -m benchmarks.peers --peers openvino     Ostinato and this peer only
  python -m benchmarks.peers list                 peers, and what each costs to install
  python -m benchmarks.peers install llamacpp openvino

how it measures
  Every engine runs in a process of its own and gets the same token ids; greedy, end-of-sequence ignored, all
  cores. Ostinato, llama.cpp and vLLM answer over HTTP with streaming, libraries through a pipe (which favours
  them). Engines take turns, in an order that rotates, and are stopped (SIGSTOP) while another has its turn.
  Figures are medians; the load average before each round is saved with them. Close other programs first.
  The machine's limits are measured in the same run, and each figure is also given as a share of them.
  An engine whose turn in a scenario takes longer than --patience has no further one there; the table says so.
  Every turn is written down as it ends, and --resume takes those that are missing.

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
    try:
        file = resolve_model(config.model, config.data_dir)
    except ModelNotFoundError as error:
        raise SystemExit(f"python -m benchmarks.peers: {error}") from None
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
    parser.add_argument(
        "--load",
        choices=LOADS,
        help=f"scenarios (default: full, for files above {_LARGE_FILE >> 20} MiB reduced)",
    )
    parser.add_argument(
        "--quick", action="store_const", const="quick", dest="load", help="--load quick, one round"
    )
    parser.add_argument(
        "--patience", type=float, default=120.0, metavar="S", help="seconds a turn (default 120)"
    )
    parser.add_argument("--resume", action="store_true", help="go on where the last run stopped")
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
    if command == ["install"]:
        parser.error(f"install which? There are {', '.join(RECIPES)}")
    if arguments.repeats is not None and arguments.repeats < 1:
        parser.error("--repeats must be at least 1")
    if wrong := [setting for setting in arguments.setting if "=" not in setting]:
        parser.error(f"--setting {wrong[0]}: NAME=VALUE is wanted, e.g. OSTINATO_THREADS=1")
    if unknown := set(command[1:]) - set(RECIPES):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}")
    if arguments.only:
        known = sorted({scenario.name for load in LOADS for scenario in scenarios(load)})
        if unknown := set(arguments.only) - set(known) - {"inside"}:
            parser.error(
                f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(known)}, inside"
            )
    return arguments


def _run(
    arguments: argparse.Namespace, model: str, file: Path, peers_dir: Path, data_dir: Path
) -> None:
    console = Console(soft_wrap=True)
    say: Callable[[str], None] = lambda text: console.print(text, markup=False)  # noqa: E731
    before = machine()
    load = arguments.load or ("reduced" if file.stat().st_size > _LARGE_FILE else "full")
    plan = Plan(
        [one for one in scenarios(load) if not arguments.only or one.name in arguments.only],
        arguments.repeats or (1 if load == "quick" else 3),
        arguments.patience,
    )
    name = "peers_" + file.stem.lower().replace(".", "-")
    name += ("_quick" if load == "quick" else "") + ("_partial" if arguments.only else "")
    journal = Journal(RESULTS / f"{name}.journal.jsonl")
    results, seed = _open(journal, arguments.resume, file, plan)
    limits = measure_limits()
    say(f"limits of this machine: {limits.as_dict()}")
    maker = PromptMaker(tokenizer_from_gguf(read_header(file).metadata), seed)
    environment = dict(setting.split("=", 1) for setting in arguments.setting)
    engines = build_engines(
        arguments.peers, model=model, file=file, peers_dir=peers_dir, environment=environment
    )
    try:
        wanted = [engine for engine in engines if plan.wants(engine, results)]
        running = start_all(wanted, maker, results, say) if plan.scenarios else []
        measure(running, plan, maker, results, journal.add, say)
    finally:
        for engine in engines:
            engine.stop()
    limits = limits.best(measure_limits())  # so that a neighbour's burst does not lower them
    counts = ModelCounts.of(read_config(file), file, data_dir)
    titles = {engine.name: engine.title for engine in engines if results.has(engine.name)}
    rows, figures = judge(plan.scenarios, list(titles), results, counts, limits)
    tables = [comparison_table(rows, titles, note(plan, results))] if rows else []
    raw = {
        "repeats": plan.rounds,
        "prompt_seed": seed,
        "limits": limits.as_dict(),
        "figures": figures,
    }
    raw |= results.facts()
    if not arguments.only or "inside" in arguments.only:
        steps = 40 if load == "quick" else 100
        table, raw["inside"] = inside.measure_inside(model, maker, peers_dir, plan.rounds, steps)
        tables.append(table)
    for table in tables:
        console.print(Markdown(table.markdown()))
    path = save(name, before, tables, raw)
    pictures = save_chart(rows, titles, RESULTS / name) if rows else []
    journal.remove()
    say("Saved " + ", ".join(f"benchmarks/results/{one.name}" for one in (path, *pictures)))


def _open(journal: Journal, resume: bool, file: Path, plan: Plan) -> tuple[Results, int]:
    """What an empty journal holds, or that of a run that was broken off; and the seed of the prompts.

    Every run has prompts of its own: an engine that keeps its cache on disk knows those of earlier runs.
    """
    results, seed = Results(), secrets.randbits(32)
    names = [scenario.name for scenario in plan.scenarios]
    facts = {"model": file.name, "scenarios": names, "figures": plan.figure_titles()}
    if not resume:
        journal.begin(facts, seed)
        return results, seed
    try:
        seed, turns = journal.resume(facts)
    except JournalError as error:
        raise SystemExit(str(error)) from error
    for turn in turns:
        results.record(turn)
    return results, seed


def judge(
    chosen: Sequence[Scenario],
    names: Sequence[str],
    results: Results,
    counts: ModelCounts,
    limits: Limits,
) -> tuple[list[Row], dict[str, Any]]:
    """A row for each figure, and all that is known of it."""
    rows, figures = [], {}
    for scenario in chosen:
        work = work_of(scenario, counts)
        for figure in scenario.figures():
            least, tokens = work[figure.key]
            row = make_row(figure, names, results, least, tokens, limits)
            rows.append(row)
            figures[figure.key] = row_json(row, results, least, limits)
    return rows, figures


if __name__ == "__main__":
    main()
