"""Output: from the pieces of an answer to items, and to the events that a stream tells of them.

One item is open at a time: text behind a call is a message of its own. See `output_items`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from ostinato.api.answer_reader import AnswerEvent, AnswerReader, Thought
from ostinato.api.logprobs import chat_logprobs
from ostinato.api.openai_responses.output_items import (
    Event,
    OpenCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenSearch,
    SearchOutput,
)
from ostinato.api.openai_responses.tools import CLIENT, SEARCH_NAME, Toolbox
from ostinato.api.tool_search import Progress
from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted

_ID_DIGITS = 24


class Output:
    """Puts one answer's items together.

    Args:
        response_id: ids of items are made from it.
        toolbox: that the answer may use.
        wants_logprobs: whether text carries them.
    """

    def __init__(self, response_id: str, toolbox: Toolbox, *, wants_logprobs: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._response_id = response_id
        self._toolbox = toolbox
        self._wants_logprobs = wants_logprobs
        self._open: OpenItem | None = None
        self._logprobs: list[dict[str, Any]] = []
        """Of tokens whose text is not shown yet."""

    def feed(self, step: Progress) -> list[Event]:
        """The next piece."""
        if self._wants_logprobs:
            self._logprobs += chat_logprobs(step.delta.logprobs)["content"]
        return [event for piece in step.events for event in self._take(piece, step.reader)]

    def searched(self, names: Sequence[str]) -> list[Event]:
        """The server has run a search, and found these."""
        events = self._close("completed")
        tools = self._toolbox.written(names)
        found = SearchOutput(self._item_id("tso"), len(self.items), tools)
        self.items.append(found.shown("completed"))
        return [*events, *found.added(), *found.done("completed")]

    def finish(self, *, is_cut_off: bool) -> list[Event]:
        """The answer is over; without a single piece it is an empty message."""
        status = "incomplete" if is_cut_off else "completed"
        events: list[Event] = []
        if self._open is None and not self.items:
            events += self._begin("msg", OpenMessage)
        return events + self._close(status)

    def _take(self, piece: AnswerEvent, reader: AnswerReader) -> list[Event]:
        match piece:
            case Thought(text):
                self._logprobs = []  # thoughts and calls have none
                return self._think(text)
            case AnswerText(text):
                return self._say(text)
            case CallStarted(index, name):
                return self._call(name, reader.call_id(index))
            case CallArguments(_, text):
                self._logprobs = []
                assert self._open is not None  # the call began
                return self._open.piece(text)

    def _think(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, OpenReasoning):
            events = self._begin("rs", OpenReasoning)
        assert self._open is not None
        return events + self._open.piece(text)

    def _say(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, OpenMessage):
            if isinstance(self._open, OpenCall | OpenSearch) and not text.strip():
                return []
            events = self._begin("msg", OpenMessage)
        assert isinstance(self._open, OpenMessage)
        logprobs, self._logprobs = self._logprobs, []
        return events + self._open.piece_with(text, logprobs)

    def _call(self, name: str, call_id: str) -> list[Event]:
        execution = self._toolbox.search
        if name != SEARCH_NAME or execution is None:
            fields = self._toolbox.name_fields(name)
            return self._begin("fc", lambda item_id, at: OpenCall(item_id, at, call_id, fields))
        shown_id = call_id if execution == CLIENT else None
        return self._begin("tsc", lambda item_id, at: OpenSearch(item_id, at, execution, shown_id))

    def _begin(self, prefix: str, make: Callable[[str, int], OpenItem]) -> list[Event]:
        """Close the open item and open another, made from its id and its place."""
        events = self._close("completed")
        self._open = make(self._item_id(prefix), len(self.items))
        return events + self._open.added()

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item, self._open = self._open, None
        if isinstance(item, OpenMessage):
            item.end_with(self._logprobs)
            self._logprobs = []
        self.items.append(item.shown(status))
        return item.done(status)

    def _item_id(self, prefix: str) -> str:
        digest = hashlib.sha256(f"{self._response_id}/{len(self.items)}".encode()).hexdigest()
        return f"{prefix}_{digest[:_ID_DIGITS]}"
