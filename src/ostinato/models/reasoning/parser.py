"""ReasoningParser: from streamed text to thought and answer.

    ──► opening mark ──► thought ──► closing mark ──► answer
     │                                                  ▲
     └── anything else ─────────────────────────────────┘

An answer holds at most one thought, at its very beginning; a mark further on is text. What comes out does not
depend on how the text was cut into pieces: what may be the beginning of a mark is held back until that is
certain. Line breaks between marks and texts belong to neither, since templates write them around both.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from ostinato.models.reasoning.syntax import Reasoning

_BREAK = "\n"


class Pieces(NamedTuple):
    """What a piece of text adds to the thought and, behind it, to the answer."""

    thought: str
    answer: str


class _State(Enum):
    START = auto()
    THOUGHT = auto()
    BEHIND = auto()
    """Only line breaks came since the thought ended."""
    ANSWER = auto()


class ReasoningParser:
    """Reads one answer.

    Args:
        reasoning: of the prompt that is answered.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        self._opening = reasoning.syntax.opening
        self._closing = reasoning.syntax.closing
        self._is_open = reasoning.is_open
        self._state = _State.START
        self._held = ""
        self._has_thought = False
        self._has_begun = reasoning.is_open

    @property
    def has_begun(self) -> bool:
        """Whether there is a thought, over or not, maybe an empty one."""
        return self._has_begun

    @property
    def is_undecided(self) -> bool:
        """Whether what came so far may or may not be the beginning of a thought."""
        return self._state is _State.START and not self._is_open

    @property
    def is_thinking(self) -> bool:
        """Whether the next token belongs to a thought."""
        return self._state is _State.THOUGHT or (self._state is _State.START and self._is_open)

    def feed(self, text: str) -> Pieces:
        """Take the next piece of the answer."""
        self._held += text
        if self._state is _State.START:
            self._look_for_opening()
        thought = self._take_thought() if self._state is _State.THOUGHT else ""
        return Pieces(thought, self._take_answer())

    def finish(self) -> Pieces:
        """The answer is over: what was held back. A thought without an end stays a thought."""
        held, self._held = self._held, ""
        if self.is_thinking:
            return Pieces(self._shown(held).rstrip(_BREAK), "")
        return Pieces("", held)

    def _look_for_opening(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._opening):
            self._held = begun[len(self._opening) :]
            self._state = _State.THOUGHT
            self._has_begun = True
        elif not self._opening.startswith(begun):
            self._state = _State.THOUGHT if self._is_open else _State.ANSWER

    def _take_thought(self) -> str:
        thought, mark, rest = self._held.partition(self._closing)
        if mark:
            self._held = rest
            self._state = _State.BEHIND
            return self._shown(thought.rstrip(_BREAK))
        kept = len(self._held) - self._num_begun()
        kept = len(self._held[:kept].rstrip(_BREAK))
        thought, self._held = self._held[:kept], self._held[kept:]
        return self._shown(thought)

    def _num_begun(self) -> int:
        """Characters at the end that may be the beginning of the closing mark."""
        longest = min(len(self._closing) - 1, len(self._held))
        lengths = (n for n in range(longest, 0, -1) if self._held.endswith(self._closing[:n]))
        return next(lengths, 0)

    def _shown(self, thought: str) -> str:
        if not self._has_thought:
            thought = thought.lstrip(_BREAK)
            self._has_thought = bool(thought)
        return thought

    def _take_answer(self) -> str:
        if self._state is _State.BEHIND:
            self._held = self._held.lstrip(_BREAK)
            if self._held:
                self._state = _State.ANSWER
        if self._state is not _State.ANSWER:
            return ""
        answer, self._held = self._held, ""
        return answer
