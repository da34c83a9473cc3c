"""Prompt: the canonical form that every chat dialect is parsed into.

Order is content here: messages stay where they were written (a system message in mid-conversation too),
tools keep their order and the order of their keys, and nothing that is random or depends on the clock
enters. Equal requests therefore render to equal text, which is what prefix caching lives on.

It does not know how a model's chat template turns it into text; that is `models.chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PART_SEPARATOR = "\n"
"""Between the text parts of one message, as vLLM joins them."""


class Role(StrEnum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A run of text. Parts are kept apart because a dialect may put a cache breakpoint after one."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant message made; `arguments` is the JSON text as the client sent it."""

    call_id: str
    name: str
    arguments: str

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


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
        """The mapping that Hugging Face chat templates expect; absent fields are left out."""
        message: dict[str, Any] = {"role": self.role.value, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, ready for a template.

    Attributes:
        messages: in the order in which they were written.
        tools: JSON schemas in the order and with the key order in which they were written.
        template_variables: what the client hands to the template besides (``chat_template_kwargs``).
        add_generation_prompt: end with the opening of an assistant turn.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True

    def template_messages(self) -> list[dict[str, Any]]:
        return [message.for_template() for message in self.messages]
