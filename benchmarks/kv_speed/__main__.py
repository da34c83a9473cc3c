"""`python -m benchmarks.kv_speed`: decode after a long context and prefill, by K/V format and instruction set.

All engines of an instruction set are in memory together, each with one stream after the same context, and take
turns of a few decode steps, so that whatever else the machine does meets them all.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

from benchmarks.engines import CLOCK, Bench
from benchmarks.report import Table, machine, save
from ostinato.cache.layout import KVDtype
from ostinato.cache.types import TokenArray
from ostinato.config import load_config
from ostinato.config_sections import CacheConfig
from ostinato.engine.build import assemble_core
from ostinato.engine.core import EngineCore
from ostinato.engine.integrity import RaiseViolations
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import UnsupportedKernelsError
from ostinato.models.loader import load_model
from ostinato.models.registry import resolve_model
from ostinato.ops.cpu import CpuBackend

FORMATS = ("fp16", "fp8", "int8", "int4")
ISAS = ("avx512_vnni", "avx2")
TURNS = 6
FIRST_STEPS = 2
"""Of each turn, not counted: the caches are those of the engine before."""


@dataclass(slots=True)
class Contender:
    """One format and what was seen of it. Seconds."""

    dtype: str
    core: EngineCore
    decode: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kv_speed",
        description=__doc__,
        epilog="Close other programs first: the load average is part of the result.",
    )
    parser.add_argument("--model", help="a name, GGUF file or folder (default: the default model)")
    parser.add_argument("--formats", nargs="+", choices=[d.value for d in KVDtype], default=FORMATS)
    parser.add_argument("--isas", nargs="+", default=ISAS, help=f"default: {' '.join(ISAS)}")
    parser.add_argument("--context", type=int, default=4096, help="tokens before the decode steps")
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of the prompts timed")
    parser.add_argument("--steps", type=int, default=12, help=f"decode steps a turn, of {TURNS}")
    arguments = parser.parse_args()
    before, console = machine(), Console()
    table = Table(
        f"K/V formats: decode after {arguments.context:,} tokens, prefill of {arguments.prefill:,}",
        ("instructions", "K/V", "bytes a token", "decode, tokens/s", "prefill, tokens/s"),
        note="One stream; best / median of all decode steps and of 3 prefills, formats in turns.",
    )
    raw: dict[str, Any] = {}
    with Progress(console=console) as progress:
        for isa in arguments.isas:
            try:
                bench = load(arguments.model, isa)
            except UnsupportedKernelsError as error:
                console.print(f"Without {isa}: {error}")
                continue
            raw[isa] = {}
            for one in measure(bench, arguments, progress, isa):
                row, raw[isa][one.dtype] = figures(one, arguments.prefill)
                table.rows.append((isa, one.dtype, *row))
            gc.collect()  # the packed weights of the instruction set before
    console.print(Markdown(table.markdown()))
    saved = save(f"kv_speed_{bench.model.name}", before, [table], raw)
    console.print(f"Saved benchmarks/results/{saved.name} and its .json")


def load(model: str | None, isa: str) -> Bench:
    """The model for kernels of `isa`.

    Raises:
        UnsupportedKernelsError: this CPU has no such instructions.
    """
    config = load_config({"model": model} if model else {})
    ops = CpuBackend(isa=isa)
    path = resolve_model(config.model, config.data_dir)
    return Bench(load_model(path, ops, config.data_dir), ops, config)


def measure(
    bench: Bench, arguments: argparse.Namespace, progress: Progress, isa: str
) -> list[Contender]:
    rng = np.random.default_rng(5)
    steps = TURNS * (arguments.steps + FIRST_STEPS)
    room = arguments.context + steps + arguments.prefill + 64
    contenders = [Contender(d, engine(bench, KVDtype(d), room)) for d in arguments.formats]
    task = progress.add_task(isa, total=(1 + 3 + TURNS) * len(contenders))
    for _ in range(3):
        prompt = bench.prompt(rng, arguments.prefill)
        for one in contenders:
            one.prefill.append(answer(one.core, prompt))
            progress.advance(task)
    context = bench.prompt(rng, arguments.context)
    for one in contenders:
        add(one.core, context, steps + 1)
        while not one.core.step():  # until the first token
            pass
        progress.advance(task)
    for _ in range(TURNS):
        for one in contenders:
            seconds = [step_seconds(one.core) for _ in range(FIRST_STEPS + arguments.steps)]
            one.decode += seconds[FIRST_STEPS:]
            progress.advance(task)
    return contenders


def engine(bench: Bench, dtype: KVDtype, tokens: int) -> EngineCore:
    """One that never reuses, with room for `tokens`."""
    cache = CacheConfig(kv_dtype=dtype, prefix_index="none", num_blocks=-(-tokens // 16))
    config = bench.config.model_copy(update={"cache": cache})
    return assemble_core(bench.model, bench.ops, config, clock=CLOCK, integrity=RaiseViolations())


def add(core: EngineCore, prompt: TokenArray, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    core.add_request(EngineRequest(request_id="only", prompt_token_ids=prompt, params=params))


def answer(core: EngineCore, prompt: TokenArray) -> float:
    """Seconds until the first and only token."""
    start = CLOCK.monotonic()
    add(core, prompt, 1)
    while core.has_work:
        core.step()
    return CLOCK.monotonic() - start


def step_seconds(core: EngineCore) -> float:
    start = CLOCK.monotonic()
    core.step()
    return CLOCK.monotonic() - start


def figures(one: Contender, prefill: int) -> tuple[tuple[str, str, str], dict[str, float]]:
    """Cells of the table; the same as numbers."""
    found = {
        "bytes_per_token": one.core._manager.spec.bytes_per_token,
        "decode_best": 1 / min(one.decode),
        "decode_median": 1 / median(one.decode),
        "prefill_best": prefill / min(one.prefill),
        "prefill_median": prefill / median(one.prefill),
    }
    cells = (
        f"{found['bytes_per_token']:,.0f}",
        f"{found['decode_best']:.0f} / {found['decode_median']:.0f}",
        f"{found['prefill_best']:,.0f} / {found['prefill_median']:,.0f}",
    )
    return cells, found


if __name__ == "__main__":
    main()
