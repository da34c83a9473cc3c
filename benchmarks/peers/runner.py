"""The order of things: round robin over engines, everyone else off the CPU, failures noted and left behind."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.engines import CLOCK
from benchmarks.peers.contract import Engine, EngineError
from benchmarks.peers.figures import Scenario
from benchmarks.peers.prompts import PromptMaker

_WARM_UP = (256, 8)
"""Tokens in and out of the request before the measurements."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One engine's turn in one round of one scenario.

    Attributes:
        scenario, round, engine: which; rounds count from 0.
        load: one-minute load average before the round.
        seconds: that the turn took.
        values: figure keys to values.
    """

    scenario: str
    round: int
    engine: str
    load: float
    seconds: float
    values: Mapping[str, float]

    @property
    def place(self) -> str:
        """Scenario and engine."""
        return f"{self.scenario}/{self.engine}"


@dataclass(slots=True)
class Results:
    """Every measurement.

    Attributes:
        values: figure key, then engine name, to the values of all rounds.
        left_out: engines that did not take part, and why.
        failures: scenario and engine, and what went wrong.
        loads: one-minute load average before each round of a scenario.
        start_seconds: from launch to ready.
        slowest: scenario and engine, and the seconds of its longest turn.
    """

    values: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    left_out: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    start_seconds: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, float] = field(default_factory=dict)
    _finished: set[tuple[str, int, str]] = field(default_factory=set)

    def record(self, turn: Turn) -> None:
        """Take a finished turn in."""
        for key, value in turn.values.items():
            self.values[key][turn.engine].append(value)
        self.loads.setdefault(f"{turn.scenario}/{turn.round}", turn.load)
        self.slowest[turn.place] = max(turn.seconds, self.slowest.get(turn.place, 0.0))
        self._finished.add((turn.scenario, turn.round, turn.engine))

    def wants(self, scenario: str, number: int, engine: str, patience: float) -> bool:
        """Whether that turn is still to be taken: not done, not failed, and not too slow to be repeated."""
        place = f"{scenario}/{engine}"
        if (scenario, number, engine) in self._finished or place in self.failures:
            return False
        return self.slowest.get(place, 0.0) <= patience

    def has(self, engine: str) -> bool:
        """Whether anything is known of that engine."""
        return any(name == engine for _, _, name in self._finished)

    def facts(self) -> dict[str, Any]:
        """All but the figures, for JSON."""
        return {
            "left_out": self.left_out,
            "failures": self.failures,
            "load_average_before_each_round": self.loads,
            "start_seconds": self.start_seconds,
            "seconds_of_longest_turn": self.slowest,
        }

    def median(self, figure: str, engine: str) -> float | None:
        """None where there is no measurement."""
        values = self.values.get(figure, {}).get(engine)
        return median(values) if values else None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured.

    Attributes:
        scenarios: in order.
        rounds: turns of every engine in each.
        patience: seconds; an engine whose turn in a scenario took longer has no further one in it.
    """

    scenarios: Sequence[Scenario]
    rounds: int
    patience: float

    def figure_titles(self) -> list[str]:
        """Which also say how large each load is."""
        return [figure.title for scenario in self.scenarios for figure in scenario.figures()]

    def wants(self, engine: Engine, results: Results) -> bool:
        """Whether any turn of that engine is still to be taken."""
        return any(
            results.wants(scenario.name, number, engine.name, self.patience)
            for scenario in self.scenarios
            for number in range(self.rounds)
        )


def start_all(
    engines: Sequence[Engine], maker: PromptMaker, results: Results, say: Callable[[str], None]
) -> list[Engine]:
    """Start what is installed, one after the other, warm it up and pause it; the ones that run."""
    running = []
    warm_up = maker.prompt(
        _WARM_UP[0]
    )  # one for all, whoever starts: later prompts are the same then
    for engine in engines:
        reason = engine.missing()
        if reason is None:
            begin = CLOCK.monotonic()
            try:
                engine.start()
                results.start_seconds[engine.name] = CLOCK.monotonic() - begin
                # The first request of some engines compiles or allocates; it is nobody's figure.
                engine.complete(warm_up, _WARM_UP[1])
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
    plan: Plan,
    maker: PromptMaker,
    results: Results,
    keep: Callable[[Turn], None],
    say: Callable[[str], None],
) -> None:
    """All scenarios; in each, rounds in which every engine has one turn with the same prompts.

    The order of turns is rotated from round to round. An engine that fails a scenario is not asked it again.

    Args:
        engines: started, and paused.
        plan: what to measure; turns that `results` holds already are passed over.
        maker: of prompts; the same seed and plan give every turn the same prompts, whatever is passed over.
        results: where every turn goes.
        keep: gets every turn as it ends.
        say: gets a line for each.
    """
    for scenario in plan.scenarios:
        for number in range(plan.rounds):
            load = round(os.getloadavg()[0], 2)
            results.loads.setdefault(f"{scenario.name}/{number}", load)
            prompts = scenario.prompts(maker)
            shift = number % max(len(engines), 1)
            for engine in [*engines[shift:], *engines[:shift]]:
                if not results.wants(scenario.name, number, engine.name, plan.patience):
                    continue
                begin = CLOCK.monotonic()
                seen = _turn(engine, scenario, prompts, results, say)
                if seen is not None:
                    seconds = CLOCK.monotonic() - begin
                    turn = Turn(scenario.name, number, engine.name, load, seconds, dict(seen))
                    results.record(turn)
                    keep(turn)


def _turn(
    engine: Engine,
    scenario: Scenario,
    prompts: Sequence[Sequence[int]],
    results: Results,
    say: Callable[[str], None],
) -> Mapping[str, float] | None:
    """Its figures; None if it failed."""
    engine.resume()
    try:
        seen = scenario.turn(engine, prompts)
    except EngineError as error:
        results.failures[f"{scenario.name}/{engine.name}"] = str(error)
        say(f"{scenario.name}: {engine.title} failed: {error}")
        return None
    finally:
        engine.pause()
    say(f"{scenario.name}: {engine.title}: " + ", ".join(f"{k} {v:.5g}" for k, v in seen.items()))
    return seen
