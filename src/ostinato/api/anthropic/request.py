"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from ostinato.api import structured, unsupported
from ostinato.api.anthropic.blocks import CacheControl, InputMessage, SystemPrompt, TextBlock
from ostinato.api.anthropic.conversation import Conversation
from ostinato.api.anthropic.errors import NO_THREADS
from ostinato.api.anthropic.marks import marks_of
from ostinato.api.anthropic.pairing import require_answered_calls
from ostinato.api.anthropic.tools import (
    ToolChoiceField,
    ToolField,
    definitions,
    in_client_form,
    searches,
)
from ostinato.api.anthropic.version import WITHOUT_SAMPLING
from ostinato.api.backend import ServedModel
from ostinato.api.fields import ApiModel, GenerationBody, Text
from ostinato.api.prompt import Prompt, TTLClass
from ostinato.api.tool_calling import ToolChoice, ToolUse, plan_tools
from ostinato.api.tool_search import SearchKind, ToolCatalog
from ostinato.engine.grammar.spec import Grammar
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.product.breakpoints import (
    require_at_most_four,
    require_long_before_short,
    require_room_for_automatic,
)
from ostinato.product.diagnosis import Change

DEFAULT_EFFORT = "high"

_REFUSED: Mapping[str, tuple[Any, ...]] = {
    **unsupported.SAMPLING,
    "mcp_servers": (None, []),
    "container": (None,),
    "context_management": (None, {}),
    "fallbacks": (None, []),
}
_INSTEAD = {
    "n": "a message is one answer: send several requests, whose prompt is then read from the cache",
    "stop": "here it is stop_sequences",
    "response_format": "here it is output_config.format",
}
"""Declared for other dialects, but refused here."""


class Thinking(ApiModel):
    """Whether the model thinks before it answers; its template decides what comes of it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None

    @property
    def is_on(self) -> bool:
        return self.type != "disabled"


class JsonFormat(ApiModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(ApiModel):
    """What the answer looks like."""

    format: JsonFormat | None = Field(default=None, description="Answers that are JSON.")
    effort: Text | None = None


class Diagnostics(ApiModel):
    """Asks what keeps this request from reading what an earlier one left in the cache."""

    previous_message_id: Text | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A conversation in canonical form.

    Attributes:
        prompt: all of it.
        loaded: names of deferred tools that it has brought in.
        searches: its search tools by name.
    """

    prompt: Prompt
    loaded: tuple[str, ...]
    searches: Mapping[str, SearchKind]


class ConversationFields(ApiModel):
    """What is counted and what is answered."""

    messages: list[InputMessage]
    system: SystemPrompt | None = None
    tools: list[ToolField] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = Field(
        default=None, description="A breakpoint on the last block that may have one."
    )
    output_config: OutputConfig | None = None

    @cached_property
    def parsed(self) -> Parsed:
        """The conversation in canonical form; checked as far as it can be without a model.

        Raises:
            InvalidRequestError: naming the place.
        """
        self._check_messages()
        tools = definitions(self.tools or ())
        conversation = Conversation(ToolCatalog(tools).reference_text)
        conversation.add_system(self.system)
        conversation.add(self.messages)
        require_answered_calls(self.messages)
        mark = None if self.cache_control is None else self.cache_control.breakpoint()
        prompt = Prompt(
            messages=tuple(conversation.messages),
            tools=tools,
            template_variables={}
            if self.thinking is None
            else {"enable_thinking": self.thinking.is_on},
            automatic_breakpoint=mark,
        )
        self._check_marks(prompt)
        return Parsed(prompt, tuple(conversation.loaded), searches(self.tools or ()))

    def _check_marks(self, prompt: Prompt) -> None:
        marks = marks_of(self.tools or (), self.system or (), self.messages)
        require_at_most_four(marks)
        require_long_before_short(marks)
        segments = prompt.segments()
        require_long_before_short(segments)
        found = [segment.breakpoint for segment in segments]
        if any(mark is not None and not mark.explicit for mark in found):
            require_room_for_automatic(len(marks))

    def _check_messages(self) -> None:
        if not self.messages:
            raise InvalidRequestError("messages must have at least one message", param="messages")
        if self.messages[-1].role == "assistant":
            raise InvalidRequestError(
                "messages: the conversation must end with a user message; an answer that is begun by the "
                "client (prefill) is not supported, output_config.format is",
                param="messages",
            )
        if self.tool_choice is not None and not self.tools:
            raise InvalidRequestError(
                "tool_choice is allowed only together with tools", param="tool_choice"
            )


class CountTokensRequest(ConversationFields):
    """Body of a count."""

    model: Text = Field(description="Name of a served model; see /v1/models.")


class MessagesRequest(ConversationFields, GenerationBody):
    """Body of a message."""

    max_tokens: Annotated[int, Field(ge=0)] = Field(
        description="Most tokens to generate; 0 fills the cache and generates nothing."
    )
    stop_sequences: list[Text] | None = None
    output_format: JsonFormat | None = Field(
        default=None, description="Older name of output_config.format."
    )
    diagnostics: Diagnostics | None = None
    speed: Literal["standard", "fast"] | None = None
    thread: Any = Field(
        default=None, description="Not supported; clients then send the whole conversation."
    )

    @property
    def is_prewarm(self) -> bool:
        return self.max_tokens == 0

    @property
    def clips_max_tokens(self) -> bool:
        """Anthropic's `max_tokens` is a bound that is often far beyond the context."""
        return True

    def check(self) -> None:
        """Refuse what types alone cannot tell.

        Raises:
            InvalidRequestError: naming the field.
        """
        unsupported.refuse_unsupported(self.model_extra, _REFUSED)
        given = {
            "n": self.n not in (None, 1),
            "stop": self.stop,
            "response_format": self.response_format,
        }
        for name, is_given in given.items():
            if is_given:
                raise unsupported.unsupported(name, _INSTEAD[name])
        if self.thread:
            raise InvalidRequestError(
                "thread: this server holds no conversations; send all messages, whose prefix is then read from "
                "the cache",
                param="thread",
                code=NO_THREADS,
            )
        if self.is_prewarm:
            self._check_prewarm()
        _ = self.parsed

    def check_version(self, version: datetime.date) -> None:
        """Refuse what is gone since.

        Raises:
            InvalidRequestError: naming the field.
        """
        if version < WITHOUT_SAMPLING:
            return
        for name in ("temperature", "top_p", "top_k"):
            if getattr(self, name) is not None:
                raise InvalidRequestError(
                    f"{name} does not exist in anthropic-version {WITHOUT_SAMPLING} any more: leave it out, "
                    "or ask for 2023-06-01",
                    param=name,
                )
        for at, message in enumerate(self.messages):
            blocks = message.content if isinstance(message.content, list) else []
            for n, block in enumerate(blocks):
                if message.role == "user" and isinstance(block, TextBlock) and block.citations:
                    path = f"messages[{at}].content[{n}].citations"
                    raise InvalidRequestError(
                        f"{path} must be empty in a user message since anthropic-version {WITHOUT_SAMPLING}",
                        param=path,
                    )

    def to_params(self) -> SamplingParams:
        """The engine's view; a value out of range is reported under the name the client used.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        if self.is_prewarm:
            return SamplingParams.prewarm()
        try:
            params = self.sampling_params(max_tokens=self.max_tokens, logprobs=None)
            return replace(params, stop=tuple(self.stop_sequences or ()))
        except InvalidRequestError as error:
            raise self.in_client_terms(error) from error

    def constrained(self, params: SamplingParams, model: ServedModel) -> SamplingParams:
        """See `GenerationBody.constrained`; `output_config.format` counts too. Tools are added a round at a
        time, by `tool_use`."""
        if self.is_prewarm:
            return params
        params = super().constrained(params, model)
        known = params.grammar if isinstance(params.grammar, Grammar) else None
        grammar = structured.only_one([known, *self._formats()])
        return params if grammar is None else replace(params, grammar=grammar)

    def tool_use(self, model: ServedModel, found: Sequence[str] = ()) -> ToolUse | None:
        """How answers of `model` use tools; None if they call none.

        Args:
            model: that answers.
            found: deferred tools that searches of this request have brought in.

        Raises:
            InvalidRequestError: a tool or the choice is malformed, or cannot be had of this model.
        """
        if self.is_prewarm:
            return None
        tools, loaded = self.parsed.prompt.tools, (*self.parsed.loaded, *found)
        try:
            return plan_tools(tools, self._choice(), model.tool_call_style, loaded=loaded)
        except InvalidRequestError as error:
            raise in_client_form(error) from error

    def to_prompts(self) -> tuple[Prompt]:
        """The conversation in canonical form; see `parsed`."""
        return (self.parsed.prompt,)

    def in_client_terms(self, error: RequestError) -> RequestError:
        """The engine's complaint, under the names of this dialect."""
        if error.param == "prompt":
            return type(error)(str(error), param="messages", code=error.code)
        if error.param == "stop":
            message = re.sub(r"\bstop\b", "stop_sequences", str(error), count=1)
            return type(error)(message, param="stop_sequences", code=error.code)
        return in_client_form(error)

    def longest_ttl(self) -> str | None:
        """Of all breakpoints, for the ledger; None without any."""
        marks = [segment.breakpoint for segment in self.parsed.prompt.segments()]
        ttls = {mark.ttl for mark in marks if mark is not None}
        if not ttls:
            return None
        return "1h" if TTLClass.LONG in ttls else "5m"

    def cache_settings(self, betas: Sequence[str]) -> dict[Change, Any]:
        """What a diagnosis compares besides the prompt; defaults are as absent."""
        config = self.output_config or OutputConfig()
        effort = None if config.effort == DEFAULT_EFFORT else config.effort
        thinking = None if self.thinking is None else self.thinking.model_dump()
        choice = None if self._choice() == ToolChoice() else self.tool_choice
        form = config.format or self.output_format
        others = [None if choice is None else choice.model_dump(), list(betas)]
        return {
            Change.MODEL: None if self.speed == "standard" else self.speed,
            Change.CACHE_KEY: self.cache_salt,
            Change.TEXT_FORMAT: None if form is None else form.schema_,
            Change.REASONING_EFFORT: [thinking, effort] if thinking or effort else None,
            Change.OTHER_SETTINGS: others if any(others) else None,
        }

    def _choice(self) -> ToolChoice:
        return ToolChoice() if self.tool_choice is None else self.tool_choice.choice()

    def _formats(self) -> list[Grammar | None]:
        config = self.output_config or OutputConfig()
        forms = {"output_config.format": config.format, "output_format": self.output_format}
        return [
            structured.schema_format(form.schema_, f"{name}.schema", is_strict=True)
            for name, form in forms.items()
            if form is not None
        ]

    def _check_prewarm(self) -> None:
        """Anthropic's refusals."""
        config = self.output_config or OutputConfig()
        with_what = {
            "stream": self.streams,
            "thinking": self.thinking is not None and self.thinking.is_on,
            "output_config.format": config.format is not None,
            "output_format": self.output_format is not None,
            "tool_choice": self.tool_choice is not None
            and self.tool_choice.type in ("any", "tool"),
        }
        for name, is_given in with_what.items():
            if is_given:
                raise InvalidRequestError(
                    f"max_tokens: 0 fills the cache and generates nothing, so {name} is not allowed with it",
                    param=name,
                )
