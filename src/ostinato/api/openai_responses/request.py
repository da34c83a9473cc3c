"""The body of POST /v1/responses, and of POST /v1/responses/input_tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from ostinato.api import structured, unsupported
from ostinato.api.backend import ServedModel
from ostinato.api.fields import (
    NO_EFFORT,
    ApiModel,
    GenerationBody,
    Text,
    text_or_list,
    union_of,
)
from ostinato.api.openai_caching import CachingFields
from ostinato.api.openai_responses.items import (
    Item,
    as_items,
    loaded_functions,
    messages_of,
)
from ostinato.api.openai_responses.repeated import require_repeatable
from ostinato.api.openai_responses.tools import (
    SEARCH_NAME,
    Toolbox,
    in_flat_form,
    read_tools,
    require_search,
    tool_choice,
)
from ostinato.api.prompt import Message, Prompt, Role, TextPart
from ostinato.api.tool_calling import ToolMode, ToolUse, plan_tools
from ostinato.engine.grammar.spec import Grammar, json_object
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.models.chat_template import refuse_reserved
from ostinato.product.diagnosis import Change

LOGPROBS = "message.output_text.logprobs"
"""The entry of `include` that asks for log-probabilities."""
MAX_METADATA = 16

_OFF = unsupported.SAMPLING["use_beam_search"]
_EMPTY = unsupported.SAMPLING["bad_words"]
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    **unsupported.SAMPLING,
    "conversation": (None,),
    "prompt": (None,),
    "context_management": _EMPTY,
    "moderation": (None,),
    "personality": (None,),
}
_NOT_HERE: Mapping[str, tuple[Any, ...]] = {
    "background": _OFF,
    "n": (None, 1),
    "stop": _EMPTY,
    "stop_token_ids": _EMPTY,
    "response_format": (None,),
}
"""Declared, but refused: answers are complete when they are sent, and end where the model ends them."""
_INSTEAD = {
    "background": "answers are generated while the client waits; use stream: true for long ones",
    "n": "a response is one answer: send several requests, whose prompt is then read from the cache",
    "stop": "it belongs to Chat Completions",
    "stop_token_ids": "it belongs to Chat Completions",
    "response_format": "it belongs to Chat Completions; here it is text.format",
}


class TextConfig(ApiModel):
    """What the text looks like."""

    format: dict[str, Any] | None = Field(
        default=None, description="type text, json_object, or json_schema with schema and strict."
    )
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(ApiModel):
    """How much a model thinks is its own affair here, except for not at all."""

    effort: Text | None = Field(
        default=None, description="none: the template's enable_thinking is false; else no effect."
    )
    summary: Text | None = None


def _word_or_object(value: Any) -> str | None:
    if isinstance(value, str):
        return "~word"
    return "~object" if isinstance(value, dict) else None


class ResponsesRequest(GenerationBody, CachingFields):
    """Body of a response."""

    input: (
        Annotated[
            Annotated[Text, Tag("~text")] | Annotated[list[Item], Tag("~list")],
            union_of(text_or_list, "a string or a list of items"),
        ]
        | None
    ) = None
    instructions: Text | None = Field(
        default=None, description="A system message before everything; not carried over."
    )
    previous_response_id: Text | None = Field(
        default=None, description="Continue that response; its tokens are reused exactly."
    )
    store: bool | None = Field(default=None, description="Keep the response; default: true.")
    background: bool | None = None
    max_output_tokens: int | None = None
    metadata: Annotated[dict[str, Text], Field(max_length=MAX_METADATA)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("~word")]
            | Annotated[dict[str, Any], Tag("~object")],
            union_of(_word_or_object, "'none', 'auto', 'required' or an object"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[Text] | None = None
    top_logprobs: int | None = None
    service_tier: Text | None = None
    safety_identifier: Text | None = None
    user: Text | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def accounting_key(self) -> str | None:
        """See `GenerationBody.accounting_key`."""
        return self.prompt_cache_key

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    @property
    def is_prewarm(self) -> bool:
        return self.cache_options.prewarm is True

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def check(self) -> None:
        """Refuse what types alone cannot tell.

        Raises:
            InvalidRequestError: naming the field.
        """
        require_repeatable(self)
        unsupported.refuse_unsupported(self.model_extra, _REFUSED)
        given = {name: getattr(self, name) for name in _NOT_HERE}
        for name, value in given.items():
            if value not in _NOT_HERE[name]:
                raise unsupported.unsupported(name, _INSTEAD[name])
        require_search(self._own_tools)
        if not self.input and self.previous_response_id is None:
            raise InvalidRequestError(
                "input is required: a string, or a list of at least one item", param="input"
            )

    def to_params(self) -> SamplingParams:
        """The engine's view; a value out of range is reported under the name the client used.

        Raises:
            InvalidRequestError: a value is out of range.
        """
        if self.is_prewarm:
            return SamplingParams.prewarm()
        logprobs = (self.top_logprobs or 0) if self.wants_logprobs else None
        try:
            return self.sampling_params(max_tokens=self.max_output_tokens, logprobs=logprobs)
        except InvalidRequestError as error:
            raise self.in_client_terms(error) from error

    def constrained(self, params: SamplingParams, model: ServedModel) -> SamplingParams:
        """See `GenerationBody.constrained`; `text.format` counts too. Tools are added a round at a time, by
        `tool_use`."""
        if self.is_prewarm:
            return params
        params = super().constrained(params, model)
        grammar = structured.only_one([_as_grammar(params), self._text_format()])
        return params if grammar is None else replace(params, grammar=grammar)

    @cached_property
    def _own_tools(self) -> Toolbox:
        return read_tools(self.tools)

    def toolbox(self, items: Sequence[Item], first: int = 0) -> Toolbox:
        """The tools of the request and of its conversation; arguments as for `prompt`.

        Raises:
            InvalidRequestError: one is malformed, or of a kind that is not served.
        """
        return self._own_tools.with_loaded(loaded_functions(items, first))

    def tool_use(
        self, model: ServedModel, toolbox: Toolbox, found: Sequence[str] | None
    ) -> ToolUse | None:
        """How answers of `model` use tools; None if they call none.

        Args:
            model: that answers.
            toolbox: of the request and its conversation.
            found: deferred tools that searches of this request have brought in; None before any.

        Raises:
            InvalidRequestError: a tool or the choice is malformed, or cannot be had of this model.
        """
        if self.is_prewarm:
            return None
        choice = tool_choice(self.tool_choice, is_parallel=self.parallel_tool_calls is not False)
        if found is not None and choice.names == (SEARCH_NAME,):
            choice = replace(choice, mode=ToolMode.AUTO, names=None)  # it has searched as it had to
        loaded = (*toolbox.loaded, *(found or ()))
        try:
            return plan_tools(toolbox.definitions, choice, model.tool_call_style, loaded=loaded)
        except InvalidRequestError as error:
            raise in_flat_form(error) from error

    def to_prompts(self) -> tuple[Prompt]:
        """The input alone; see `prompt`."""
        return (self.prompt(self.input_items()),)

    def prompt(self, items: Sequence[Item], first: int = 0) -> Prompt:
        """The conversation in canonical form.

        Args:
            items: of the responses before this one, and of its input.
            first: where its input begins.

        Raises:
            InvalidRequestError: an item cannot be read.
        """
        variables = dict(self.chat_template_kwargs or {})
        refuse_reserved(variables)
        if self.reasoning is not None and self.reasoning.effort == NO_EFFORT:
            variables.setdefault("enable_thinking", False)
        return Prompt(
            messages=(*self._instructions(), *messages_of(items, self.breakpoint_of, first)),
            tools=self.toolbox(items, first).definitions,
            template_variables=variables,
            implicit_breakpoint=self.implicit_breakpoint(),
        )

    def input_items(self) -> list[Item]:
        return as_items(self.input or [])

    def in_client_terms(self, error: RequestError) -> RequestError:
        """The engine's complaint, under the names of this dialect."""
        renamed = {
            "prompt": "input",
            "messages": "input",
            "max_tokens": "max_output_tokens",
            "logprobs": "top_logprobs",
        }
        name = renamed.get(error.param or "")
        if name is None:
            return in_flat_form(error)
        message = re.sub(rf"\b{error.param}\b", name, str(error))
        return type(error)(message, param=name, code=error.code)

    def cache_settings(self) -> dict[Change, Any]:
        """What a diagnosis compares besides the prompt; defaults are as absent."""
        text, reasoning = self.text or TextConfig(), self.reasoning or Reasoning()
        keys = [self.cache_salt, self.prompt_cache_key]
        return {
            Change.CACHE_KEY: keys if any(keys) else None,
            Change.SERVICE_TIER: None if self.service_tier == "auto" else self.service_tier,
            Change.TEXT_FORMAT: None if text.format == {"type": "text"} else text.format,
            Change.REASONING_EFFORT: reasoning.effort,
            Change.VERBOSITY: None if text.verbosity == "medium" else text.verbosity,
        }

    def _instructions(self) -> tuple[Message, ...]:
        if self.instructions is None:
            return ()
        return (Message(Role.SYSTEM, (TextPart(self.instructions),)),)

    def _text_format(self) -> Grammar | None:
        value = None if self.text is None else self.text.format
        kind = None if value is None else value.get("type")
        if value is None or kind == "text":
            return None
        if kind == "json_object":
            return json_object("text.format")
        if kind != "json_schema":
            raise InvalidRequestError(
                "text.format.type must be 'text', 'json_object' or 'json_schema', not "
                f"{str(kind)[:40]!r}",
                param="text.format.type",
            )
        return structured.schema_format(
            value.get("schema"), "text.format.schema", is_strict=value.get("strict") is True
        )


def _as_grammar(params: SamplingParams) -> Grammar | None:
    return params.grammar if isinstance(params.grammar, Grammar) else None
