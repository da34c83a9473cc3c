"""Output: from the pieces of an answer to items, and to the events that a stream tells of them.

    message        output_item.added ─► content_part.added ─► output_text.delta … ─► output_text.done
                   ─► content_part.done ─► output_item.done
    function_call  output_item.added ─► function_call_arguments.delta … ─► function_call_arguments.done
                   ─► output_item.done

One item is open at a time: text behind a call is a message of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ostinato.api.logprobs import chat_logprobs
from ostinato.api.tool_calling import AnswerReader
from ostinato.engine.outputs import OutputDelta
from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted, ToolEvent

Event: TypeAlias = dict[str, Any]
"""An event without its ``sequence_number``."""

_ID_DIGITS = 24


@dataclass(slots=True)
class _OpenItem:
    """The item that grows."""

    item_id: str
    call_id: str | None = None
    name: str = ""
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        return self.call_id is not None


class Output:
    """Puts one answer's items together.

    Args:
        response_id: ids of items are made from it.
        reader: of the answer's text; None if it calls no tools.
        wants_logprobs: whether text carries them.
    """

    def __init__(
        self, response_id: str, reader: AnswerReader | None, *, wants_logprobs: bool
    ) -> None:
        self.items: list[dict[str, Any]] = []
        self._response_id = response_id
        self._reader = reader
        self._wants_logprobs = wants_logprobs
        self._open: _OpenItem | None = None
        self._logprobs: list[dict[str, Any]] = []
        """Of tokens whose text is not shown yet."""

    def feed(self, delta: OutputDelta) -> list[Event]:
        """The next piece."""
        if self._reader is None:
            pieces: Sequence[ToolEvent] = [AnswerText(delta.text)] if delta.text else []
        else:
            pieces = self._reader.feed(delta.text)
            if delta.finish_reason is not None:
                pieces = [*pieces, *self._reader.finish()]
        if self._wants_logprobs:
            self._logprobs += chat_logprobs(delta.logprobs)["content"]
        return [event for piece in pieces for event in self._take(piece)]

    def finish(self, *, is_cut_off: bool) -> list[Event]:
        """The answer is over; without a single piece it is an empty message."""
        status = "incomplete" if is_cut_off else "completed"
        events: list[Event] = []
        if self._open is None and not self.items:
            events += self._open_message()
        return events + self._close(status)

    def _take(self, piece: ToolEvent) -> list[Event]:
        match piece:
            case AnswerText(text):
                return self._text(text)
            case CallStarted(index, name):
                return self._close("completed") + self._open_call(index, name)
            case CallArguments(_, text):
                return self._arguments(text)

    def _text(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is not None and self._open.is_call:
            if not text.strip():
                return []
            events += self._close("completed")
        if self._open is None:
            events += self._open_message()
        item = self._opened()
        item.texts.append(text)
        logprobs, self._logprobs = self._logprobs, []
        item.logprobs += logprobs
        place = {**self._place(item), "content_index": 0}
        return [
            *events,
            {"type": "response.output_text.delta", **place, "delta": text, "logprobs": logprobs},
        ]

    def _arguments(self, text: str) -> list[Event]:
        item = self._opened()
        item.texts.append(text)
        self._logprobs = []  # a call has none
        return [
            {"type": "response.function_call_arguments.delta", **self._place(item), "delta": text}
        ]

    def _open_message(self) -> list[Event]:
        self._open = _OpenItem(self._item_id("msg"))
        item = {**self._shown(self._open, "in_progress"), "content": []}
        return [
            {"type": "response.output_item.added", "output_index": len(self.items), "item": item},
            {
                "type": "response.content_part.added",
                **self._place(self._open),
                "content_index": 0,
                "part": _part("", []),
            },
        ]

    def _open_call(self, index: int, name: str) -> list[Event]:
        assert self._reader is not None  # it told of the call
        self._open = _OpenItem(self._item_id("fc"), self._reader.call_id(index), name)
        item = self._shown(self._open, "in_progress")
        return [
            {"type": "response.output_item.added", "output_index": len(self.items), "item": item}
        ]

    def _close(self, status: str) -> list[Event]:
        if self._open is None:
            return []
        item = self._open
        item.logprobs += self._logprobs
        self._logprobs = []
        text, place = "".join(item.texts), self._place(item)
        shown = self._shown(item, status)
        done = {
            "type": "response.output_item.done",
            "output_index": len(self.items),
            "item": shown,
        }
        if item.is_call:
            whole = {"name": item.name, "arguments": text}
            events = [{"type": "response.function_call_arguments.done", **place, **whole}, done]
        else:
            place = {**place, "content_index": 0}
            text_done = {"text": text, "logprobs": item.logprobs}
            part = _part(text, item.logprobs)
            events = [
                {"type": "response.output_text.done", **place, **text_done},
                {"type": "response.content_part.done", **place, "part": part},
                done,
            ]
        self.items.append(shown)
        self._open = None
        return events

    def _opened(self) -> _OpenItem:
        assert self._open is not None
        return self._open

    def _place(self, item: _OpenItem) -> dict[str, Any]:
        return {"item_id": item.item_id, "output_index": len(self.items)}

    def _item_id(self, prefix: str) -> str:
        digest = hashlib.sha256(f"{self._response_id}/{len(self.items)}".encode()).hexdigest()
        return f"{prefix}_{digest[:_ID_DIGITS]}"

    def _shown(self, item: _OpenItem, status: str) -> dict[str, Any]:
        text = "".join(item.texts)
        if item.is_call:
            return {
                "id": item.item_id,
                "type": "function_call",
                "status": status,
                "call_id": item.call_id,
                "name": item.name,
                "arguments": text,
            }
        return {
            "id": item.item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part(text, item.logprobs)],
        }


def _part(text: str, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
