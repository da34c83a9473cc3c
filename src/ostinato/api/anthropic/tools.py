"""Anthropic's tools and its `tool_choice`, in canonical form.

| type                                        | becomes                                                       |
|---------------------------------------------|---------------------------------------------------------------|
| none or ``custom``                          | a tool that the client runs                                   |
| ``tool_search_tool_bm25``, `…_regex`, dated | a tool that this server runs: it brings in deferred ones      |
| all others                                  | refused: they need a model of Anthropic's, or a server's tool |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from ostinato.api.anthropic.blocks import Block, refuse_breakpoint
from ostinato.api.fields import ApiModel, Text
from ostinato.api.prompt import ToolDefinition
from ostinato.api.tool_calling import ToolChoice, ToolMode
from ostinato.api.tool_search import SearchKind, search_schema
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE

_SEARCH_TYPE = re.compile(r"tool_search_tool_(bm25|regex)(?:_\d{8})?")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MODES: Mapping[str, ToolMode] = {
    "auto": ToolMode.AUTO,
    "any": ToolMode.REQUIRED,
    "tool": ToolMode.REQUIRED,
    "none": ToolMode.NONE,
}


class ToolField(Block):
    """A tool, as the client defines it."""

    type: Text | None = None
    name: Text
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = Field(
        default=None, description="Keep it out of the prompt until a tool reference brings it in."
    )
    strict: bool | None = None

    @property
    def search_kind(self) -> SearchKind | None:
        """How it searches, if it is a search tool."""
        found = _SEARCH_TYPE.fullmatch(self.type or "")
        return None if found is None else SearchKind(found[1])

    def definition(self, path: str) -> ToolDefinition:
        """Its canonical form.

        Raises:
            InvalidRequestError: it is malformed, or of a kind that is not run here.
        """
        if self.defer_loading:
            refuse_breakpoint(self, path, "a tool with defer_loading")
        kind = self.search_kind
        if kind is not None:
            if self.defer_loading:
                raise InvalidRequestError(
                    f"{path}.defer_loading: a search tool cannot be deferred itself",
                    param=f"{path}.defer_loading",
                )
            return ToolDefinition(search_schema(self.name, kind), self.breakpoint(), path=path)
        return ToolDefinition(
            self._schema(path), self.breakpoint(), deferred=self.defer_loading is True, path=path
        )

    def _schema(self, path: str) -> dict[str, Any]:
        if self.type not in (None, "custom"):
            raise InvalidRequestError(
                f"{path}: tools of type {self.type[:80]!r} are not run by this server; define the tool with "
                "an input_schema",
                param=f"{path}.type",
                code=UNSUPPORTED_CODE,
            )
        if not _NAME.fullmatch(self.name):
            raise InvalidRequestError(
                f"{path}.name must be 1 to 128 letters, digits, '_' or '-', not {self.name[:80]!r}",
                param=f"{path}.name",
            )
        if self.input_schema is None or self.input_schema.get("type") != "object":
            raise InvalidRequestError(
                f"{path}.input_schema must be a JSON schema with type 'object'",
                param=f"{path}.input_schema",
            )
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.input_schema
        if self.strict:
            function["strict"] = True
        return {"type": "function", "function": function}


class ToolChoiceField(ApiModel):
    """Whether and how tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: Text | None = Field(default=None, description="Of the tool, for type 'tool'.")
    disable_parallel_tool_use: bool | None = None

    def choice(self) -> ToolChoice:
        """Its canonical form.

        Raises:
            InvalidRequestError: a name is missing.
        """
        if self.type == "tool" and self.name is None:
            raise InvalidRequestError(
                "tool_choice.name is required for type 'tool'", param="tool_choice.name"
            )
        return ToolChoice(
            mode=_MODES[self.type],
            names=(self.name,) if self.type == "tool" and self.name is not None else None,
            parallel=self.disable_parallel_tool_use is not True,
        )


def definitions(tools: Sequence[ToolField]) -> tuple[ToolDefinition, ...]:
    """All tools in their order.

    Raises:
        InvalidRequestError: one is malformed, or none is there from the start.
    """
    found = tuple(tool.definition(f"tools[{at}]") for at, tool in enumerate(tools))
    if found and all(tool.deferred for tool in found):
        raise InvalidRequestError(
            "tools: at least one tool must be there from the start, without defer_loading",
            param="tools",
        )
    return found


def searches(tools: Sequence[ToolField]) -> dict[str, SearchKind]:
    """The search tools among them, by name."""
    kinds = {tool.name: tool.search_kind for tool in tools}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def in_client_form(error: RequestError) -> RequestError:
    """An error about a canonical tool, with the path that the client wrote."""
    if error.param is None or ".function." not in error.param:
        return error

    def renamed(text: str) -> str:
        flat = text.replace(".function.parameters", ".input_schema")
        return flat.replace(".function.", ".")

    return type(error)(renamed(str(error)), param=renamed(error.param), code=error.code)
