"""What a `ToolCallParser` makes of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class AnswerText:
    """A run of ordinary text; never part of a call or of its marks."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call to a declared tool begins; its name is whole. `index` counts the answer's calls from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the arguments' JSON text, as the model wrote it. All pieces together are an object,
    unless the answer was cut off or the model broke the JSON."""

    index: int
    text: str


ToolEvent: TypeAlias = AnswerText | CallStarted | CallArguments
