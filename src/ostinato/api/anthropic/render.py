"""An answer as Anthropic's events, and a message put together from them.

message_start ─► for each block: content_block_start, …_delta, …_stop ─► message_delta ─► message_stop
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic_core import from_json

from ostinato.api.answer_reader import AnswerEvent, AnswerReader, FinishedCall, Thought
from ostinato.api.json_numbers import finite
from ostinato.api.tool_search import SearchError, SearchKind, SearchResult
from ostinato.api.usage import TokenUsage, anthropic_usage
from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted
from ostinato.product.diagnosis import ANTHROPIC_TYPES, MissCause

Event: TypeAlias = dict[str, Any]

NOT_FOUND = {"cache_miss_reason": {"type": "previous_message_not_found"}}
_UNAVAILABLE = "unavailable"


def message_start(message_id: str, model: str, usage: TokenUsage) -> Event:
    """The message as it begins."""
    message: dict[str, Any] = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": anthropic_usage(usage),
    }
    return {"type": "message_start", "message": message}


def message_end(stop_reason: str, stop_sequence: str | None, usage: TokenUsage) -> list[Event]:
    """How it ended; the usage replaces that of the beginning."""
    delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    return [
        {"type": "message_delta", "delta": delta, "usage": anthropic_usage(usage)},
        {"type": "message_stop"},
    ]


def diagnostics(cause: MissCause | None) -> dict[str, Any] | None:
    """What differs from the message that was named; None if nothing does."""
    if cause is None:
        return None
    kind = ANTHROPIC_TYPES.get(cause.change, _UNAVAILABLE)
    reason: dict[str, Any] = {"type": kind}
    if kind != _UNAVAILABLE:
        reason["cache_missed_input_tokens"] = cause.missed_tokens
    return {"cache_miss_reason": reason}


class BlockWriter:
    """From what an answer says to events of its blocks.

    Args:
        searches: names of the search tools; calls of those are the server's.
    """

    def __init__(self, searches: Mapping[str, SearchKind]) -> None:
        self._searches = searches
        self._index = -1
        self._open: str | None = None
        self._thought = hashlib.sha256()
        """Signs the open thought: its digest, which whoever has the thought can make, too."""

    def write(self, events: Sequence[AnswerEvent], reader: AnswerReader) -> Iterator[Event]:
        """The next pieces of the answer that `reader` reads."""
        for event in events:
            match event:
                case Thought(text):
                    if self._open != "thinking":
                        block = {"type": "thinking", "thinking": "", "signature": ""}
                        yield from self._start(block)
                        self._thought = hashlib.sha256()
                    self._thought.update(text.encode())
                    yield self._delta({"type": "thinking_delta", "thinking": text})
                case AnswerText(text):
                    if self._open != "text":
                        yield from self._start({"type": "text", "text": ""})
                    yield self._delta({"type": "text_delta", "text": text})
                case CallStarted(index, _):
                    yield from self._start({**self._call(reader.calls[index]), "input": {}})
                case CallArguments(_, text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def searched(self, call: FinishedCall, result: SearchResult) -> Iterator[Event]:
        """The server has run a search."""
        content: dict[str, Any] = {
            "type": "tool_search_tool_search_result",
            "tool_references": [
                {"type": "tool_reference", "tool_name": name} for name in result.names
            ],
        }
        if result.error is not None:
            content = {
                "type": "tool_search_tool_result_error",
                "error_code": _ERROR_CODES[result.error],
                "error_message": result.text,
            }
        block = {
            "type": "tool_search_tool_result",
            "tool_use_id": self._call(call)["id"],
            "content": content,
        }
        yield from self._start(block)
        yield from self.close()

    def close(self) -> Iterator[Event]:
        """End the block that is open, if one is."""
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self._thought.hexdigest()})
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}

    def _start(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self.close()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _call(self, call: FinishedCall) -> dict[str, Any]:
        digits = call.call_id.rpartition("_")[2]
        if call.name in self._searches:
            return {"type": "server_tool_use", "id": f"srvtoolu_{digits}", "name": call.name}
        return {"type": "tool_use", "id": f"toolu_{digits}", "name": call.name}


class MessageBuilder:
    """Puts a message together from its events, as a client would: so whole and streamed answers agree."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._arguments = ""

    def add(self, event: Event) -> None:
        """The next event."""
        match event["type"]:
            case "message_start":
                self.message = event["message"]
            case "content_block_start":
                self.message["content"].append(event["content_block"])
                self._arguments = ""
            case "content_block_delta":
                self._add_delta(event["delta"])
            case "content_block_stop":
                if self._arguments:
                    self._block["input"] = finished_input(self._arguments)
            case "message_delta":
                self.message.update(event["delta"], usage=event["usage"])

    @property
    def _block(self) -> dict[str, Any]:
        block: dict[str, Any] = self.message["content"][-1]
        return block

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        match delta["type"]:
            case "text_delta":
                self._block["text"] += delta["text"]
            case "thinking_delta":
                self._block["thinking"] += delta["thinking"]
            case "signature_delta":
                self._block["signature"] = delta["signature"]
            case _:
                self._arguments += delta["partial_json"]


def finished_input(arguments: str) -> dict[str, Any]:
    """Arguments of a call as an object; of those that were cut off, what there is, as SDKs have it."""
    try:
        value = finite(from_json(arguments, allow_partial=True))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_ERROR_CODES: Mapping[SearchError, str] = {
    SearchError.INVALID_PATTERN: "invalid_tool_input",
    SearchError.PATTERN_TOO_LONG: "invalid_tool_input",
    SearchError.UNAVAILABLE: "unavailable",
}
