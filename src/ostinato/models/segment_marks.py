"""Marks in a conversation that show, in the rendered prompt, where each of its segments ends.

    "…end of part 1" ⟨0⟩ "\n" "part 2" ⟨1⟩   ──template──►   <|im_start|>user⏎…end of part 1⟨0⟩⏎part
    2⟨1⟩<|im_end|>…
                                                          marks out ─► the text, and the offsets of 0 and 1

A mark is a few Unicode noncharacters, which no template looks for and JSON leaves alone. A text that a template
trims must still be trimmed, so the mark stands before trailing white space. An object that a template writes as
JSON carries its mark behind the closing brace (`MarkedObject`, written by the template's own `tojson`), and a
second one behind its last string, for templates that write it field by field: the last of them in the prompt
    counts.

The marked rendering is never what a model sees. It is compared with the one without marks, and where a template
looks at its texts so closely that both differ, what lies behind the difference is found from the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_OPEN, _CLOSE = "\ufdee", "\ufdef"
_DIGITS = "\ufde0\ufde1\ufde2\ufde3\ufde4\ufde5\ufde6\ufde7"
_MARK = re.compile(f"{_OPEN}([{_DIGITS}]+){_CLOSE}")
_OBJECT_KEY = "\ufded"
_OBJECT_MARK = re.compile(
    rf'(,|(?<={{))\s*"{_OBJECT_KEY}"\s*:\s*"({_OPEN}[{_DIGITS}]+{_CLOSE})"(\s*)}}'
)
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\u(fd[de][0-9a-f])")
"""A noncharacter of ours, as JSON in ASCII writes it."""


def mark_of(number: int) -> str:
    """The mark of segment `number`."""
    return _OPEN + "".join(_DIGITS[int(digit)] for digit in f"{number:o}") + _CLOSE


def marked_text(text: str, number: int) -> str:
    """`text` with its mark, before trailing white space; as it is if it is nothing else."""
    kept = text.rstrip()
    return f"{kept}{mark_of(number)}{text[len(kept) :]}" if kept else text


class MarkedObject(dict[str, Any]):
    """A JSON object that is written with a mark behind its closing brace; in all else a dictionary."""

    __slots__ = ("mark",)

    def __init__(self, value: Mapping[str, Any], mark: str) -> None:
        super().__init__(value)
        self.mark = mark


def marked_object(value: Mapping[str, Any], number: int) -> MarkedObject:
    """A copy of a JSON object with its mark: on itself, and on whatever it ends with, down to a string."""
    mark = mark_of(number)
    return MarkedObject({**value, **_last_marked(value, number)}, mark)


def _last_marked(value: Mapping[str, Any], number: int) -> dict[str, Any]:
    if not value:
        return {}
    key = next(reversed(list(value)))
    return {key: _marked_value(value[key], number)}


def _marked_value(value: Any, number: int) -> Any:
    if isinstance(value, Mapping):
        return marked_object(value, number)
    if isinstance(value, list) and value:
        return [*value[:-1], _marked_value(value[-1], number)]
    return marked_text(value, number) if isinstance(value, str) else value


def dumps(value: Any, **layout: Any) -> str:
    """`json.dumps`, with the marks of objects behind their braces and never escaped."""
    text = json.dumps(_with_marks_inside(value), **layout)
    if layout.get("ensure_ascii", True):
        text = _ESCAPED.sub(lambda match: match[1] + chr(int(match[2], 16)), text)
    return _OBJECT_MARK.sub(_behind_brace, text) if _OBJECT_KEY in text else text


def _behind_brace(match: re.Match[str]) -> str:
    """An object that is empty without its mark has its brace at once, however the text is laid out."""
    space = match[3] if match[1] else ""
    return f"{space}}}{match[2]}"


def _with_marks_inside(value: Any) -> Any:
    if isinstance(value, MarkedObject):
        inside = {key: _with_marks_inside(entry) for key, entry in value.items()}
        return {**inside, _OBJECT_KEY: value.mark}
    if isinstance(value, Mapping):
        return {key: _with_marks_inside(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_marks_inside(entry) for entry in value]
    return value


def take_out_marks(text: str) -> tuple[str, dict[int, int]]:
    """The text without marks, and for each segment the offset of its last mark in it."""
    pieces: list[str] = []
    offsets: dict[int, int] = {}
    length = start = 0
    for match in _MARK.finditer(text):
        pieces.append(text[start : match.start()])
        length += match.start() - start
        start = match.end()
        offsets[int("".join(str(_DIGITS.index(digit)) for digit in match[1]), 8)] = length
    pieces.append(text[start:])
    return "".join(pieces), offsets


def transferred(offsets: Mapping[int, int], marked: str, plain: str) -> dict[int, int]:
    """Offsets into one text as offsets into another that differs from it in one place.

    Args:
        offsets: by segment, into `marked`.
        marked: a rendering whose marks were taken out.
        plain: the rendering without marks.

    Returns:
        Those before the difference as they are, those behind it counted from the end; none inside it.
    """
    if marked == plain:
        return dict(offsets)
    head = _common_length(marked, plain)
    tail = _common_length(
        marked[: head - len(marked) - 1 : -1], plain[: head - len(plain) - 1 : -1]
    )
    moved: dict[int, int] = {}
    for number, offset in offsets.items():
        if offset <= head:
            moved[number] = offset
        elif offset >= len(marked) - tail:
            moved[number] = offset + len(plain) - len(marked)
    return moved


def _common_length(first: str, second: str) -> int:
    """Characters that both begin with: halved down, so that each step is one comparison of slices."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def past_white_space(offset: int, segment: str, plain: str) -> int:
    """The end of a segment whose mark stood before its trailing white space, if the template kept that."""
    space = segment[len(segment.rstrip()) :]
    return offset + len(space) if space and plain.startswith(space, offset) else offset
