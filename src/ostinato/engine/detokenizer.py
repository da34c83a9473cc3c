"""Streaming detokenisation: from token ids to text, one token at a time.

A token is a run of bytes and a character may be spread over several, so the bytes go through an
incremental UTF-8 decoder. It gives out a character when the character's last byte arrives, and a
U+FFFD only where no continuation could make the bytes valid. For byte-level tokenizers that is by
construction what decoding all ids at once gives: their decoder, too, concatenates the tokens' bytes
and replaces each maximal invalid part by one U+FFFD (Unicode 15, section 3.9). It also makes the
text equal to the concatenated `bytes` of the log-probabilities.

`tokenizers.decoders.DecodeStream` is not used because it has no way to say that the answer is over,
so it loses what it holds, and it holds back everything for as long as the text happens to end in
invalid bytes.

SentencePiece tokenizers differ from a decode of the answer alone in two ways, both wanted: the
space that begins the first token stays, since an answer continues its prompt; and one invalid byte
among byte-fallback tokens does not spoil the valid characters beside it.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import Protocol

_UTF8_DECODER = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """What detokenisation needs of a tokenizer (`models/tokenizer.py`)."""

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token stands for; of a special token, its name."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, such as end-of-sequence."""
        ...


class Detokenizer:
    """The text of one answer."""

    def __init__(
        self,
        tokenizer: TokenBytes,
        skip_special_tokens: bool,
        shown_special_tokens: Collection[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._shown = frozenset(text.encode() for text in shown_special_tokens)
        self._utf8 = _UTF8_DECODER(errors="replace")

    def feed(self, token_id: int) -> str:
        """The characters that this token completes: none in the middle of a character."""
        raw = self._tokenizer.token_bytes(token_id)
        is_hidden = self._skip_special_tokens and self._tokenizer.is_special(token_id)
        return "" if is_hidden and raw not in self._shown else self._utf8.decode(raw)

    def flush(self) -> str:
        """When the answer is over: a U+FFFD if a character was left unfinished, else empty."""
        return self._utf8.decode(b"", final=True)
