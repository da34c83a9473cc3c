"""Function tools as the Responses API writes them, in canonical form.

Responses has a tool's name, description and parameters on one level, Chat Completions inside ``function``;
templates were trained on the latter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.api.prompt import ToolDefinition
from ostinato.api.tool_calling import ToolChoice, ToolMode
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE

_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
"""What a template is shown; the order is the client's."""


def tool_definitions(tools: Sequence[Mapping[str, Any]] | None) -> tuple[ToolDefinition, ...]:
    """`tools` of a request.

    Raises:
        InvalidRequestError: one is no function.
    """
    return tuple(_definition(tool, f"tools[{at}]") for at, tool in enumerate(tools or ()))


def _definition(tool: Mapping[str, Any], path: str) -> ToolDefinition:
    kind = tool.get("type")
    if kind != "function":
        raise InvalidRequestError(
            f"{path}: this server runs no tools of its own; of all tools only those of type 'function' are "
            f"supported, not {str(kind)[:40]!r}",
            param=f"{path}.type",
            code=UNSUPPORTED_CODE,
        )
    if tool.get("defer_loading") is True:
        raise InvalidRequestError(
            f"{path}.defer_loading is not supported in Responses: leave the tool out until it is needed",
            param=f"{path}.defer_loading",
            code=UNSUPPORTED_CODE,
        )
    # Null stands for absent: what the SDKs add of themselves must not reach the prompt.
    function = {
        name: value
        for name, value in tool.items()
        if name in _FUNCTION_FIELDS and value is not None
    }
    return ToolDefinition({"type": "function", "function": function})


def shown_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """`tools` as the response repeats them."""
    defaults = {"description": None, "parameters": None, "strict": False}
    return [{**defaults, **tool} for tool in tools or ()]


def tool_choice(choice: str | Mapping[str, Any] | None, *, is_parallel: bool) -> ToolChoice:
    """`tool_choice` in canonical form.

    Raises:
        InvalidRequestError: it is of a form that is not known.
    """
    if choice is None or isinstance(choice, str):
        return ToolChoice(ToolMode(choice or "auto"), None, is_parallel)
    kind = choice.get("type")
    if kind == "function":
        return ToolChoice(ToolMode.REQUIRED, (_name(choice, "tool_choice"),), parallel=False)
    if kind != "allowed_tools":
        raise InvalidRequestError(
            "tool_choice must be 'none', 'auto', 'required', or an object of type 'function' or "
            f"'allowed_tools', not of type {str(kind)[:40]!r}",
            param="tool_choice",
        )
    mode, tools = choice.get("mode", "auto"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequestError(
            "tool_choice.mode must be 'auto' or 'required'", param="tool_choice.mode"
        )
    if not isinstance(tools, list):
        raise InvalidRequestError(
            "tool_choice.tools must be a list of tools", param="tool_choice.tools"
        )
    names = tuple(_name(tool, f"tool_choice.tools[{at}]") for at, tool in enumerate(tools))
    return ToolChoice(ToolMode(mode), names, is_parallel)


def _name(tool: Any, path: str) -> str:
    name = tool.get("name") if isinstance(tool, Mapping) else None
    if not isinstance(name, str):
        raise InvalidRequestError(f"{path}.name must be the name of a tool", param=f"{path}.name")
    return name


def in_flat_form(error: RequestError) -> RequestError:
    """An error about a canonical tool, with the path that the client wrote."""
    if error.param is None or ".function" not in error.param:
        return error
    message = str(error).replace(".function.", ".")
    return type(error)(message, param=error.param.replace(".function", "", 1), code=error.code)
