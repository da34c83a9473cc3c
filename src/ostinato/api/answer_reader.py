"""AnswerReader: an answer's pieces as thoughts, text and calls, the same in every dialect.

OutputDelta ──► ReasoningParser ──► thought
                      └─ answer ──► ToolCallParser ──► text, calls
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ostinato.engine.outputs import OutputDelta
from ostinato.models.reasoning.parser import Pieces, ReasoningParser
from ostinato.models.reasoning.syntax import Reasoning
from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted, ToolEvent
from ostinato.models.tools.parser import ToolCallParser

_ID_DIGITS = 24


@dataclass(frozen=True, slots=True)
class Thought:
    """A run of what the model thinks before it answers."""

    text: str


AnswerEvent: TypeAlias = Thought | ToolEvent


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A call of an answer; `arguments` is JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str


class AnswerReader:
    """Reads an answer as it comes, and keeps what it said.

    Args:
        scope: names the answer; ids of calls are made from it and from nothing else.
        reasoning: how the answer thinks; None if it does not.
        parser: of the model's style of calls; None if there are none to be read.
    """

    def __init__(
        self, scope: str, reasoning: Reasoning | None = None, parser: ToolCallParser | None = None
    ) -> None:
        self._scope = scope
        self._reasoning = None if reasoning is None else ReasoningParser(reasoning)
        self._parser = parser
        self._thoughts: list[str] = []
        self._text: list[str] = []
        self._calls: list[FinishedCall] = []
        self._num_reasoning = 0
        self._num_undecided = 0

    def read(self, delta: OutputDelta) -> list[AnswerEvent]:
        """What the next delta says; with the last one also what was held back."""
        self._count_before(len(delta.token_ids))
        events = self._feed(delta.text)
        if delta.finish_reason is not None:
            events += self._finish()
        return events

    @property
    def thought(self) -> str:
        """All thoughts so far."""
        return "".join(self._thoughts)

    @property
    def text(self) -> str:
        """All text so far, without thoughts and calls."""
        return "".join(self._text)

    @property
    def calls(self) -> Sequence[FinishedCall]:
        """All calls so far, in order."""
        return self._calls

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens so far that belong to thoughts, marks included; None if the answer does not think."""
        return None if self._reasoning is None else self._num_reasoning

    def call_id(self, index: int) -> str:
        """Id of a call: always the same for the same place in the same response."""
        digest = hashlib.sha256(f"{self._scope}/{index}".encode()).hexdigest()
        return f"call_{digest[:_ID_DIGITS]}"

    def _count_before(self, num_tokens: int) -> None:
        """A token counts as reasoning if a thought was open before it; one that may open a thought waits."""
        if self._reasoning is None:
            return
        if self._reasoning.is_thinking:
            self._num_reasoning += num_tokens
        elif self._reasoning.is_undecided:
            self._num_undecided += num_tokens

    def _feed(self, text: str) -> list[AnswerEvent]:
        if self._reasoning is None:
            return self._events(Pieces("", text))
        was_undecided = self._reasoning.is_undecided
        pieces = self._reasoning.feed(text)
        if was_undecided and self._reasoning.has_begun:
            self._num_reasoning += self._num_undecided
        return self._events(pieces)

    def _finish(self) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        if self._reasoning is not None:
            events = self._events(self._reasoning.finish())
        if self._parser is not None:
            events += self._keep(self._parser.finish())
        return events

    def _events(self, pieces: Pieces) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        if pieces.thought:
            self._thoughts.append(pieces.thought)
            events.append(Thought(pieces.thought))
        if self._parser is not None:
            return events + self._keep(self._parser.feed(pieces.answer))
        return events + self._keep([AnswerText(pieces.answer)] if pieces.answer else [])

    def _keep(self, events: Sequence[ToolEvent]) -> list[AnswerEvent]:
        for event in events:
            match event:
                case AnswerText(text):
                    self._text.append(text)
                case CallStarted(index, name):
                    self._calls.append(FinishedCall(self.call_id(index), name, ""))
                case CallArguments(index, piece):
                    call = self._calls[index]
                    self._calls[index] = replace(call, arguments=call.arguments + piece)
        return list(events)
