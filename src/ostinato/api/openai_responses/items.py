"""Items: what a conversation of the Responses API is made of, and its way into canonical messages.

Items arrive one by one, a model's turn is one message: reasoning, text and function calls that follow each
other without anything between are put together as the chat template expects them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Tag, TypeAdapter

from ostinato.api import unsupported
from ostinato.api.fields import ApiModel, Text, text_or_list, union_of
from ostinato.api.openai_caching import BreakpointField, BreakpointOf
from ostinato.api.prompt import Message, Role, TextPart, ToolCall
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


class OtherItem(ApiModel):
    """An item of a kind that is not served here."""

    type: Text


_KINDS = ("message", "function_call", "function_call_output", "reasoning")


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


_ID_PREFIXES = {"function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


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
    messages: list[Message] = []
    reasoning: str | None = None
    is_open = False  # whether the last message is a turn of the model's that calls may join
    for at, item in enumerate(items):
        path = f"input[{at - first}]"
        if isinstance(item, ReasoningItem):
            reasoning = _reasoning(item) or reasoning
            continue
        if isinstance(item, FunctionCallItem):
            call = ToolCall(item.call_id, item.name, item.arguments)
            if is_open:
                messages[-1] = _with_call(messages[-1], call)
            else:
                messages.append(
                    Message(Role.ASSISTANT, (), tool_calls=(call,), reasoning=reasoning)
                )
            is_open, reasoning = True, None
            continue
        message = _message(item, path, breakpoint_of, reasoning)
        messages.append(message)
        is_open, reasoning = message.role is Role.ASSISTANT, None
    return tuple(messages)


def _with_call(message: Message, call: ToolCall) -> Message:
    return Message(
        message.role,
        message.parts,
        tool_calls=(*message.tool_calls, call),
        reasoning=message.reasoning,
    )


def _message(item: Item, path: str, breakpoint_of: BreakpointOf, reasoning: str | None) -> Message:
    if isinstance(item, FunctionOutputItem):
        parts = _parts(item.output, f"{path}.output", breakpoint_of)
        return Message(Role.TOOL, parts, tool_call_id=item.call_id)
    if isinstance(item, MessageItem):
        role = _ROLES[item.role]
        parts = _parts(item.content, f"{path}.content", breakpoint_of)
        return Message(role, parts, reasoning=reasoning if role is Role.ASSISTANT else None)
    kind = getattr(item, "type", "")
    hint = {
        "item_reference": "send the item itself, or previous_response_id",
        "compaction": "send the messages themselves",
    }.get(kind, f"this server takes {', '.join(_KINDS)}")
    raise InvalidRequestError(
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
