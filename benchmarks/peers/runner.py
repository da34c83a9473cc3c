"""The order of things: round robin over engines, everyone else off the CPU, failures noted and left behind."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.engines import CLOCK
from benchmarks.peers.contract import Engine, EngineError
from benchmarks.peers.figures import Scenario
from benchmarks.peers.prompts import PromptMaker

_WARM_UP = (256, 8)
"""Tokens in and out of the request before the measurements."""


@dataclass(slots=True)
class Results:
    """Every measurement.

    Attributes:
        values: figure key, then engine name, to the values of all rounds.
        left_out: engines that did not take part, and why.
        failures: scenario and engine, and what went wrong.
        loads: one-minute load average before each round.
        start_seconds: from launch to ready.
    """

    values: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    left_out: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    start_seconds: dict[str, float] = field(default_factory=dict)

    def median(self, figure: str, engine: str) -> float | None:
        """None where there is no measurement."""
        values = self.values.get(figure, {}).get(engine)
        return median(values) if values else None


def start_all(
    engines: Sequence[Engine], maker: PromptMaker, results: Results, say: Callable[[str], None]
) -> list[Engine]:
    """Start what is installed, one after the other, warm it up and pause it; the ones that run."""
    running = []
    for engine in engines:
        reason = engine.missing()
        if reason is None:
            begin = CLOCK.monotonic()
            try:
                engine.start()
                results.start_seconds[engine.name] = CLOCK.monotonic() - begin
                # The first request of some engines compiles or allocates; it is nobody's figure.
                engine.complete(maker.prompt(_WARM_UP[0]), _WARM_UP[1])
            except EngineError as error:
                engine.stop()
                reason = str(error)
            else:
                engine.pause()
                running.append(engine)
        if reason is not None:
            results.left_out[engine.name] = reason
            say(f"without {engine.title}: {reason}")
    return running


def measure(
    engines: Sequence[Engine],
    scenarios: Sequence[Scenario],
    maker: PromptMaker,
    repeats: int,
    results: Results,
    say: Callable[[str], None],
) -> None:
    """All scenarios; in each, `repeats` rounds in which every engine has one turn with the same prompts.

    The order of turns is rotated from round to round. An engine that fails a scenario is not asked it again.
    """
    for scenario in scenarios:
        for repeat in range(repeats):
            results.loads.append(round(os.getloadavg()[0], 2))
            prompts = scenario.prompts(maker)
            shift = repeat % max(len(engines), 1)
            for engine in [*engines[shift:], *engines[:shift]]:
                _turn(engine, scenario, prompts, results, say)


def _turn(
    engine: Engine,
    scenario: Scenario,
    prompts: Sequence[Sequence[int]],
    results: Results,
    say: Callable[[str], None],
) -> None:
    failure_key = f"{scenario.name}/{engine.name}"
    if failure_key in results.failures:
        return
    engine.resume()
    try:
        seen = scenario.turn(engine, prompts)
    except EngineError as error:
        results.failures[failure_key] = str(error)
        say(f"{scenario.name}: {engine.title} failed: {error}")
        return
    finally:
        engine.pause()
    for key, value in seen.items():
        results.values[key][engine.name].append(value)
    say(f"{scenario.name}: {engine.title}: " + ", ".join(f"{k} {v:.5g}" for k, v in seen.items()))
