"""What is measured: one turn of an engine for each scenario, and the figures that come out of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.peers.contract import Completion, Engine, EngineError
from benchmarks.peers.prompts import PromptMaker

WARM_ASKS = 3
"""Times that a cached prompt is asked for in one turn."""
STREAMS = 16


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table.

    Attributes:
        key: as JSON has it.
        title: as the table has it, with the unit.
        higher_is_better: for rates; times are better when lower.
        goal: what the best peer's figure is multiplied by; None where there is no relative goal.
        digits: decimals shown.
    """

    key: str
    title: str
    higher_is_better: bool
    goal: float | None = None
    digits: int = 0


class Scenario(ABC):
    """One kind of load. The prompts of a turn are made once and given to every engine."""

    name: str

    @abstractmethod
    def figures(self) -> Sequence[Figure]: ...

    @abstractmethod
    def prompts(self, maker: PromptMaker) -> list[list[int]]:
        """Fresh prompts for one round over all engines."""

    @abstractmethod
    def turn(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> Mapping[str, float]:
        """Measure one engine once: figure keys to values.

        Raises:
            EngineError: the engine failed.
        """


class Prefill(Scenario):
    """Time to first token of a new prompt; for the longest also of the same prompt again."""

    def __init__(self, length: int, *, warm: bool = False) -> None:
        self.name = f"prefill-{length}"
        self.length = length
        self._warm = warm

    def figures(self) -> Sequence[Figure]:
        n = self.length
        rows = [Figure(self.name, f"prefill of {n:,} tokens, tokens/s", True, 1.5)]
        if self._warm:
            rows.append(Figure(f"cached-{n}", f"TTFT, {n:,} tokens cached, ms", False, 1.0, 1))
        return rows

    def prompts(self, maker: PromptMaker) -> list[list[int]]:
        return [maker.prompt(self.length)]

    def turn(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> Mapping[str, float]:
        [prompt] = prompts
        cold = engine.complete(prompt, 1)
        if cold.cached_tokens:
            raise EngineError(f"{cold.cached_tokens} tokens of a new prompt were cached")
        seen = {self.name: self.length / cold.ttft}
        if self._warm and engine.caches_prefixes:
            warm = median(engine.complete(prompt, 1).ttft for _ in range(WARM_ASKS))
            seen[f"cached-{self.length}"] = 1000 * warm
        return seen


class Decode(Scenario):
    """Rate of one stream after its first token."""

    def __init__(self, context: int, output: int) -> None:
        self.name = f"decode-{context}"
        self.context, self.output = context, output
        self._kept: list[list[int]] = []

    def figures(self) -> Sequence[Figure]:
        title = f"decode after {self.context:,} tokens, 1 stream, tokens/s"
        return [Figure(self.name, title, True, 1.3)]

    def prompts(self, maker: PromptMaker) -> list[list[int]]:
        # The same in every round: what is measured begins after the prompt, which may be cached.
        self._kept = self._kept or [maker.prompt(self.context)]
        return self._kept

    def turn(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> Mapping[str, float]:
        return {self.name: stream_rate(engine.complete(prompts[0], self.output))}


class Streams(Scenario):
    """Rate of several streams together, while all of them run."""

    name = f"decode-{STREAMS}-streams"

    def __init__(self, context: int, output: int) -> None:
        self.context, self.output = context, output

    def figures(self) -> Sequence[Figure]:
        title = f"decode after {self.context} tokens, {STREAMS} streams, tokens/s"
        return [Figure(self.name, title, True, 1.5)]

    def prompts(self, maker: PromptMaker) -> list[list[int]]:
        return [maker.prompt(self.context) for _ in range(STREAMS)]

    def turn(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> Mapping[str, float]:
        return {self.name: joint_rate(engine.complete_together(prompts, self.output))}


class Shared(Scenario):
    """Requests at once that share a prefix: first unseen, then served before."""

    name = "shared"

    def __init__(self, prefix: int, own: int, output: int) -> None:
        self.prefix, self.own, self.output = prefix, own, output

    def figures(self) -> Sequence[Figure]:
        what = f"{STREAMS} requests, {self.prefix:,} shared + {self.own} own, {self.output} out"
        return [
            Figure("shared-cold", f"{what}, cold, wall s", False, 0.5, 2),
            Figure("shared-primed", f"{what}, primed, wall s", False, 0.5, 2),
        ]

    def prompts(self, maker: PromptMaker) -> list[list[int]]:
        prefix = maker.prompt(self.prefix)
        return [prefix + maker.prompt(self.own) for _ in range(2 * STREAMS)]

    def turn(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> Mapping[str, float]:
        seen = {}
        for key, part in (("shared-cold", prompts[:STREAMS]), ("shared-primed", prompts[STREAMS:])):
            seen[key] = max(done.end for done in engine.complete_together(part, self.output))
        return seen


def stream_rate(completion: Completion) -> float:
    """Tokens a second after the first.

    Raises:
        EngineError: there was only one piece.
    """
    seconds = completion.end - completion.ttft
    if seconds <= 0 or completion.output_tokens < 2:
        raise EngineError("a stream of one piece has no rate")
    return (completion.output_tokens - 1) / seconds


def joint_rate(completions: Sequence[Completion]) -> float:
    """Tokens a second of all streams together, counted from when the last has begun until the first ends.

    Raises:
        EngineError: they never ran all at once.
    """
    begin = max(done.ttft for done in completions)
    end = min(done.end for done in completions)
    if end <= begin:
        raise EngineError("the streams never ran all at once")
    tokens = 0.0
    for done in completions:
        pieces = sum(begin < time <= end for time in done.times)
        tokens += pieces * done.output_tokens / len(done.times)
    return tokens / (end - begin)


LOADS = ("full", "reduced", "quick")
"""The whole table, what a larger model can run in about the same time, a first look."""


def scenarios(load: str) -> list[Scenario]:
    """The scenarios of one of `LOADS`."""
    if load == "quick":
        return [
            Prefill(512),
            Prefill(2048, warm=True),
            Decode(64, 48),
            Streams(64, 24),
            Shared(512, 32, 16),
        ]
    long: list[Scenario] = [Prefill(2048), Prefill(8000, warm=True)]
    return [
        Prefill(512),
        *(long if load == "full" else [Prefill(2048, warm=True)]),
        Decode(64, 128),
        *([Decode(4096, 128)] if load == "full" else []),
        Streams(64, 64),
        Shared(1024, 64, 64),
    ]
