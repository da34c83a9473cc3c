"""An answer that may think first: its grammar holds from the end of the thought on.

START ──► THOUGHT (free) ──► GAP (line breaks) ──► ANSWER (the grammar)
  └───────────────────────────────────────────────────▲
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from ostinato.engine.grammar.matcher import BoolArray, TokenMatcher

MAX_BREAKS = 2
"""Tokens of line breaks between a thought and an answer that a grammar binds."""


class _Phase(Enum):
    START = auto()
    THOUGHT = auto()
    GAP = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class ReasoningTokens:
    """The marks of thoughts in a model's vocabulary.

    Attributes:
        opening, closing: their bytes.
        opening_ids: the tokens that a model writes `opening` with.
        break_ids: tokens that are one or two line breaks.
        token_bytes: the bytes of a token.
    """

    opening: bytes
    closing: bytes
    opening_ids: tuple[int, ...]
    break_ids: tuple[int, ...]
    token_bytes: Callable[[int], bytes]


class ReasoningMatcher:
    """Lets an answer think, then hands it to another matcher.

    Until it is certain that the answer does not begin with a thought, both are allowed: the opening mark, token
    by token, and what the other matcher allows. Text that shares a token with the closing mark is not
    seen by the other matcher.

    Args:
        tokens: of the model.
        make_answer: a new matcher for what follows the thought.
        is_open: the prompt ends inside a thought.
    """

    def __init__(
        self, tokens: ReasoningTokens, make_answer: Callable[[], TokenMatcher], *, is_open: bool
    ) -> None:
        self._tokens = tokens
        self._make_answer = make_answer
        self._answer: TokenMatcher | None = make_answer()
        """None at the start if it cannot go on from there, so that only a thought can."""
        self._mask: BoolArray | None = None
        """What it allows next, if it binds that at all."""
        self._phase = _Phase.THOUGHT if is_open else _Phase.START
        self._text = b""
        self._taken: list[int] = []
        self._num_breaks = 0

    @property
    def constrains(self) -> bool:
        if self._phase is _Phase.THOUGHT:
            return False
        return self._answer is None or self._answer.constrains

    @property
    def is_finished(self) -> bool:
        is_answer = self._phase is _Phase.ANSWER
        return is_answer and self._answer is not None and self._answer.is_finished

    def allowed(self, vocab_size: int) -> BoolArray:
        """See `TokenMatcher.allowed`."""
        if self._answer is None:
            mask = np.zeros(vocab_size, dtype=np.bool_)
        else:
            mask = self._answer.allowed(vocab_size)
        if self._phase is _Phase.ANSWER:
            return mask
        self._mask = mask.copy()
        for token_id in self._also_allowed():
            mask[token_id] = True
        return mask

    def accept(self, token_id: int) -> None:
        """See `TokenMatcher.accept`."""
        match self._phase:
            case _Phase.START:
                self._start(token_id)
            case _Phase.THOUGHT:
                self._think(self._tokens.token_bytes(token_id))
            case _Phase.GAP:
                self._leave_gap(token_id)
            case _Phase.ANSWER:
                self._go_on(token_id)

    def _also_allowed(self) -> tuple[int, ...]:
        """Beside what the answer's matcher allows."""
        if self._phase is _Phase.GAP:
            return self._tokens.break_ids if self._num_breaks < MAX_BREAKS else ()
        opening, taken = self._tokens.opening_ids, tuple(self._taken)
        return opening[len(taken) : len(taken) + 1] if opening[: len(taken)] == taken else ()

    def _start(self, token_id: int) -> None:
        self._text += self._tokens.token_bytes(token_id)
        begun = self._text.lstrip()
        if begun.startswith(self._tokens.opening):
            self._phase = _Phase.THOUGHT
            self._text = b""
            self._think(begun[len(self._tokens.opening) :])
            return
        if self._mask is not None and not self._mask[token_id]:
            self._answer = None
        self._taken.append(token_id)
        self._go_on(token_id)
        if not self._tokens.opening.startswith(begun):
            self._phase = _Phase.ANSWER

    def _think(self, new: bytes) -> None:
        self._text += new
        if self._tokens.closing in self._text:
            self._phase = _Phase.GAP
            self._answer = self._make_answer()
            self._mask = None
        self._text = self._text[-len(self._tokens.closing) + 1 :]

    def _leave_gap(self, token_id: int) -> None:
        is_break = not self._tokens.token_bytes(token_id).strip(b"\n")
        is_wanted = self._mask is not None and bool(self._mask[token_id])
        self._mask = None
        if is_break and not is_wanted and self._num_breaks < MAX_BREAKS:
            self._num_breaks += 1
            return
        self._phase = _Phase.ANSWER
        self._go_on(token_id)

    def _go_on(self, token_id: int) -> None:
        self._mask = None
        if self._answer is not None:
            self._answer.accept(token_id)
