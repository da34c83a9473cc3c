"""Prompts of an exact length that no engine has seen: seeded words, cut to tokens."""

from __future__ import annotations

import random

from ostinato.models.tokenizer import Tokenizer

_WORDS = """
river stone winter market letter engine garden candle shadow window forest memory silver
harbour question morning teacher bridge paper island music doctor village thunder number
kitchen soldier flower mountain history ocean language mirror travel hunger picture answer
carried opened followed between under slowly almost never always before because against
the a of and to in that was with for his her they which from not by had this one but
""".split()  # noqa: SIM905 (a list of 65 quoted words reads worse)
_FIRST_ID = 1000
"""Below are special tokens and bytes in the vocabularies that we run."""


class PromptMaker:
    """Makes prompts that begin differently, so that no two share cached tokens.

    Args:
        tokenizer: of the model that all engines run.
        seed: the same seed makes the same prompts.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._starts = set[int]()

    def prompt(self, length: int) -> list[int]:
        """`length` token ids; the first was never the first before."""
        while (start := self._random.randrange(_FIRST_ID, 32_000)) in self._starts:
            pass
        self._starts.add(start)
        ids = [start]
        while len(ids) < length:
            ids += self._tokenizer.encode(" " + " ".join(self._random.choices(_WORDS, k=length)))
        return ids[:length]
