"""One answer's place in its grammar: which tokens may come next, and when nothing more may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ostinato.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

BoolArray = npt.NDArray[np.bool_]


class TokenMatcher(Protocol):
    """What the sampler needs of a grammar. Belongs to one answer and lives as long as it."""

    @property
    def constrains(self) -> bool:
        """Whether the next token is bound by a grammar at all."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the answer is complete and nothing may follow."""
        ...

    def allowed(self, vocab_size: int) -> BoolArray:
        """``(vocab_size,)``: the tokens that may come next; only while it `constrains`.

        Raises:
            GrammarError: the grammar has become too complex to follow.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take the token that was chosen. What goes wrong is said by the next `allowed`."""
        ...


class _Place:
    """A matcher of llguidance and the memory for its masks."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)

    def allowed(self, vocab_size: int) -> BoolArray:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._require_sound()
        mask = np.unpackbits(self._bits.view(np.uint8), bitorder="little").view(np.bool_)
        if vocab_size <= mask.size:
            return mask[:vocab_size]
        padded = np.zeros(vocab_size, dtype=np.bool_)  # logits that no token belongs to
        padded[: mask.size] = mask
        return padded

    def take(self, token_ids: Sequence[int]) -> bool:
        """Take all of these, or none; whether they were allowed."""
        ids = list(token_ids)
        return self._matcher.validate_tokens(ids) == len(ids) and self._matcher.consume_tokens(ids)

    def accept(self, token_id: int) -> None:
        self._matcher.consume_token(token_id)

    @property
    def is_over(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("<state>")[0]
            raise GrammarError(f"the grammar cannot be followed: {' '.join(reason.split())}")


class WholeMatcher:
    """An answer that matches from its first token to its last.

    Args:
        matcher: at the grammar's start; nobody else uses it.
        vocab_size: of the tokenizer.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._place = _Place(matcher, vocab_size)

    constrains = True

    @property
    def is_finished(self) -> bool:
        return self._place.is_over

    def allowed(self, vocab_size: int) -> BoolArray:
        return self._place.allowed(vocab_size)

    def accept(self, token_id: int) -> None:
        self._place.accept(token_id)


@dataclass(frozen=True, slots=True)
class CompiledTrigger:
    """A `spec.Trigger` with its text as bytes and its grammar compiled."""

    text: bytes
    prototype: LLMatcher
    at_start: bool


class TriggeredMatcher:
    """An answer that is free except behind its triggers.

    While it is free no mask is made: the tokens' bytes are only looked through for triggers. Where a trigger
    ends inside a token, the token's other bytes are the first of the grammar; should they not match, the
    trigger was none.

    Args:
        triggers: in order of precedence.
        tokenizer: for the bytes behind a trigger.
        max_matches: see `spec.TriggeredGrammar`.
    """

    def __init__(
        self,
        triggers: Sequence[CompiledTrigger],
        tokenizer: LLTokenizer,
        max_matches: int | None,
    ) -> None:
        self._triggers = triggers
        self._tokenizer = tokenizer
        self._matches_left = max_matches
        self._longest = max(len(trigger.text) for trigger in triggers)
        self._tail = b""
        self._is_beginning = True
        self._place: _Place | None = None

    @property
    def constrains(self) -> bool:
        return self._place is not None

    @property
    def is_finished(self) -> bool:
        return self._matches_left == 0

    def allowed(self, vocab_size: int) -> BoolArray:
        assert self._place is not None
        return self._place.allowed(vocab_size)

    def accept(self, token_id: int) -> None:
        if self._place is None:
            self._look_for_trigger(self._tokenizer.decode_bytes([token_id]))
            return
        self._place.accept(token_id)
        if self._place.is_over:
            self._place = None
            if self._matches_left is not None:
                self._matches_left -= 1

    def _look_for_trigger(self, new: bytes) -> None:
        text = self._tail + new
        for end in range(len(self._tail) + 1, len(text) + 1):
            for trigger in self._triggers:
                if self._ends_with(text[:end], trigger) and self._switch_on(trigger, text[end:]):
                    return
        self._is_beginning = self._is_beginning and len(text) < self._longest
        self._tail = text if self._is_beginning else text[-(self._longest - 1) or len(text) :]

    def _ends_with(self, text: bytes, trigger: CompiledTrigger) -> bool:
        if trigger.at_start:
            return self._is_beginning and text == trigger.text
        return text.endswith(trigger.text)

    def _switch_on(self, trigger: CompiledTrigger, rest: bytes) -> bool:
        place = _Place(trigger.prototype.deep_copy(), self._tokenizer.vocab_size)
        if rest and not place.take(self._tokenizer.tokenize_bytes(rest)):
            return False
        self._tail = b""
        self._is_beginning = False
        self._place = place
        return True
