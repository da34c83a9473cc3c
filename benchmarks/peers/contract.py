"""What a benchmark asks of an engine, whoever made it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar


class EngineError(Exception):
    """A peer that did not start, broke off or answered with an error; the message is for the table."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the client saw of one answer. Seconds since the request was sent.

    Attributes:
        times: arrival of each piece of the stream; an engine may send several tokens in one piece.
        output_tokens: tokens generated, as the engine counts them.
        cached_tokens: prompt tokens that were reused; None where the engine does not tell.
    """

    times: tuple[float, ...]
    output_tokens: int
    cached_tokens: int | None = None

    @property
    def ttft(self) -> float:
        return self.times[0]

    @property
    def end(self) -> float:
        return self.times[-1]


class Engine(ABC):
    """An engine in a process of its own. Greedy, end-of-sequence ignored, all usable cores.

    Attributes:
        name: as ``--peers`` takes it.
        title: as the table shows it.
        caches_prefixes: whether a repeated prompt is expected to be cheaper.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    caches_prefixes: ClassVar[bool] = True

    @abstractmethod
    def missing(self) -> str | None:
        """Why it cannot run here; None if it can."""

    @abstractmethod
    def start(self) -> None:
        """Start and load; returns when it answers.

        Raises:
            EngineError: it did not start.
        """

    @abstractmethod
    def stop(self) -> None:
        """End the process; may be called in any state."""

    @abstractmethod
    def pause(self) -> None:
        """Take it off the CPU while another engine is measured."""

    @abstractmethod
    def resume(self) -> None:
        """Let it run again."""

    @abstractmethod
    def complete(self, prompt: Sequence[int], max_tokens: int) -> Completion:
        """One streamed answer of exactly `max_tokens` tokens.

        Raises:
            EngineError: it failed.
        """

    def complete_together(
        self, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> list[Completion]:
        """All at once, a connection each; in the order of `prompts`."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.complete(prompt, max_tokens), prompts))
