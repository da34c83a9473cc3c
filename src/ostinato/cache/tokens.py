"""Comparing runs of tokens."""

from __future__ import annotations

from ostinato.cache.types import TokenArray


def common_prefix(left: TokenArray, right: TokenArray) -> int:
    """How many leading tokens are equal."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
