"""A shop for one vendor: prompts in short notation, an engine that only remembers tokens, a clock that is told.

    Ask(system("s", 1500, "5m"), user("q", 100), want=(0, 1500, 0, 104))

Blocks of one kind and name have the same tokens, as far as they go: a longer one begins like the shorter.
An assistant's block begins with the opening that every prompt ends with, as chat templates have it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ostinato.cache.report import CacheReport
from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import TenantId, Tier, TokenArray
from ostinato.clock import ManualClock
from ostinato.errors import InvalidRequestError
from ostinato.product.breakpoints import (
    place_automatic,
    require_at_most_four,
    require_long_before_short,
)
from ostinato.product.entries import CacheScope
from ostinato.product.prompt_cache import CachedRequest, PromptCache
from ostinato.product.rules import house_rules
from ostinato.product.segments import Breakpoint, Segment, SegmentKind, TTLClass

TTLS = {"5m": TTLClass.SHORT, "30m": TTLClass.SHORT, "1h": TTLClass.LONG, "12h": TTLClass.LONG}
Counters = tuple[int, int, int, int]
"""Read, written short, written long, uncached."""


def words(name: str, count: int) -> TokenArray:
    """Tokens that look like `name`."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return rng.integers(10, 30_000, count, dtype=np.int32)


OPENING = words("opening", 4)
SCOPE = CacheScope(TenantId("us"), "model")


@dataclass(frozen=True)
class Block:
    kind: SegmentKind
    name: str
    tokens: int
    mark: str | None = None
    continues: bool = False

    def token_ids(self) -> TokenArray:
        body = words(f"{self.kind} {self.name}", self.tokens)
        opens = self.kind is SegmentKind.ASSISTANT and not self.continues
        return np.concatenate((OPENING, body)) if opens else body


def tool(name: str, tokens: int, mark: str | None = None) -> Block:
    return Block(SegmentKind.TOOL, name, tokens, mark)


def system(name: str, tokens: int, mark: str | None = None) -> Block:
    return Block(SegmentKind.SYSTEM, name, tokens, mark)


def user(name: str, tokens: int, mark: str | None = None) -> Block:
    return Block(SegmentKind.USER, name, tokens, mark)


def part(name: str, tokens: int, mark: str | None = None) -> Block:
    """A further part of the user message before it."""
    return Block(SegmentKind.USER, name, tokens, mark, continues=True)


def assistant(name: str, tokens: int, mark: str | None = None) -> Block:
    return Block(SegmentKind.ASSISTANT, name, tokens, mark)


def call(name: str, tokens: int, mark: str | None = None) -> Block:
    """A tool call of the assistant message before it."""
    return Block(SegmentKind.TOOL_USE, name, tokens, mark, continues=True)


def result(name: str, tokens: int, mark: str | None = None) -> Block:
    return Block(SegmentKind.TOOL_RESULT, name, tokens, mark)


def turns(count: int, tokens: int = 10) -> tuple[Block, ...]:
    """So many one-block turns that are no tool's, users' and assistants' in turn, users' last."""
    kinds = [user if (count - n) % 2 else assistant for n in range(count)]
    return tuple(kind(f"turn {n}", tokens) for n, kind in enumerate(kinds))


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        blocks: of its prompt.
        want: its counters; a text is part of the message with which it is refused.
        wait: seconds since the request before.
        implicit: OpenAI's implicit mode, with this lifetime.
        automatic: Anthropic's top-level ``cache_control``, with this lifetime.
        answer: the assistant block that it gets back, unless it is only there to pre-warm.
    """

    blocks: tuple[Block, ...]
    want: Counters | str
    wait: float = 0.0
    implicit: str | None = None
    automatic: str | None = None
    answer: Block | None = None
    scope: CacheScope = SCOPE


@dataclass(frozen=True)
class Evict:
    """The engine drops all K/V but that of the first `keep` tokens of each prompt."""

    keep: int = 0


@dataclass(frozen=True)
class Together:
    """Requests that start before any of their answers has begun."""

    asks: tuple[Ask, ...]


Step = Ask | Evict | Together


@dataclass(frozen=True)
class Row:
    """One line of a table of semantics."""

    name: str
    rules: str
    steps: tuple[Step, ...]


def ask(*blocks: Block, want: Counters | str, **more: object) -> Ask:
    return replace(Ask(blocks, want), **more)  # type: ignore[arg-type]


def implicit(*blocks: Block, want: Counters | str, **more: object) -> Ask:
    """A request in OpenAI's default mode."""
    return replace(Ask(blocks, want, implicit="30m"), **more)  # type: ignore[arg-type]


def elsewhere(asked: Ask, **scope: str) -> Ask:
    """The same request from another tenant, for another model, or with another key."""
    return replace(asked, scope=replace(asked.scope, **scope))


def again(asked: Ask, want: Counters | str, wait: float = 0.0) -> Ask:
    """The same request once more."""
    return replace(asked, want=want, wait=wait)


@dataclass
class MemoryEngine:
    """Remembers the tokens of all that it computed, and reuses the longest common prefix."""

    computed: dict[tuple[str, str, str | None], list[TokenArray]] = field(default_factory=dict)

    def look(self, scope: CacheScope, token_ids: TokenArray) -> CacheReport:
        """What a request that starts now would reuse."""
        known = self.computed.get((scope.tenant, scope.model, scope.salt), [])
        reused = max((common_prefix(token_ids[:-1], other) for other in known), default=0)
        return CacheReport(len(token_ids), {Tier.DEVICE: reused} if reused else {})

    def compute(self, scope: CacheScope, token_ids: TokenArray) -> None:
        place = scope.tenant, scope.model, scope.salt
        self.computed.setdefault(place, []).append(token_ids)

    def evict(self, keep: int) -> None:
        for sequences in self.computed.values():
            sequences[:] = [token_ids[:keep] for token_ids in sequences]


class Shop:
    """See the module's docstring."""

    def __init__(self, rules: str) -> None:
        self.clock = ManualClock()
        self.engine = MemoryEngine()
        self.cache = PromptCache(self.clock, b"s" * 32, house_rules(rules))

    def run(self, steps: Sequence[Step]) -> None:
        """Take the steps, and hold each request to its counters."""
        for number, step in enumerate(steps):
            if isinstance(step, Evict):
                self.engine.evict(step.keep)
            else:
                asks = step.asks if isinstance(step, Together) else (step,)
                got = self._serve(asks)
                for asked, counters in zip(asks, got, strict=True):
                    _compare(number, asked, counters)

    def _serve(self, asks: Sequence[Ask]) -> list[Counters | str]:
        started: list[tuple[Ask, TokenArray, CachedRequest, CacheReport] | str] = []
        for asked in asks:
            self.clock.advance(asked.wait)
            started.append(self._start(asked))
        return [one if isinstance(one, str) else self._finish(*one) for one in started]

    def _start(self, asked: Ask) -> tuple[Ask, TokenArray, CachedRequest, CacheReport] | str:
        try:
            segments = _segments(asked)
        except InvalidRequestError as error:
            return str(error)
        pieces = [block.token_ids() for block in asked.blocks]
        token_ids = np.concatenate((*pieces, OPENING))
        ends = [int(end) for end in np.cumsum([len(piece) for piece in pieces])]
        mark = None if asked.implicit is None else _breakpoint(asked.implicit, explicit=False)
        planned = self.cache.plan(asked.scope, token_ids, segments, ends, mark)
        return asked, token_ids, planned, self.engine.look(asked.scope, token_ids)

    def _finish(
        self, asked: Ask, token_ids: TokenArray, planned: CachedRequest, report: CacheReport
    ) -> Counters:
        split = self.cache.settle(planned, report)
        output = np.empty(0, dtype=np.int32)
        if asked.answer is not None:
            output = asked.answer.token_ids()[len(OPENING) :]
        self.engine.compute(asked.scope, np.concatenate((token_ids, output[:-1])))
        self.cache.finish(planned, output)
        assert split.read <= report.cached_tokens
        assert split.prompt == len(token_ids)
        return split.read, split.write_short, split.write_long, split.uncached


def _breakpoint(ttl: str, *, explicit: bool) -> Breakpoint:
    return Breakpoint(TTLS[ttl], explicit)


def _segments(asked: Ask) -> tuple[Segment, ...]:
    """With what a dialect would check; OpenAI's takes any number of marks, in any order."""
    segments: list[Segment] = []
    message = -1
    for at, block in enumerate(asked.blocks):
        message += not block.continues
        mark = None if block.mark is None else _breakpoint(block.mark, explicit=True)
        number = None if block.kind is SegmentKind.TOOL else message
        path = f"block[{at}]"
        segments.append(Segment(block.kind, path, number, mark, is_empty=not block.tokens))
    if asked.automatic is not None:
        segments = list(place_automatic(segments, _breakpoint(asked.automatic, explicit=True)))
    if any(block.mark in ("5m", "1h") for block in asked.blocks):
        require_at_most_four(segments)
        require_long_before_short(segments)
    return tuple(segments)


def _compare(number: int, asked: Ask, got: Counters | str) -> None:
    if isinstance(asked.want, str):
        assert isinstance(got, str), f"step {number} was served: {got}"
        assert asked.want in got
    else:
        assert got == asked.want, f"step {number}"
