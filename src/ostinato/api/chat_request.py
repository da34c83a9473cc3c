"""The body of POST /v1/chat/completions, and its way into the canonical `Prompt`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from ostinato.api import unsupported
from ostinato.api.backend import ServedModel
from ostinato.api.chat_pairing import require_answered_calls
from ostinato.api.fields import (
    NO_EFFORT,
    ApiModel,
    GenerationBody,
    Text,
    require_stream_for_options,
    text_or_list,
    union_of,
)
from ostinato.api.openai_caching import BreakpointField, BreakpointOf, CachingFields
from ostinato.api.prompt import (
    Message,
    Prompt,
    Role,
    TextPart,
    ToolCall,
    ToolDefinition,
)
from ostinato.api.tool_calling import ToolChoice, ToolMode, ToolUse, plan_tools
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE
from ostinato.models.chat_template import refuse_reserved

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}


class ContentPart(ApiModel):
    """One part of a message; only text can be read."""

    type: Text
    text: Text | None = None
    refusal: Text | None = None
    prompt_cache_breakpoint: BreakpointField | None = None


class FunctionCall(ApiModel):
    name: Text
    arguments: Text


class ToolCallField(ApiModel):
    id: Text
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(ApiModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: (
        Annotated[
            Annotated[Text, Tag("~text")] | Annotated[list[ContentPart], Tag("~list")],
            union_of(text_or_list, "a string or a list of content parts"),
        ]
        | None
    ) = None
    name: Text | None = None
    tool_calls: list[ToolCallField] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None


def _word_or_object(value: Any) -> str | None:
    if isinstance(value, str):
        return "~word"
    return "~object" if isinstance(value, dict) else None


class ChatRequest(GenerationBody, CachingFields):
    """Body of a chat completion."""

    messages: list[ChatMessage]
    max_tokens: int | None = Field(default=None, description="Older name of max_completion_tokens.")
    max_completion_tokens: int | None = Field(
        default=None, description="Most tokens to generate; default: what context and pool allow."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = Field(
        default=None,
        description="Functions that the model may call, in OpenAI's form.",
    )
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("~word")]
            | Annotated[dict[str, Any], Tag("~object")],
            union_of(_word_or_object, "'none', 'auto', 'required' or an object"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Text | None = Field(
        default=None, description="Only none: the template's enable_thinking is then false."
    )
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None

    @property
    def accounting_key(self) -> str | None:
        """See `GenerationBody.accounting_key`."""
        return self.prompt_cache_key

    def check(self) -> None:
        """Refuse what types alone cannot tell.

        Raises:
            InvalidRequestError: naming the field.
        """
        self.refuse_what_responses_has()
        unsupported.refuse_unsupported(self.model_extra, unsupported.CHAT)
        if self.reasoning_effort not in (None, NO_EFFORT):
            raise unsupported.unsupported(
                "reasoning_effort", "how much it thinks is the model's affair"
            )
        if self.stream_options is not None:
            extra = self.stream_options.model_extra
            unsupported.refuse_unsupported(extra, unsupported.STREAM_OPTIONS, "stream_options.")
        require_stream_for_options(self)

    def tool_use(self, model: ServedModel) -> ToolUse | None:
        """How answers of `model` use tools; None if they call none.

        Raises:
            InvalidRequestError: a tool or the choice is malformed, or cannot be had of this model.
        """
        tools = tuple(map(ToolDefinition, self.tools or ()))
        return plan_tools(tools, tool_choice(self), model.tool_call_style)

    def constrained(self, params: SamplingParams, model: ServedModel) -> SamplingParams:
        """See `GenerationBody.constrained`; with tools, every call is sound too."""
        params = super().constrained(params, model)
        use = self.tool_use(model)
        return params if use is None else use.constrain(params)

    def to_params(self) -> SamplingParams:
        """The engine's view; a value out of range is reported under the name the client used.

        Raises:
            InvalidRequestError: a value is out of range, or two fields contradict each other.
        """
        given = (self.max_tokens, self.max_completion_tokens)
        if None not in given and given[0] != given[1]:
            raise InvalidRequestError(
                f"max_tokens ({given[0]}) and max_completion_tokens ({given[1]}) are one setting "
                "under two names: send one of them",
                param="max_tokens",
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError(
                "top_logprobs is allowed only together with logprobs: true", param="top_logprobs"
            )
        try:
            return self.sampling_params(
                max_tokens=given[0] if given[1] is None else given[1],
                logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            )
        except InvalidRequestError as error:
            raise self.in_client_terms(error) from error

    def in_client_terms(self, error: RequestError) -> RequestError:
        """The engine's complaint, under the names of this dialect."""
        if error.param == "prompt":
            return type(error)(str(error), param="messages", code=error.code)
        renamed = {"logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            renamed["max_tokens"] = "max_completion_tokens"
        name = renamed.get(error.param or "")
        if name is None:
            return error
        message = re.sub(rf"\b{error.param}\b", name, str(error))
        return type(error)(message, param=name, code=error.code)

    def to_prompts(self) -> tuple[Prompt]:
        """The conversation in canonical form.

        Raises:
            InvalidRequestError: a message has not what its role needs, or calls and results do not pair.
        """
        if not self.messages:
            raise InvalidRequestError(
                "messages must have at least one message, not none", param="messages"
            )
        variables = dict(self.chat_template_kwargs or {})
        refuse_reserved(variables)
        if self.reasoning_effort == NO_EFFORT:
            variables.setdefault("enable_thinking", False)
        messages = tuple(
            _message(message, f"messages[{i}]", self.breakpoint_of)
            for i, message in enumerate(self.messages)
        )
        asks = self.add_generation_prompt is not False
        require_answered_calls(messages, asks_for_answer=asks)
        prompt = Prompt(
            messages=messages,
            tools=tuple(map(ToolDefinition, self.tools or ())),
            template_variables=variables,
            add_generation_prompt=asks,
            implicit_breakpoint=self.implicit_breakpoint(),
        )
        return (prompt,)


def tool_choice(body: ChatRequest) -> ToolChoice:
    """``tool_choice`` and ``parallel_tool_calls`` in canonical form.

    Raises:
        InvalidRequestError: `tool_choice` is of a form that nobody knows.
    """
    parallel = body.parallel_tool_calls is not False
    given = body.tool_choice
    if given is None or isinstance(given, str):
        mode = ToolMode(given or "auto")
        return ToolChoice(mode, None, parallel)
    if given.get("type") == "function":
        return ToolChoice(ToolMode.REQUIRED, (_tool_name(given, "tool_choice"),), False)
    if given.get("type") == "allowed_tools":
        allowed = given.get("allowed_tools")
        where = "tool_choice.allowed_tools"
        if not isinstance(allowed, dict) or not isinstance(allowed.get("tools"), list):
            raise InvalidRequestError(f"{where} must have a list of tools", param=where)
        mode = allowed.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise InvalidRequestError(
                f"{where}.mode must be 'auto' or 'required'", param=f"{where}.mode"
            )
        names = (_tool_name(tool, f"{where}.tools[{i}]") for i, tool in enumerate(allowed["tools"]))
        return ToolChoice(ToolMode(mode), tuple(names), parallel)
    raise InvalidRequestError(
        "tool_choice must be 'none', 'auto', 'required', or an object of type 'function' or "
        f"'allowed_tools', not of type {str(given.get('type'))[:40]!r}",
        param="tool_choice",
    )


def _tool_name(tool: Any, path: str) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequestError(f"{path}.function.name must be a text", param=path)
    return name


def _message(message: ChatMessage, path: str, breakpoint_of: BreakpointOf) -> Message:
    role = _ROLES[message.role]
    calls = tuple(
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or ()
    )
    if calls and role is not Role.ASSISTANT:
        raise InvalidRequestError(
            f"{path}.tool_calls is for assistant messages only, not for role {message.role!r}",
            param=f"{path}.tool_calls",
        )
    if role is Role.TOOL and message.tool_call_id is None:
        raise InvalidRequestError(
            f"{path}.tool_call_id is required for role 'tool': the id of the call it answers",
            param=f"{path}.tool_call_id",
        )
    return Message(
        role=role,
        parts=_parts(message, path, breakpoint_of, may_be_empty=bool(calls)),
        name=message.name,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content,
    )


def _parts(
    message: ChatMessage, path: str, breakpoint_of: BreakpointOf, *, may_be_empty: bool
) -> tuple[TextPart, ...]:
    if message.content is None:
        if may_be_empty:
            return ()
        raise InvalidRequestError(
            f"{path}.content is required for role {message.role!r}"
            + (" unless it has tool_calls" if message.role == "assistant" else ""),
            param=f"{path}.content",
        )
    if isinstance(message.content, str):
        return (TextPart(message.content),)
    return tuple(
        _part(part, f"{path}.content[{i}]", breakpoint_of) for i, part in enumerate(message.content)
    )


def _part(part: ContentPart, path: str, breakpoint_of: BreakpointOf) -> TextPart:
    if part.type in unsupported.CONTENT_PARTS:
        kind = unsupported.CONTENT_PARTS[part.type]
        raise InvalidRequestError(
            f"{path}: this server reads text only, not {kind}; send parts of type 'text'",
            param=f"{path}.type",
            code=UNSUPPORTED_CODE,
        )
    text = {"text": part.text, "refusal": part.refusal}.get(part.type, "")
    if part.type not in ("text", "refusal"):
        raise InvalidRequestError(
            f"{path}.type must be 'text', not {part.type[:40]!r}", param=f"{path}.type"
        )
    if text is None:
        raise InvalidRequestError(
            f"{path}.{part.type} is required for a part of type {part.type!r}",
            param=f"{path}.{part.type}",
        )
    return TextPart(text, breakpoint_of(part.prompt_cache_breakpoint))
