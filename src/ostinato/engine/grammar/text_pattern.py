"""Searching text with a regular expression that somebody else wrote, in linear time.

Python's `re` can take exponential time on a short pattern, and holds the interpreter meanwhile. llguidance's
derivative-based engine cannot, and it has a bound on its work; so a search is one more grammar here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_PATTERN_CHARACTERS = 200
"""Anthropic's bound."""
_EOS = 256
_BOUNDARY = re.compile(r"(\\\\)|\\b")
_ENDS_IN_DOLLAR = re.compile(r"(?<!\\)(?:\\\\)*\$$")


class _Bytes:
    """A vocabulary of all bytes, as `llguidance.TokenizerWrapper` reads it."""

    eos_token_id = _EOS
    bos_token_id = None
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    special_token_ids = (_EOS,)

    def __call__(self, text: str | bytes) -> Sequence[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=1)
def _byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapped: Any = TokenizerWrapper(_Bytes())
    return LLTokenizer(wrapped, eos_token=_EOS)


class TextPattern:
    """A compiled pattern. Syntax is that of Rust's `regex` crate, close to Python's, without look-around and
    references. ``^`` and ``$`` are understood at the pattern's ends; ``\\b`` is read as nothing, so it finds
    more than it should rather than less.

    Args:
        pattern: at most `MAX_PATTERN_CHARACTERS`.

    Raises:
        ValueError: it is no pattern, or too long.
    """

    def __init__(self, pattern: str) -> None:
        from llguidance import LLMatcher

        if len(pattern) > MAX_PATTERN_CHARACTERS:
            raise ValueError(f"the pattern is longer than {MAX_PATTERN_CHARACTERS} characters")
        body = _BOUNDARY.sub(lambda match: match[1] or "", pattern)
        before = after = r"(.|\n)*"
        if body.startswith("^"):
            before, body = "", body[1:]
        if _ENDS_IN_DOLLAR.search(body):
            after, body = "", body[:-1]
        _require_balance(body)
        source = LLMatcher.grammar_from_regex(f"{before}({body}){after}")
        self._prototype = LLMatcher(_byte_tokenizer(), source, log_level=0)
        if self._prototype.is_error():
            raise ValueError("the pattern is not a regular expression that is understood here")

    def is_in(self, text: str) -> bool:
        """Whether some part of `text` matches."""
        matcher = self._prototype.deep_copy()
        token_ids = list(text.encode())
        return matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting()


def _require_balance(body: str) -> None:
    """A pattern may not close the group that is put around it."""
    try:
        re.compile(body)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the pattern is not a regular expression: {error}") from error
