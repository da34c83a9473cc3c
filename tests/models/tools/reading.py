"""An answer read piece by piece, and what it came to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted, ToolEvent
from ostinato.models.tools.parser import ToolCallParser
from ostinato.models.tools.syntax import SYNTAXES, ToolCallStyle

NAMES = ("add", "get_weather")


@dataclass(frozen=True, slots=True)
class Read:
    """All text, and all calls as name and arguments."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()


def events_of(
    style: ToolCallStyle,
    pieces: Iterable[str],
    names: Collection[str] = NAMES,
    max_calls: int | None = None,
) -> list[ToolEvent]:
    """What a parser says of each piece and of the end."""
    parser = ToolCallParser(SYNTAXES[style], names, max_calls)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


def put_together(events: Sequence[ToolEvent]) -> Read:
    """Checks on the way that calls come in order and that a name comes before its arguments."""
    text, names, arguments = "", list[str](), list[str]()
    for event in events:
        match event:
            case AnswerText(more):
                text += more
            case CallStarted(index, name):
                assert index == len(names)
                names.append(name)
                arguments.append("")
            case CallArguments(index, more):
                assert index == len(names) - 1
                assert more
                arguments[index] += more
    return Read(text, tuple(zip(names, arguments, strict=True)))


def read(
    style: ToolCallStyle,
    text: str,
    names: Collection[str] = NAMES,
    max_calls: int | None = None,
) -> Read:
    """The whole answer at once."""
    return put_together(events_of(style, [text], names, max_calls))
