"""How few tokens a text can have, told without tokenising it.

A token stands for so many bytes at most, so a text of many times that does not fit the context, and seconds
of work on it can be saved. That holds only for tokenizers that lose no text on the way; for the others no
bound is known, and text is simply tokenised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

from ostinato.models.special_text import MARK

_NFC_SHRINKS = 4
"""Composing characters (Unicode NFC) keeps more than a quarter of the bytes; Hangul comes down to a third."""

_LOSSLESS_SPLITS = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """What is known of the length of tokens.

    Attributes:
        longest_token_bytes: most bytes of text that one token stands for.
        lost_bytes: bytes without a token, which leave no trace.
    """

    longest_token_bytes: int
    lost_bytes: bytes

    def min_tokens(self, text: str) -> int:
        """Tokens that `text` has at least, marks left out."""
        read = text.replace(MARK, "").encode().translate(None, self.lost_bytes)
        return -(-len(read) // self.longest_token_bytes)


def token_bounds(
    backend: tokenizers.Tokenizer, bytes_of_characters: Mapping[str, int]
) -> TokenBounds | None:
    """The bounds of a tokenizer; None where one token can swallow any amount of text. O(vocabulary).

    Args:
        backend: the tokenizer.
        bytes_of_characters: the alphabet of byte-level BPE.
    """
    shrinks = _shrinks(_state(backend.normalizer))
    splits = _state(backend.pre_tokenizer)
    added = backend.get_added_tokens_decoder().values()
    if shrinks is None or not _are_lossless(splits) or not isinstance(backend.model, models.BPE):
        return None
    if any(token.lstrip or token.rstrip for token in added):
        return None
    pieces = backend.get_vocab(with_added_tokens=False)
    lost = b""
    if any(part["type"] == "ByteLevel" for part in _parts(splits, "pretokenizers")):
        lost = bytes(byte for char, byte in bytes_of_characters.items() if char not in pieces)
        longest = max(map(len, pieces), default=1)  # each character is a byte
    elif backend.model.byte_fallback:
        longest = max((len(piece.encode()) for piece in pieces), default=1)
    else:
        return None  # a run of unknown characters may become one token
    longest = max([longest, *(len(token.content.encode()) for token in added)])
    return TokenBounds(longest * shrinks, lost)


def _shrinks(normalizer: Mapping[str, Any] | None) -> int | None:
    """By what factor at most normalisation shortens text; None for no bound."""
    factor = 1
    for part in _parts(normalizer, "normalizers"):
        if part["type"] == "NFC":
            factor *= _NFC_SHRINKS
        elif part["type"] == "Replace":
            pattern = part["pattern"].get("String")
            if pattern is None or len(pattern.encode()) > len(part["content"].encode()):
                return None
        elif part["type"] != "Prepend":
            return None
    return factor


def _are_lossless(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    return all(
        part["type"] in _LOSSLESS_SPLITS and part.get("behavior") != "Removed"
        for part in _parts(pre_tokenizer, "pretokenizers")
    )


def _parts(state: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """The steps of a pipeline, sequences within sequences unfolded."""
    if state is None:
        return []
    if state["type"] != "Sequence":
        return [state]
    return [step for part in state[inner] for step in _parts(part, inner)]


def _state(component: Any) -> Mapping[str, Any] | None:
    if component is None:
        return None
    state: Mapping[str, Any] = json.loads(component.__getstate__())
    return state
