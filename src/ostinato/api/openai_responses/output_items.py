"""The items of an answer while they grow, and the events that a stream tells of each.

message            output_item.added ─► content_part.added ─► output_text.delta … ─► output_text.done
                   ─► content_part.done ─► output_item.done
reasoning          the same with reasoning_text.delta and .done
function_call      output_item.added ─► function_call_arguments.delta … ─► function_call_arguments.done
                   ─► output_item.done
tool_search_call   output_item.added ─► output_item.done
tool_search_output the same
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from pydantic_core import from_json

from ostinato.api.json_numbers import finite

Event: TypeAlias = dict[str, Any]
"""An event without its ``sequence_number``."""

IN_PROGRESS = "in_progress"


class OpenItem(Protocol):
    """The item that grows."""

    def added(self) -> list[Event]:
        """It begins."""
        ...

    def piece(self, text: str) -> list[Event]:
        """It grows by some text."""
        ...

    def done(self, status: str) -> list[Event]:
        """It is over."""
        ...

    def shown(self, status: str) -> dict[str, Any]:
        """As it is so far."""
        ...


class _Item:
    """What all kinds share.

    Args:
        item_id: of the item.
        index: its place in the output.
    """

    def __init__(self, item_id: str, index: int) -> None:
        self.item_id = item_id
        self._index = index
        self._texts: list[str] = []

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "output_index": self._index}

    def _event(self, name: str, item: Mapping[str, Any]) -> Event:
        return {"type": f"response.output_item.{name}", "output_index": self._index, "item": item}


class _TextItem(_Item):
    """An item of one part of text."""

    kind = ""
    part_kind = ""

    def added(self) -> list[Event]:
        """See `OpenItem.added`."""
        item = {**self.shown(IN_PROGRESS), "content": []}
        return [self._event("added", item), self._part_event("added", self._part(""))]

    def done(self, status: str) -> list[Event]:
        """See `OpenItem.done`."""
        text_done = self._text_event("done", text=self._text)
        part_done = self._part_event("done", self._part(self._text))
        return [text_done, part_done, self._event("done", self.shown(status))]

    def piece(self, text: str) -> list[Event]:
        """See `OpenItem.piece`."""
        self._texts.append(text)
        return [self._text_event("delta", delta=text)]

    def shown(self, status: str) -> dict[str, Any]:
        """See `OpenItem.shown`."""
        content = [self._part(self._text)]
        return {"id": self.item_id, "type": self.kind, "status": status, "content": content}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": self.part_kind, "text": text}

    def _part_event(self, name: str, part: Mapping[str, Any]) -> Event:
        kind = f"response.content_part.{name}"
        return {"type": kind, **self._place, "content_index": 0, "part": part}

    def _text_event(self, name: str, **text: str) -> Event:
        kind = f"response.{self.part_kind}.{name}"
        return {"type": kind, **self._place, "content_index": 0, **text}


class OpenMessage(_TextItem):
    """What the model says."""

    kind = "message"
    part_kind = "output_text"

    def __init__(self, item_id: str, index: int) -> None:
        super().__init__(item_id, index)
        self._logprobs: list[dict[str, Any]] = []

    def piece_with(self, text: str, logprobs: Sequence[dict[str, Any]]) -> list[Event]:
        """It grows by some text, of tokens with these log-probabilities."""
        self._logprobs += logprobs
        return [{**event, "logprobs": list(logprobs)} for event in self.piece(text)]

    def end_with(self, logprobs: Sequence[dict[str, Any]]) -> None:
        """Tokens without text have come."""
        self._logprobs += logprobs

    def done(self, status: str) -> list[Event]:
        """See `OpenItem.done`."""
        text_done, *others = super().done(status)
        return [{**text_done, "logprobs": self._logprobs}, *others]

    def shown(self, status: str) -> dict[str, Any]:
        """See `OpenItem.shown`."""
        return {**super().shown(status), "role": "assistant"}

    def _part(self, text: str) -> dict[str, Any]:
        logprobs = list(self._logprobs) if text else []
        return {**super()._part(text), "annotations": [], "logprobs": logprobs}


class OpenReasoning(_TextItem):
    """What the model thinks. It is told in full, so there is no summary."""

    kind = "reasoning"
    part_kind = "reasoning_text"

    def shown(self, status: str) -> dict[str, Any]:
        """See `OpenItem.shown`."""
        return {**super().shown(status), "summary": []}


class OpenCall(_Item):
    """A call of a function.

    Args:
        item_id: of the item.
        index: its place in the output.
        call_id: of the call.
        name_fields: ``name``, and ``namespace`` if it is in one.
    """

    def __init__(
        self, item_id: str, index: int, call_id: str, name_fields: Mapping[str, Any]
    ) -> None:
        super().__init__(item_id, index)
        self._call_id = call_id
        self._name_fields = name_fields

    def added(self) -> list[Event]:
        """See `OpenItem.added`."""
        return [self._event("added", self.shown(IN_PROGRESS))]

    def piece(self, text: str) -> list[Event]:
        """See `OpenItem.piece`."""
        self._texts.append(text)
        kind = "response.function_call_arguments.delta"
        return [{"type": kind, **self._place, "delta": text}]

    def done(self, status: str) -> list[Event]:
        """See `OpenItem.done`."""
        whole = {"name": self._name_fields["name"], "arguments": self._text}
        kind = "response.function_call_arguments.done"
        return [{"type": kind, **self._place, **whole}, self._event("done", self.shown(status))]

    def shown(self, status: str) -> dict[str, Any]:
        """See `OpenItem.shown`."""
        return {
            "id": self.item_id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            **self._name_fields,
            "arguments": self._text,
        }


class OpenSearch(_Item):
    """A search for tools.

    Args:
        item_id: of the item.
        index: its place in the output.
        execution: who runs it.
        call_id: that the client answers to; None if the server runs it.
    """

    def __init__(self, item_id: str, index: int, execution: str, call_id: str | None) -> None:
        super().__init__(item_id, index)
        self._execution = execution
        self._call_id = call_id

    def added(self) -> list[Event]:
        """See `OpenItem.added`."""
        return [self._event("added", self.shown(IN_PROGRESS))]

    def piece(self, text: str) -> list[Event]:
        """See `OpenItem.piece`; its arguments are told when they are whole."""
        self._texts.append(text)
        return []

    def done(self, status: str) -> list[Event]:
        """See `OpenItem.done`."""
        return [self._event("done", self.shown(status))]

    def shown(self, status: str) -> dict[str, Any]:
        """See `OpenItem.shown`."""
        return {
            "id": self.item_id,
            "type": "tool_search_call",
            "status": status,
            "execution": self._execution,
            "call_id": self._call_id,
            "arguments": {} if status == IN_PROGRESS else _object(self._text),
        }


class SearchOutput(_Item):
    """What a search of the server's found.

    Args:
        item_id: of the item.
        index: its place in the output.
        tools: as the client wrote them.
    """

    def __init__(self, item_id: str, index: int, tools: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(item_id, index)
        self._tools = tools

    def added(self) -> list[Event]:
        """See `OpenItem.added`."""
        return [self._event("added", self.shown(IN_PROGRESS))]

    def done(self, status: str) -> list[Event]:
        """See `OpenItem.done`."""
        return [self._event("done", self.shown(status))]

    def shown(self, status: str) -> dict[str, Any]:
        """See `OpenItem.shown`."""
        return {
            "id": self.item_id,
            "type": "tool_search_output",
            "status": status,
            "execution": "server",
            "call_id": None,
            "tools": list(self._tools),
        }


def _object(arguments: str) -> dict[str, Any]:
    """Arguments as an object; of those that were cut off, what there is."""
    try:
        value = finite(from_json(arguments, allow_partial=True))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
