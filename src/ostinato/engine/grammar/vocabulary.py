"""The bridge from our tokenizer to llguidance: the exact bytes of every token, and which ones end an answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ostinato.engine.grammar.reasoning_matcher import ReasoningTokens
from ostinato.models.reasoning.syntax import ReasoningSyntax

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class VocabularySource(Protocol):
    """What is needed of `models.tokenizer.Tokenizer`."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...
    def encode(self, text: str) -> list[int]: ...


class _Words:
    """A vocabulary as `llguidance.TokenizerWrapper` reads it."""

    def __init__(self, source: VocabularySource) -> None:
        ids = range(source.vocab_size)
        self._source = source
        # Some model names no end; then none may be chosen, and an answer ends where its grammar does.
        self.eos_token_id = min(source.eos_token_ids, default=0)
        self.bos_token_id = source.bos_token_id
        self.tokens = [source.token_bytes(token_id) for token_id in ids]
        self.special_token_ids = [token_id for token_id in ids if source.is_special(token_id)]

    def __call__(self, text: str | bytes) -> Sequence[int]:
        return self._source.encode(text if isinstance(text, str) else text.decode())


class GrammarVocabulary:
    """A model's vocabulary for grammars. Thread-safe; built when it is first needed, once.

    That takes a second and 50 MB for 150,000 tokens, which a server without structured output never pays.
    """

    def __init__(self, source: VocabularySource) -> None:
        self.source = source
        self._built: LLTokenizer | None = None
        self._lock = threading.Lock()

    @property
    def tokenizer(self) -> LLTokenizer:
        """For `llguidance.LLMatcher`."""
        with self._lock:
            if self._built is None:
                self._built = self._build()
            return self._built

    def reasoning_tokens(self, syntax: ReasoningSyntax) -> ReasoningTokens:
        """The marks around thoughts, and the line breaks behind them, in this vocabulary."""
        encode = self.source.encode
        breaks = (encode(text) for text in ("\n", "\n\n"))
        return ReasoningTokens(
            opening=syntax.opening.encode(),
            closing=syntax.closing.encode(),
            opening_ids=tuple(encode(syntax.opening)),
            break_ids=tuple(ids[0] for ids in breaks if len(ids) == 1),
            token_bytes=self.source.token_bytes,
        )

    def _build(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        words: Any = TokenizerWrapper(_Words(self.source))
        return LLTokenizer(
            words,
            n_vocab=self.source.vocab_size,
            eos_token=sorted(self.source.eos_token_ids) or None,
        )
