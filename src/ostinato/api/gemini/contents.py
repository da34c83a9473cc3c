"""From Gemini's contents to the canonical `Prompt`.

    systemInstruction ─► system message
    user: text parts ─► user message; functionResponse ─► tool message
    model: text, thoughts and calls ─► one assistant message

Contents of one role that follow each other are one turn: clients that stream keep an answer as many small
contents, and its text must become the very tokens again that were generated. Calls without ids are tied to
their results by name and order.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ostinato.api.gemini.schema import to_json_schema
from ostinato.api.gemini.wire import Content, FunctionDeclaration, Part, PrefixFields, Tool
from ostinato.api.prompt import (
    Breakpoint,
    Message,
    Prompt,
    Role,
    TextPart,
    ToolCall,
    ToolDefinition,
)
from ostinato.api.unsupported import unsupported
from ostinato.errors import InvalidRequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE

_UNREADABLE = {
    "inline_data": ("inlineData", "images, audio, video or documents"),
    "file_data": ("fileData", "files"),
    "executable_code": ("executableCode", "code that it is to execute"),
    "code_execution_result": ("codeExecutionResult", "results of executed code"),
    "tool_call": ("toolCall", "calls of Google's own tools"),
    "tool_response": ("toolResponse", "results of Google's own tools"),
}
_USER_ROLES = ("user", "function", None, "")
_MODEL_ROLE = "model"


@dataclass(frozen=True, slots=True)
class CachedPrompt:
    """A prompt that begins with the content of a cache object, or with none.

    Attributes:
        prompt: all of it.
        num_cached_segments: how many of its segments the object holds; they come first.
    """

    prompt: Prompt
    num_cached_segments: int = 0

    def cached_tokens(self, boundaries: Sequence[int | None]) -> int:
        """Leading tokens of the encoded prompt that are the object's.

        A template may show tools behind messages that are not the object's: what stands there cannot be told
        from them by its position, and is not counted.

        Args:
            boundaries: ends of the prompt's segments, in tokens; None where the template does not show one.
        """
        held = boundaries[: self.num_cached_segments]
        others = [end for end in boundaries[self.num_cached_segments :] if end is not None]
        limit = min(others, default=None)
        inside = [end for end in held if end is not None and (limit is None or end <= limit)]
        return max(inside, default=0)


def build_prompt(
    fields: PrefixFields,
    cached: PrefixFields | None = None,
    variables: Mapping[str, Any] | None = None,
) -> CachedPrompt:
    """The prompt of a request.

    Args:
        fields: of the request.
        cached: what its cache object holds; then `fields` has contents only.
        variables: for the chat template.

    Raises:
        InvalidRequestError: a part cannot be read; names it.
    """
    head = fields if cached is None else cached
    tools = _tools(head.tools or ())
    turns = _Turns()
    if head.system_instruction is not None:
        turns.add_system(head.system_instruction)
    if cached is not None:
        turns.add(cached.contents)
        turns.close()
    num_cached = len(tools) + turns.num_segments if cached is not None else 0
    turns.add(fields.contents)
    prompt = Prompt(
        messages=tuple(turns.messages),
        tools=tools,
        template_variables=dict(variables or {}),
        implicit_breakpoint=Breakpoint(explicit=False),
    )
    return CachedPrompt(prompt, num_cached)


def declared_functions(tools: Sequence[Tool]) -> list[tuple[str, FunctionDeclaration]]:
    """All functions of a request, each with its path.

    Raises:
        InvalidRequestError: a tool is none of the client's own functions.
    """
    found = []
    for at, tool in enumerate(tools):
        for name, value in (tool.model_extra or {}).items():
            if value is not None:
                raise unsupported(
                    f"tools[{at}].{name}",
                    "only functionDeclarations are served here: leave it out",
                )
        found += [
            (f"tools[{at}].functionDeclarations[{n}]", function)
            for n, function in enumerate(tool.function_declarations or ())
        ]
    return found


def _tools(tools: Sequence[Tool]) -> tuple[ToolDefinition, ...]:
    return tuple(ToolDefinition(_definition(f, path)) for path, f in declared_functions(tools))


def _definition(function: FunctionDeclaration, path: str) -> dict[str, Any]:
    """In OpenAI's form, which chat templates expect."""
    if function.parameters is not None and function.parameters_json_schema is not None:
        raise InvalidRequestError(
            f"{path} must have one of parameters and parametersJsonSchema, not both", param=path
        )
    described: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        described["description"] = function.description
    if function.parameters is not None:
        described["parameters"] = to_json_schema(function.parameters, f"{path}.parameters")
    elif function.parameters_json_schema is not None:
        described["parameters"] = function.parameters_json_schema
    return {"type": "function", "function": described}


@dataclass(slots=True)
class _Turns:
    """Messages, as contents are added."""

    messages: list[Message] = field(default_factory=list)
    _is_open: bool = False
    """Whether the last message takes more of its side's parts."""
    _num_calls: int = 0
    _unanswered: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By name of the function: ids of calls that have no result yet."""

    @property
    def num_segments(self) -> int:
        """As `Prompt.segments` counts them, without tools."""
        return sum(len(message.parts) + len(message.tool_calls) for message in self.messages)

    def add_system(self, content: Content) -> None:
        """The system instruction, before all contents."""
        texts = [
            _text(part, f"systemInstruction.parts[{at}]") for at, part in enumerate(content.parts)
        ]
        if texts:
            self.messages.append(Message(Role.SYSTEM, tuple(map(TextPart, texts))))

    def add(self, contents: Sequence[Content]) -> None:
        """More of the conversation."""
        for at, content in enumerate(contents):
            path = f"contents[{at}]"
            if content.role == _MODEL_ROLE:
                self._add_model(content, path)
            elif content.role in _USER_ROLES:
                self._add_user(content, path)
            else:
                raise InvalidRequestError(
                    f"{path}.role must be 'user' or 'model', not {str(content.role)[:40]!r}",
                    param=f"{path}.role",
                )

    def close(self) -> None:
        """What comes next of the model's side is a message of its own; the user's goes on."""
        if self.messages and self.messages[-1].role is Role.ASSISTANT:
            self._is_open = False

    def _add_user(self, content: Content, path: str) -> None:
        for at, part in enumerate(content.parts):
            where = f"{path}.parts[{at}]"
            if part.function_response is not None:
                self._add_result(part, where)
                continue
            last = self._open_message(Role.USER)
            self.messages[-1] = replace(last, parts=(*last.parts, TextPart(_text(part, where))))

    def _add_result(self, part: Part, where: str) -> None:
        result = part.function_response
        assert result is not None
        if result.parts:
            raise unsupported(
                f"{where}.functionResponse.parts", "this server reads text only: use response"
            )
        waiting = self._unanswered[result.name]
        call_id = result.id
        if call_id is None:
            call_id = waiting[0] if waiting else self._new_id()
        if call_id in waiting:
            waiting.remove(call_id)
        text = TextPart(json.dumps(result.response, ensure_ascii=False))
        self.messages.append(Message(Role.TOOL, (text,), name=result.name, tool_call_id=call_id))
        self._is_open = False

    def _add_model(self, content: Content, path: str) -> None:
        for at, part in enumerate(content.parts):
            where = f"{path}.parts[{at}]"
            last = self._open_message(Role.ASSISTANT)
            if part.function_call is not None:
                call = part.function_call
                call_id = call.id or self._new_id()
                self._unanswered[call.name].append(call_id)
                arguments = json.dumps(call.args or {}, ensure_ascii=False)
                made = ToolCall(call_id, call.name, arguments)
                self.messages[-1] = replace(last, tool_calls=(*last.tool_calls, made))
            elif part.thought:
                thought = (last.reasoning or "") + (part.text or "")
                self.messages[-1] = replace(last, reasoning=thought)
            else:
                text = last.text + _text(part, where)
                self.messages[-1] = replace(last, parts=(TextPart(text),) if text else ())

    def _open_message(self, role: Role) -> Message:
        """The last message if it is open and of this side, else a new one."""
        if not (self._is_open and self.messages[-1].role is role):
            self.messages.append(Message(role, ()))
            self._is_open = True
        return self.messages[-1]

    def _new_id(self) -> str:
        self._num_calls += 1
        return f"call_{self._num_calls - 1}"


def _text(part: Part, path: str) -> str:
    """The text of a part that must be one."""
    for name, (wire_name, what) in _UNREADABLE.items():
        if getattr(part, name) is not None:
            raise InvalidRequestError(
                f"{path}.{wire_name}: the served model reads text only, not {what}; send text parts",
                param=f"{path}.{wire_name}",
                code=UNSUPPORTED_CODE,
            )
    if part.text is None:
        raise InvalidRequestError(
            f"{path} must have a text, a functionCall (of the model) or a functionResponse (of the user)",
            param=path,
        )
    return part.text
