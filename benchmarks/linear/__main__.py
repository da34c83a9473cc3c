"""`python -m benchmarks.linear`: products with quantised weights, ours and ONNX Runtime's."""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

from benchmarks.linear.engines import (
    INSTALL,
    LinearEngine,
    OnnxRuntime,
    Ostinato,
    installed_engines,
)
from benchmarks.linear.measure import Measurement, WrongProductError, measure_product
from benchmarks.linear.pinning import available_cpus, caller_pinned
from benchmarks.linear.shapes import MODELS
from benchmarks.linear.tables import product_table, step_table
from benchmarks.linear.weights import random_weights
from benchmarks.peers.limits import measure_limits
from benchmarks.report import machine, save
from ostinato._native import usable_cpus
from ostinato.clock import SystemClock

BITS = (4, 8)
TOKENS = (1, 4, 16, 512)

EPILOG = f"""\
commands
  python -m benchmarks.linear                       4 and 8 bits; 1, 4, 16 and 512 tokens: a minute
  python -m benchmarks.linear --model Qwen2.5-0.5B
  python -m benchmarks.linear --bits 4 --tokens 1   decoding with 4 bits only
  python -m benchmarks.linear --rounds 25           narrower medians

how it measures
  A decode step reads every matrix once, so a shape is measured on a stack of matrices that fills two
  last-level caches, walked through in turn. Both engines hold the same weights, round activations to int8 and
  use all CPUs, one thread each; they take turns, and every result is compared with NumPy's. Close other
  programs first: the load average is part of the result. The machine's limits are measured in the same run.

Without ONNX Runtime its column is left out. To have it: {INSTALL}
Results go to benchmarks/results/; those of a part under a name of their own.
"""

_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_LAST_CACHE = 32 << 20
"""Bytes, where the system does not tell."""


def main() -> None:
    arguments = _arguments()
    console, clock = Console(soft_wrap=True), SystemClock()
    before = machine()
    threads = arguments.threads or usable_cpus()
    engines, note = installed_engines(threads)
    before |= {"threads": threads} | _versions(engines)
    if note:
        console.print(note, markup=False)
    cache_bytes = last_cache_bytes(_CPU_CACHES)
    limits = measure_limits()
    found: list[Measurement] = []
    try:
        with Progress(console=console) as progress, caller_pinned(available_cpus()):
            for product in progress.track(MODELS[arguments.model], description="products"):
                for bits in arguments.bits:
                    found += measure_product(
                        product,
                        bits,
                        arguments.tokens,
                        engines,
                        cache_bytes,
                        arguments.rounds,
                        clock,
                    )
    except WrongProductError as error:
        raise SystemExit(f"python -m benchmarks.linear: {error}") from error
    limits = limits.best(measure_limits())  # so that a neighbour's burst does not lower them
    call = call_seconds(clock)
    tables = [
        step_table(arguments.model, found, limits, arguments.rounds, call),
        product_table(arguments.model, found, limits),
    ]
    if note:
        tables[0].note += f" {note}."
    for table in tables:
        console.print(Markdown(table.markdown()))
    raw = {
        "rounds": arguments.rounds,
        "limits": limits.as_dict(),
        "last_cache_bytes": cache_bytes,
        "call_seconds": call,
        "products": [one.as_dict() for one in found],
    }
    name = f"linear_{arguments.model.lower()}" + ("" if _is_whole(arguments) else "_partial")
    path = save(name, before, tables, raw)
    console.print(f"Saved benchmarks/results/{path.name} and its .json")


def last_cache_bytes(caches: Path) -> int:
    """Size of the largest cache that Linux lists in this folder; 32 MiB elsewhere."""
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [
        int(text[:-1]) * units[text[-1]]
        for file in caches.glob("index*/size")
        if (text := file.read_text().strip())[-1:] in units
    ]
    return max(sizes, default=_LAST_CACHE)


def call_seconds(clock: SystemClock) -> float:
    """What Python and the kernels' set-up take of a product: that of one panel by one group, one thread."""
    stack = Ostinato(threads=1).pack(random_weights(np.random.default_rng(0), 4, 16, 32), 1)
    walk = stack.walk(np.ones((1, 32), np.float32), 1)
    times = []
    for _ in range(2001):
        start = clock.monotonic()
        walk()
        times.append(clock.monotonic() - start)
    return median(times)


def _versions(engines: list[LinearEngine]) -> dict[str, str]:
    facts = {}
    for engine in engines:
        if isinstance(engine, Ostinato):
            facts["isa"] = engine.isa
        if isinstance(engine, OnnxRuntime):
            facts["onnxruntime"] = engine.version
    return facts


def _is_whole(arguments: argparse.Namespace) -> bool:
    asked = (set(arguments.bits), set(arguments.tokens), arguments.threads)
    return asked == (set(BITS), set(TOKENS), 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.linear",
        description="Products with quantised weights: the native kernels beside ONNX Runtime's MatMulNBits.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        default=next(iter(MODELS)),
        help="whose shapes (default: %(default)s)",
    )
    parser.add_argument(
        "--bits", nargs="+", type=int, choices=BITS, default=BITS, help="of a weight"
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, help="rows of activations")
    parser.add_argument("--threads", type=int, default=0, help="default: all CPUs usable")
    parser.add_argument("--rounds", type=int, default=9, help="walks of each engine (default 9)")
    arguments = parser.parse_args()
    if min(*arguments.tokens, arguments.rounds, 1) < 1:
        parser.error("--tokens and --rounds must be at least 1")
    if arguments.threads < 0:
        parser.error("--threads must be at least 0")
    return arguments


if __name__ == "__main__":
    main()
