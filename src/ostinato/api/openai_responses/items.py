"""Items: what a conversation of the Responses API is made of, and its way into canonical messages.

Items arrive one by one, a model's turn is one message: reasoning, text and function calls that follow each
other without anything between are put together as the chat template expects them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Tag, TypeAdapter

from ostinato.api import unsupported
from ostinato.api.fields import ApiModel, Text, text_or_list, union_of
from ostinato.api.openai_caching import BreakpointField, BreakpointOf
from ostinato.api.openai_responses.tools import (
    SEARCH_NAME,
    Function,
    read_tools,
    visible_name,
)
from ostinato.api.prompt import Message, Role, TextPart, ToolCall
from ostinato.api.tool_search import reference_text
from ostinato.errors import InvalidRequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


class Part(ApiModel):
    """One part of a message or of a function's output; only text can be read."""

    type: Text
    text: Text | None = None
    refusal: Text | None = None
    prompt_cache_breakpoint: BreakpointField | None = None


Content: TypeAlias = Annotated[
    Annotated[Text, Tag("~text")] | Annotated[list[Part], Tag("~list")],
    union_of(text_or_list, "a string or a list of content parts"),
]


class MessageItem(ApiModel):
    """A message, from a client or as it was generated."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class FunctionCallItem(ApiModel):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text
    namespace: Text | None = None


class FunctionOutputItem(ApiModel):
    """What a call came to."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Content


class ReasoningItem(ApiModel):
    """What the model thought; only its plain text can be used."""

    type: Literal["reasoning"]
    summary: list[Part] | None = None
    content: list[Part] | None = None


class ToolSearchCallItem(ApiModel):
    """A search that the model made; of one that the server ran, `call_id` is null."""

    type: Literal["tool_search_call"]
    arguments: Any
    call_id: Text | None = None


class ToolSearchOutputItem(ApiModel):
    """What a search found: functions that may be called from here on."""

    type: Literal["tool_search_output"]
    tools: list[dict[str, Any]]
    call_id: Text | None = None


class AdditionalToolsItem(ApiModel):
    """Functions that the client brings in by itself, and that may be called from here on."""

    type: Literal["additional_tools"]
    role: Literal["developer"]
    tools: list[dict[str, Any]]


class OtherItem(ApiModel):
    """An item of a kind that is not served here."""

    type: Text


_KINDS = (
    "message",
    "function_call",
    "function_call_output",
    "reasoning",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
)


def _item_kind(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return None
    kind = value.get("type", "message" if "role" in value else None)
    return f"~{kind}" if kind in _KINDS else "~other"


Item: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("~message")]
    | Annotated[FunctionCallItem, Tag("~function_call")]
    | Annotated[FunctionOutputItem, Tag("~function_call_output")]
    | Annotated[ReasoningItem, Tag("~reasoning")]
    | Annotated[ToolSearchCallItem, Tag("~tool_search_call")]
    | Annotated[ToolSearchOutputItem, Tag("~tool_search_output")]
    | Annotated[AdditionalToolsItem, Tag("~additional_tools")]
    | Annotated[OtherItem, Tag("~other")],
    union_of(_item_kind, "an item: an object with a role or a type"),
]

_STORED: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def stored_items(items: Sequence[Mapping[str, Any]]) -> list[Item]:
    """Items of an earlier response, as they were stored."""
    return _STORED.validate_python([dict(item) for item in items])


def as_items(given: str | Sequence[Item]) -> list[Item]:
    """A request's `input`."""
    if isinstance(given, str):
        return [MessageItem(role="user", content=given)]
    return list(given)


_ID_PREFIXES = {
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
}


def with_id(item: Item) -> dict[str, Any]:
    """An input item as it is stored and listed: with an id, and content as parts."""
    shown = item.model_dump(exclude_unset=True)
    kind = shown.setdefault("type", "message")
    shown["id"] = shown.get("id") or f"{_ID_PREFIXES.get(kind, 'msg')}_{secrets.token_hex(12)}"
    shown.setdefault("status", "completed")
    if isinstance(item, MessageItem) and isinstance(item.content, str):
        shown["content"] = [_shown_text(item)]
    return shown


def _shown_text(item: MessageItem) -> dict[str, Any]:
    if item.role == "assistant":
        return {"type": "output_text", "text": item.content, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": item.content}


def loaded_functions(items: Sequence[Item], first: int = 0) -> list[Function]:
    """The functions that a conversation has brought in, in its order.

    Args:
        items: in order.
        first: see `messages_of`.

    Raises:
        InvalidRequestError: a tool is no function.
    """
    found: list[Function] = []
    for at, item in enumerate(items):
        if isinstance(item, ToolSearchOutputItem | AdditionalToolsItem):
            found += read_tools(item.tools, f"input[{at - first}].tools").functions
    return found


def messages_of(
    items: Sequence[Item], breakpoint_of: BreakpointOf, first: int = 0
) -> tuple[Message, ...]:
    """A conversation in canonical form.

    Args:
        items: in order.
        breakpoint_of: what a part's marker means.
        first: index, in the request's `input`, of the first item; those before come from elsewhere.

    Raises:
        InvalidRequestError: an item or a part is of a kind that cannot be read.
    """
    turns = _Turns(breakpoint_of)
    for at, item in enumerate(items):
        turns.add(item, f"input[{at - first}]")
    return tuple(turns.messages)


class _Turns:
    """Messages, as items are added."""

    def __init__(self, breakpoint_of: BreakpointOf) -> None:
        self.messages: list[Message] = []
        self._breakpoint_of = breakpoint_of
        self._reasoning: str | None = None
        self._is_open = False
        """Whether the last message is a turn of the model's that calls may join."""
        self._num_searches = 0
        self._unanswered: list[str] = []
        """Ids of searches without a result so far."""

    def add(self, item: Item, path: str) -> None:
        """The next item."""
        if isinstance(item, ReasoningItem):
            self._reasoning = _reasoning(item) or self._reasoning
        elif isinstance(item, FunctionCallItem):
            name = visible_name(item.name, item.namespace)
            self._add_call(ToolCall(item.call_id, name, item.arguments))
        elif isinstance(item, ToolSearchCallItem):
            self._add_search(item)
        else:
            message = self._message(item, path)
            self.messages.append(message)
            self._is_open, self._reasoning = message.role is Role.ASSISTANT, None

    def _add_call(self, call: ToolCall) -> None:
        if self._is_open:
            last = self.messages[-1]
            self.messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
        else:
            turn = Message(Role.ASSISTANT, (), tool_calls=(call,), reasoning=self._reasoning)
            self.messages.append(turn)
        self._is_open, self._reasoning = True, None

    def _add_search(self, item: ToolSearchCallItem) -> None:
        """Searches that the server ran have no ids: their results come in their order."""
        call_id = item.call_id or f"{SEARCH_NAME}_{self._num_searches}"
        self._num_searches += 1
        self._unanswered.append(call_id)
        arguments = item.arguments
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        self._add_call(ToolCall(call_id, SEARCH_NAME, arguments))

    def _message(self, item: Item, path: str) -> Message:
        if isinstance(item, FunctionOutputItem):
            parts = _parts(item.output, f"{path}.output", self._breakpoint_of)
            return Message(Role.TOOL, parts, tool_call_id=item.call_id)
        if isinstance(item, MessageItem):
            role = _ROLES[item.role]
            parts = _parts(item.content, f"{path}.content", self._breakpoint_of)
            thought = self._reasoning if role is Role.ASSISTANT else None
            return Message(role, parts, reasoning=thought)
        if isinstance(item, ToolSearchOutputItem | AdditionalToolsItem):
            functions = read_tools(item.tools, f"{path}.tools").functions
            text = TextPart(reference_text([one.definition.schema for one in functions]))
            if isinstance(item, AdditionalToolsItem):
                return Message(Role.SYSTEM, (text,))
            return Message(Role.TOOL, (text,), tool_call_id=self._answered(item.call_id))
        raise _unsupported(item, path)

    def _answered(self, call_id: str | None) -> str:
        if call_id is None:
            call_id = self._unanswered[0] if self._unanswered else SEARCH_NAME
        if call_id in self._unanswered:
            self._unanswered.remove(call_id)
        return call_id


def _unsupported(item: Item, path: str) -> InvalidRequestError:
    kind = getattr(item, "type", "")
    hint = {
        "item_reference": "send the item itself, or previous_response_id",
        "compaction": "send the messages themselves",
    }.get(kind, f"this server takes {', '.join(_KINDS)}")
    return InvalidRequestError(
        f"{path}: items of type {kind[:40]!r} are not supported: {hint}",
        param=f"{path}.type",
        code=UNSUPPORTED_CODE,
    )


def _reasoning(item: ReasoningItem) -> str | None:
    text = "\n".join(part.text for part in item.content or () if part.text)
    return text or None


def _parts(
    content: str | list[Part], path: str, breakpoint_of: BreakpointOf
) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_part(part, f"{path}[{at}]", breakpoint_of) for at, part in enumerate(content))


def _part(part: Part, path: str, breakpoint_of: BreakpointOf) -> TextPart:
    if part.type in unsupported.CONTENT_PARTS:
        kind = unsupported.CONTENT_PARTS[part.type]
        raise InvalidRequestError(
            f"{path}: this server reads text only, not {kind}; send parts of type 'input_text'",
            param=f"{path}.type",
            code=UNSUPPORTED_CODE,
        )
    if part.type not in (*_TEXT_PARTS, "refusal"):
        raise InvalidRequestError(
            f"{path}.type must be 'input_text' or 'output_text', not {part.type[:40]!r}",
            param=f"{path}.type",
        )
    name = "refusal" if part.type == "refusal" else "text"
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise InvalidRequestError(
            f"{path}.{name} is required for a part of type {part.type!r}", param=f"{path}.{name}"
        )
    return TextPart(text, breakpoint_of(part.prompt_cache_breakpoint))
