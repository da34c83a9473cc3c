"""ToolCallParser: from streamed text to text and tool calls.

Every character is looked at once and in order, so what comes out does not depend on how the text was cut into
pieces. What may be the beginning of a mark or of a call is held back until that is certain:

    text ──► opening mark ──► {"name": …, "arguments": { ──► pieces of the arguments ──► closing mark ──► text
                     │                    │                                │
                     └────────────────────┴── no call after all ───────────┴──► comes back as text

Until the name and the arguments' opening brace are there a call shows nothing, so that a malformed call comes
back as the text it was. After that its pieces are shown as they come; where the JSON then breaks, the call
stays as far as it came, as with an answer that was cut off, and the rest is text. White space that only
separates calls belongs to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ostinato.models.tools.call_reader import CallReader, Progress
from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted, ToolEvent
from ostinato.models.tools.json_scan import WHITESPACE
from ostinato.models.tools.syntax import ToolCallSyntax

_FENCES = ("```json", "```")
"""Small models put calls into a Markdown block instead of their own marks."""
_FENCE_END = "```"


@dataclass(frozen=True, slots=True)
class _Frame:
    """What stands around a call: `closing` ends it, `repeats` says that a comma may bring another before."""

    closing: str
    repeats: bool


class ToolCallParser:
    """Reads one answer.

    Args:
        syntax: how the model writes calls.
        names: of the declared tools; what calls another is text.
        max_calls: after so many everything is text.
    """

    def __init__(
        self, syntax: ToolCallSyntax, names: Collection[str], max_calls: int | None = None
    ) -> None:
        self._syntax = syntax
        self._names = frozenset(names)
        self._calls_left = max_calls
        self._take: Callable[[str], None] = self._at_start
        self._held = ""
        self._frame = _Frame("", False)
        self._reader = CallReader((), syntax.arguments_key)
        self._is_shown = False
        self._index = -1
        self._events: list[ToolEvent] = []

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        return self._index + 1

    def feed(self, text: str) -> list[ToolEvent]:
        """Take the next piece of the answer."""
        for character in text:
            self._take(character)
        return self._flush_events()

    def finish(self) -> list[ToolEvent]:
        """The answer is over: what was held back, unless it is only the white space behind a call."""
        if self._held.strip() or self.num_calls == 0:
            self._show_text(self._held)
        self._held = ""
        return self._flush_events()

    def _at_start(self, character: str) -> None:
        """Where a call may stand without a mark: at the start of the answer and right behind a call."""
        self._held += character
        begun = self._held.lstrip(WHITESPACE if not self.num_calls else WHITESPACE + ";")
        if not begun or self._opens_call(begun):
            return
        starts: tuple[str, ...] = (self._syntax.opening,) if self._may_call else ()
        if self._may_call and self._syntax.allows_bare:
            starts += _FENCES
        fence = begun.rstrip(WHITESPACE)
        if fence in _FENCES and fence in starts:
            return
        if not any(start.startswith(begun) for start in starts):
            self._reread(self._in_text)

    def _opens_call(self, begun: str) -> bool:
        if not self._may_call:
            return False
        if begun == self._syntax.opening:
            self._open(self._syntax.closing)
            return True
        if not self._syntax.allows_bare or begun[-1] != "{":
            return False
        fence = begun[:-1].rstrip(WHITESPACE)
        if fence and fence not in _FENCES:
            return False
        held = self._held
        self._open(_FENCE_END if fence else "")
        self._held = held[:-1]
        self._in_call("{")
        return True

    def _in_text(self, character: str) -> None:
        self._held += character
        marks = self._marks()
        while self._held and not any(mark.startswith(self._held) for mark in marks):
            self._show_text(self._held[0])
            self._held = self._held[1:]
        if self._held and self._held in marks and self._held.endswith(self._syntax.opening):
            self._open(self._syntax.closing)

    def _marks(self) -> tuple[str, ...]:
        """A template writes a line break between text and a mark; it is no part of the text."""
        if not self._may_call:
            return ()
        return (self._syntax.opening, f"\n{self._syntax.opening}")

    @property
    def _may_call(self) -> bool:
        return self._calls_left is None or self._calls_left > 0

    def _open(self, closing: str) -> None:
        """Behind a mark. What was held is kept, in case this is no call."""
        lists = self._syntax.lists_calls
        self._frame = _Frame(closing, lists)
        self._next_call()
        if lists:
            self._take = self._before_list

    def _before_list(self, character: str) -> None:
        self._held += character
        if character == "[":
            self._take = self._in_call
        elif character not in WHITESPACE:
            self._give_up()

    def _in_call(self, character: str) -> None:
        step = self._reader.feed(character)
        if step.progress is Progress.BAD:
            self._give_up_at(character)
            return
        if step.started is not None:
            self._begin(step.started)
        elif not self._is_shown:
            self._held += character
        if step.arguments:
            self._events.append(CallArguments(self._index, step.arguments))
        if step.progress is Progress.DONE:
            self._take = self._behind_call

    def _next_call(self) -> None:
        self._reader = CallReader(self._names, self._syntax.arguments_key)
        self._is_shown = False
        self._take = self._in_call

    def _begin(self, name: str) -> None:
        self._index += 1
        self._held = ""
        self._is_shown = True
        if self._calls_left is not None:
            self._calls_left -= 1
        self._events.append(CallStarted(self._index, name))

    def _behind_call(self, character: str) -> None:
        """Waits for the closing mark; a model that leaves it out has called all the same."""
        self._held += character
        begun = self._held.lstrip(WHITESPACE)
        if not begun:
            return
        if self._frame.repeats:
            self._next_in_list(begun)
        elif begun == self._frame.closing:
            self._held = ""
            self._take = self._at_start
        elif not self._frame.closing.startswith(begun):
            self._reread(self._at_start)

    def _next_in_list(self, begun: str) -> None:
        if begun == "," and self._may_call:
            self._next_call()
        elif begun == "]":
            self._held = ""
            self._take = self._at_start
        else:
            self._reread(self._in_text)

    def _give_up_at(self, character: str) -> None:
        """No call: what is held is text, and `character` may begin a mark."""
        self._show_text(self._held)
        self._held = ""
        self._take = self._in_text
        self._in_text(character)

    def _give_up(self) -> None:
        held = self._held
        self._held = held[:-1]
        self._give_up_at(held[-1])

    def _reread(self, state: Callable[[str], None]) -> None:
        held, self._held = self._held, ""
        self._take = state
        for character in held:
            self._take(character)

    def _show_text(self, text: str) -> None:
        if text:
            self._events.append(AnswerText(text))

    def _flush_events(self) -> list[ToolEvent]:
        """Neighbouring pieces of one kind become one."""
        merged: list[ToolEvent] = []
        for event in self._events:
            last = merged[-1] if merged else None
            if isinstance(event, AnswerText) and isinstance(last, AnswerText):
                merged[-1] = AnswerText(last.text + event.text)
            elif (
                isinstance(event, CallArguments)
                and isinstance(last, CallArguments)
                and event.index == last.index
            ):
                merged[-1] = CallArguments(event.index, last.text + event.text)
            else:
                merged.append(event)
        self._events = []
        return merged
