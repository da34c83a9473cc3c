"""Tool calling, the same in every dialect: what may be called, how answers are held to it, what they called.

tools, tool_choice ──► plan_tools ──► ToolUse ──► constrain  what an answer may be
                                             └──► parser     for each answer's text; see `AnswerReader`
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ostinato.api.prompt import ToolDefinition
from ostinato.engine.grammar.spec import Grammar, GrammarKind, GrammarSpec
from ostinato.engine.grammar.tools import (
    FunctionSchema,
    calls_or_json,
    no_calls,
    optional_calls,
    required_calls,
)
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE
from ostinato.models.tools.parser import ToolCallParser
from ostinato.models.tools.syntax import SYNTAXES, ToolCallStyle, ToolCallSyntax


class ToolMode(StrEnum):
    """Who decides whether a tool is called."""

    AUTO = "auto"
    """The model."""
    REQUIRED = "required"
    """The client: at least one call."""
    NONE = "none"
    """The client: no call. The tools stay in the prompt, so that its prefix stays in the cache; the model is
    kept from opening one."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What the client wants.

    Attributes:
        mode: whether tools are called.
        names: the only ones that may be; None: all.
        parallel: whether one answer may call several times.
        param: the request's field, for errors.
    """

    mode: ToolMode = ToolMode.AUTO
    names: tuple[str, ...] | None = None
    parallel: bool = True
    param: str = "tool_choice"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How one call's answers use tools.

    Attributes:
        syntax: how the model writes calls.
        functions: what may be called.
        is_required: an answer is calls and nothing else.
        max_calls: of one answer; None: no bound; 0: it may not open one.
    """

    syntax: ToolCallSyntax
    functions: tuple[FunctionSchema, ...]
    is_required: bool
    max_calls: int | None

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """`params` under which every call is sound, or none is opened; text in the form that they ask for stays
        possible.

        Raises:
            InvalidRequestError: what they ask for besides cannot be had together with tools.
        """
        if self.max_calls == 0:
            return replace(params, grammar=params.grammar or no_calls(self.syntax, self.functions))
        shown = (*params.shown_special_tokens, self.syntax.opening)
        return replace(params, grammar=self._grammar(params.grammar), shown_special_tokens=shown)

    def parser(self) -> ToolCallParser | None:
        """For the text of one answer; None if there is nothing but text in it."""
        if self.max_calls == 0:
            return None
        names = [function.name for function in self.functions]
        return ToolCallParser(self.syntax, names, self.max_calls)

    def _grammar(self, wanted: GrammarSpec | None) -> GrammarSpec:
        if self.is_required:
            return required_calls(self.syntax, self.functions, self.max_calls)
        if wanted is None:
            return optional_calls(self.syntax, self.functions, self.max_calls)
        if isinstance(wanted, Grammar) and wanted.kind is GrammarKind.JSON_SCHEMA:
            return calls_or_json(self.syntax, self.functions, self.max_calls, wanted)
        raise InvalidRequestError(
            "tools and a grammar that is not JSON cannot be had in one request", param="tools"
        )


def plan_tools(
    tools: Sequence[ToolDefinition],
    choice: ToolChoice,
    style: ToolCallStyle | None,
    *,
    loaded: Collection[str] = (),
) -> ToolUse | None:
    """How answers use `tools`; None if there are none to call, or none that could be told from text.

    Args:
        tools: all of the request's.
        choice: what the client wants.
        style: of the served model; None if its calls cannot be read.
        loaded: deferred tools that the conversation has brought in.

    Raises:
        InvalidRequestError: a tool is malformed, `choice` names one that is not there, or calls are required
            of a model whose calls cannot be read.
    """
    functions = [
        _function(tool.schema, tool.path or f"tools[{at}]") for at, tool in enumerate(tools)
    ]
    _require_distinct(functions)
    present = [
        function
        for function, tool in zip(functions, tools, strict=True)
        if not tool.deferred or function.name in loaded
    ]
    callable_ = tuple(_chosen(present, choice))
    if not callable_:
        return None
    is_required = choice.mode is ToolMode.REQUIRED
    if style is None:
        if not is_required:
            return None
        raise InvalidRequestError(
            f"{choice.param}: calls cannot be required of this model, since its chat template shows no way "
            "of writing them that is known here; if it has one, start the server with --tool-call-parser",
            param=choice.param,
            code=UNSUPPORTED_CODE,
        )
    syntax = SYNTAXES[style]
    max_calls = None if choice.parallel and not syntax.calls_once else 1
    if choice.mode is ToolMode.NONE:
        max_calls = 0
    return ToolUse(syntax, callable_, is_required, max_calls)


def _chosen(functions: Sequence[FunctionSchema], choice: ToolChoice) -> list[FunctionSchema]:
    if choice.mode is ToolMode.REQUIRED and not functions:
        raise InvalidRequestError(
            f"{choice.param} requires a call, but there are no tools", param=choice.param
        )
    if choice.names is None:
        return list(functions)
    declared = {function.name for function in functions}
    for name in choice.names:
        if name not in declared:
            raise InvalidRequestError(
                f"{choice.param} names {name[:80]!r}, which is not among the tools",
                param=choice.param,
            )
    return [function for function in functions if function.name in choice.names]


def _function(schema: Mapping[str, Any], path: str) -> FunctionSchema:
    kind, function = schema.get("type"), schema.get("function")
    if kind != "function" or not isinstance(function, Mapping):
        raise InvalidRequestError(
            f"{path} must be {{'type': 'function', 'function': {{…}}}}", param=path
        )
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(
            f"{path}.function.name must be a text", param=f"{path}.function.name"
        )
    where = f"{path}.function.parameters"
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequestError(f"{where} must be a JSON schema, an object", param=where)
    return FunctionSchema(name, parameters, where, strict=function.get("strict") is True)


def _require_distinct(functions: Sequence[FunctionSchema]) -> None:
    seen: set[str] = set()
    for function in functions:
        if function.name in seen:
            where = function.param.replace(".parameters", ".name")
            raise InvalidRequestError(
                f"{where}: there is another tool called {function.name[:80]!r}", param=where
            )
        seen.add(function.name)
