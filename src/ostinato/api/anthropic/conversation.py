"""From Anthropic's messages to canonical ones.

| block                   | becomes                                                                        |
|-------------------------|--------------------------------------------------------------------------------|
| system prompt           | the first system message, without a billing line                               |
| text                    | a part of its message                                                          |
| tool_use                | a call of its assistant message                                                |
| tool_result             | a tool message of its own, before or behind the user's text as it was written  |
| thinking                | the reasoning of its assistant message; shown if the model's template shows it |
| redacted_thinking       | nothing: it cannot be read here                                                |
| server_tool_use, result | a call and a tool message, between two assistant messages                      |

Neighbouring messages of one speaker become one, as Anthropic has it. System messages stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ostinato.api.anthropic.blocks import (
    Block,
    InputMessage,
    RedactedThinkingBlock,
    ServerToolUseBlock,
    TextBlock,
    ThinkingBlock,
    ToolReference,
    ToolResultBlock,
    ToolSearchResultBlock,
    ToolUseBlock,
    refuse_breakpoint,
    refuse_other,
)
from ostinato.api.anthropic.marks import longest
from ostinato.api.prompt import Breakpoint, Message, Role, TextPart, ToolCall
from ostinato.errors import InvalidRequestError

BILLING_LINE = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code puts in front of all others, for Anthropic's servers: another text at
every request."""
ERROR_MARK = "Error: "
"""Begins the result of a tool that failed: templates have no field for it."""

_BLOCKS_BY_ROLE = {
    "user": "'text' or 'tool_result'",
    "assistant": "'text', 'thinking', 'tool_use' or what a server tool left",
    "system": "'text'",
}

Loader = Callable[[Sequence[str]], str]
"""From names of deferred tools to the text that brings them in."""


@dataclass(slots=True)
class Conversation:
    """Canonical messages, built block by block.

    Attributes:
        load: writes what a tool reference brings in.
        messages: so far.
        loaded: names of the deferred tools that were brought in.
    """

    load: Loader
    messages: list[Message] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def add_system(self, system: str | Sequence[TextBlock] | None) -> None:
        """The top-level field; empty text is as none, and so is a billing line: nothing behind it would ever be
        read from the cache."""
        if isinstance(system, str):
            parts = [TextPart(system, path="system")] if system else []
        else:
            parts = [
                _text(block, f"system[{at}]")
                for at, block in enumerate(system or ())
                if not block.text.startswith(BILLING_LINE)
            ]
        if parts:
            self.messages.append(Message(Role.SYSTEM, tuple(parts)))

    def add(self, messages: Sequence[InputMessage]) -> None:
        """All messages, in order.

        Raises:
            InvalidRequestError: a block cannot be read or does not belong there.
        """
        for at, message in enumerate(messages):
            path = f"messages[{at}]"
            _require_place(messages, at, path)
            if isinstance(message.content, str):
                self._add_text_message(message, path)
                continue
            if not message.content:
                raise InvalidRequestError(
                    f"{path}.content must not be empty", param=f"{path}.content"
                )
            for n, block in enumerate(message.content):
                self._add_block(message.role, block, f"{path}.content[{n}]")

    def _add_text_message(self, message: InputMessage, path: str) -> None:
        assert isinstance(message.content, str)
        if not message.content:
            raise InvalidRequestError(f"{path}.content must not be empty", param=f"{path}.content")
        self._append(Role(message.role), TextPart(message.content, path=f"{path}.content"))

    def _add_block(self, role: str, block: Block, path: str) -> None:
        if isinstance(block, TextBlock):
            self._append(Role(role), _text(block, path))
        elif role == "user" and isinstance(block, ToolResultBlock):
            self._add_result(block, path)
        elif role == "assistant" and isinstance(block, ToolUseBlock | ServerToolUseBlock):
            self._add_call(block, path)
        elif role == "assistant" and isinstance(block, ToolSearchResultBlock):
            self._add_search_result(block, path)
        elif role == "assistant" and isinstance(block, ThinkingBlock):
            refuse_breakpoint(block, path, "thinking blocks")
            self._change(
                lambda last: replace(last, reasoning=_joined(last.reasoning, block.thinking))
            )
        elif role == "assistant" and isinstance(block, RedactedThinkingBlock):
            refuse_breakpoint(block, path, "thinking blocks")
        else:
            kind: Any = block
            raise refuse_other(kind, path, f"{_BLOCKS_BY_ROLE[role]} in a message of role {role!r}")

    def _append(self, role: Role, part: TextPart) -> None:
        last = self.messages[-1] if self.messages else None
        if role is Role.SYSTEM or last is None or last.role is not role:
            self.messages.append(Message(role, (part,)))
        else:
            self.messages[-1] = replace(last, parts=(*last.parts, part))

    def _change(self, change: Callable[[Message], Message]) -> None:
        """The last assistant message, or a new one."""
        last = self.messages[-1] if self.messages else None
        if last is None or last.role is not Role.ASSISTANT:
            self.messages.append(Message(Role.ASSISTANT, ()))
        self.messages[-1] = change(self.messages[-1])

    def _add_call(self, block: ToolUseBlock | ServerToolUseBlock, path: str) -> None:
        arguments = json.dumps(block.input, ensure_ascii=False)
        call = ToolCall(block.id, block.name, arguments, block.breakpoint(), path)
        self._change(lambda last: replace(last, tool_calls=(*last.tool_calls, call)))

    def _add_result(self, block: ToolResultBlock, path: str) -> None:
        parts = list(self._result_parts(block, path))
        if block.is_error and not parts[0].text.startswith(ERROR_MARK.strip()):
            parts[0] = replace(parts[0], text=ERROR_MARK + parts[0].text)
        self._append_result(block.tool_use_id, parts, block.breakpoint(), path)

    def _result_parts(self, block: ToolResultBlock, path: str) -> list[TextPart]:
        if not block.content:
            return [TextPart("", path=path)]
        if isinstance(block.content, str):
            return [TextPart(block.content, path=path)]
        parts: list[TextPart] = []
        references: list[ToolReference] = []
        for at, part in enumerate(block.content):
            where = f"{path}.content[{at}]"
            if isinstance(part, TextBlock):
                parts.append(TextPart(part.text, part.breakpoint(), where))
            elif isinstance(part, ToolReference):
                references.append(part)
            else:
                raise refuse_other(part, where, "'text' or 'tool_reference'")
        if references:
            parts.append(self._loading(references, path))
        return parts

    def _add_search_result(self, block: ToolSearchResultBlock, path: str) -> None:
        part = self._loading(block.content.tool_references or (), path)
        if block.content.error_message:
            part = replace(part, text=block.content.error_message)
        self._append_result(block.tool_use_id, [part], block.breakpoint(), path)

    def _loading(self, references: Sequence[ToolReference], path: str) -> TextPart:
        names = [reference.tool_name for reference in references]
        self.loaded += [name for name in names if name not in self.loaded]
        mark = longest(reference.breakpoint() for reference in references)
        return TextPart(self.load(names), mark, path)

    def _append_result(
        self, call_id: str, parts: list[TextPart], mark: Breakpoint | None, path: str
    ) -> None:
        if mark is not None:
            last = parts[-1]
            parts[-1] = replace(last, breakpoint=longest((last.breakpoint, mark)), path=path)
        self.messages.append(Message(Role.TOOL, tuple(parts), tool_call_id=call_id))


def _require_place(messages: Sequence[InputMessage], at: int, path: str) -> None:
    if messages[at].role == "system" and (at == 0 or messages[at - 1].role != "user"):
        raise InvalidRequestError(
            f"{path}: a message of role 'system' must follow one of role 'user'; what the conversation "
            "begins with goes into the top-level system field",
            param=f"{path}.role",
        )


def _text(block: TextBlock, path: str) -> TextPart:
    if not block.text:
        refuse_breakpoint(block, path, "empty text blocks")
        raise InvalidRequestError(f"{path}.text must not be empty", param=f"{path}.text")
    return TextPart(block.text, block.breakpoint(), path)


def _joined(earlier: str | None, text: str) -> str:
    return text if earlier is None else f"{earlier}\n{text}"
