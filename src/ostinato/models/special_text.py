"""Text that spells a special token but is not meant as one.

A message that says ``<|im_end|>`` must not end its turn: whoever could write special tokens could speak as
the system. So a mark is set into each spelling before the template sees it, and a second tokenizer takes the
marks out again *after* it has looked for special tokens. The words stay, tokenised as ordinary text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import tokenizers

MARK = "\ufdd0\ufdd1"
"""Two Unicode noncharacters, which text for interchange does not hold; should it do so, they vanish too."""


def special_text_pattern(special_texts: Iterable[str]) -> re.Pattern[str] | None:
    """Matches the first character of each spelling of a special token, overlapping ones too.

    Built as a tree of prefixes, so that a search takes as long for a thousand special tokens as for ten.
    Special tokens of one character cannot be marked and are left out. None without any special token.
    """
    tree: dict[str, Any] = {}
    for text in special_texts:
        if len(text) > 1:
            node = tree
            for character in text:
                node = node.setdefault(character, {})
            node[""] = {}
    if not tree:
        return None
    heads = (f"{re.escape(head)}(?={_alternatives(rest)})" for head, rest in tree.items())
    return re.compile("|".join(heads))


def _alternatives(node: dict[str, Any]) -> str:
    if "" in node:  # the shortest spelling is enough: what is longer starts with it
        return ""
    branches = []
    for character, rest in node.items():
        run = character
        while len(rest) == 1 and "" not in rest:  # a run without a fork needs no group
            [(character, rest)] = rest.items()
            run += character
        branches.append(re.escape(run) + _alternatives(rest))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def without_marks(tokenizer_json: str) -> tokenizers.Tokenizer:
    """The same tokenizer, except that `MARK` keeps a special token from being read and then vanishes.

    Special tokens are looked for in the raw text, where the marks still are; the normaliser, which runs
    after that, removes them.
    """
    settings = json.loads(tokenizer_json)
    for token in settings["added_tokens"]:
        if token["special"]:
            token["normalized"] = False
    steps = [{"type": "Replace", "pattern": {"String": MARK}, "content": ""}]
    if settings["normalizer"] is not None:
        steps.append(settings["normalizer"])
    settings["normalizer"] = {"type": "Sequence", "normalizers": steps}
    return tokenizers.Tokenizer.from_str(json.dumps(settings))
