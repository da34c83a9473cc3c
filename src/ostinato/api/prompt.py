"""Prompt: the canonical form that every chat dialect is parsed into.

Order is content here: messages stay where they were written (a system message in mid-conversation too),
tools keep their order and the order of their keys, and nothing that is random or depends on the clock
enters. Equal requests therefore render to equal text, which is what prefix caching lives on.

A part, a call or a tool may end in a cache breakpoint. `Prompt.segments` lists them in the vendors' order,
tools first, and `models.chat_encoding` tells where each ends in the rendered prompt, whatever order the model's
template has. How it becomes text is not known here; that is `models.chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ostinato.models.chat_encoding import PART_SEPARATOR
from ostinato.product.breakpoints import place_automatic
from ostinato.product.segments import Breakpoint, Segment, SegmentKind, TTLClass

__all__ = [
    "Breakpoint",
    "Message",
    "Prompt",
    "Role",
    "Segment",
    "SegmentKind",
    "TTLClass",
    "TextPart",
    "ToolCall",
    "ToolDefinition",
]


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A run of text. Parts are kept apart because a dialect may put a cache breakpoint after one.

    `path`, here and below, is where the client wrote it, for errors; None: where it is in the `Prompt`.
    """

    text: str
    breakpoint: Breakpoint | None = None
    path: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant message made; `arguments` is the JSON text as the client sent it.

    `call_id` ties it to its result and never reaches the rendered prompt as it is.
    """

    call_id: str
    name: str
    arguments: str
    breakpoint: Breakpoint | None = None
    path: str | None = field(default=None, compare=False)

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool that the model may call.

    Attributes:
        schema: in OpenAI's form, ``{"type": "function", "function": {…}}``, keys in the order in which they
            came.
        breakpoint: cache everything up to here.
        deferred: kept out of the prompt until something appended to the conversation brings it in.
    """

    schema: Mapping[str, Any]
    breakpoint: Breakpoint | None = None
    deferred: bool = False
    path: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn, or one piece of one."""

    role: Role
    parts: tuple[TextPart, ...]
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        return PART_SEPARATOR.join(part.text for part in self.parts)

    def for_template(self) -> dict[str, Any]:
        """The mapping that Hugging Face chat templates expect, except that content is the tuple of its parts.

        Absent fields are left out.
        """
        content = tuple(part.text for part in self.parts)
        message: dict[str, Any] = {"role": self.role.value, "content": content}
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


_KINDS = {
    Role.SYSTEM: SegmentKind.SYSTEM,
    Role.USER: SegmentKind.USER,
    Role.ASSISTANT: SegmentKind.ASSISTANT,
    Role.TOOL: SegmentKind.TOOL_RESULT,
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, ready for a template.

    Attributes:
        messages: in the order in which they were written.
        tools: in the order in which they were written.
        template_variables: what the client hands to the template besides (``chat_template_kwargs``).
        add_generation_prompt: end with the opening of an assistant turn.
        automatic_breakpoint: Anthropic's top-level ``cache_control``: lies on the last segment that may have
            one.
        implicit_breakpoint: OpenAI's implicit mode: the house rules say where it lies, if anywhere.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    automatic_breakpoint: Breakpoint | None = None
    implicit_breakpoint: Breakpoint | None = None

    def template_messages(self) -> list[dict[str, Any]]:
        """For `encode_segments`."""
        return [message.for_template() for message in self.messages]

    def template_tools(self) -> list[Mapping[str, Any]]:
        """For `encode_segments`: those that are in the prompt from the start."""
        return [tool.schema for tool in self.tools if not tool.deferred]

    def segments(self) -> tuple[Segment, ...]:
        """Tools; then, message by message, each part and each call: the order of `EncodedChat.boundaries`.

        Raises:
            InvalidRequestError: the automatic breakpoint contradicts the others.
        """
        segments = [
            Segment(SegmentKind.TOOL, tool.path or f"tools[{at}]", breakpoint=tool.breakpoint)
            for at, tool in enumerate(self.tools)
            if not tool.deferred
        ]
        for at, message in enumerate(self.messages):
            segments += _segments(message, at)
        if self.automatic_breakpoint is None:
            return tuple(segments)
        return place_automatic(segments, self.automatic_breakpoint)


def _segments(message: Message, at: int) -> list[Segment]:
    kind, path = _KINDS[message.role], f"messages[{at}]"
    parts = [
        Segment(
            kind,
            part.path or f"{path}.content[{n}]",
            at,
            part.breakpoint,
            is_empty=not part.text.strip(),
        )
        for n, part in enumerate(message.parts)
    ]
    calls = [
        Segment(SegmentKind.TOOL_USE, call.path or f"{path}.tool_calls[{n}]", at, call.breakpoint)
        for n, call in enumerate(message.tool_calls)
    ]
    return parts + calls
