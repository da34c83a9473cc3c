"""Tools as the Responses API writes them, in canonical form.

| type          | becomes                                                                                  |
|---------------|------------------------------------------------------------------------------------------|
| `function`    | a tool that the client runs; with ``defer_loading`` one that a search brings in          |
| `namespace`   | its functions, each called ``namespace.name`` by the model                               |
| `tool_search` | a tool that this server runs, or with ``execution: "client"`` the client                 |
| all others    | refused: they need a server's tool                                                       |

Responses has a tool's name, description and parameters on one level, Chat Completions inside ``function``;
templates were trained on the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ostinato.api.prompt import ToolDefinition
from ostinato.api.tool_calling import ToolChoice, ToolMode
from ostinato.api.tool_search import SearchKind, search_schema
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE

SEARCH_NAME = "tool_search"
"""What the model calls the search."""
SERVER, CLIENT = "server", "client"

_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
"""What a template is shown; the order is the client's."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the client runs.

    Attributes:
        definition: its canonical form.
        written: as the client wrote it.
        namespace: the client's, without its tools; None: it is in none.
    """

    definition: ToolDefinition
    written: Mapping[str, Any]
    namespace: Mapping[str, Any] | None = None

    @property
    def visible_name(self) -> str:
        """What the model calls it."""
        name: str = self.definition.schema["function"]["name"]
        return name


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request, and of its conversation.

    Attributes:
        functions: those of the request, then those that only the conversation has.
        definitions: of these and of the search, in their order.
        search: who runs the search, `SERVER` or `CLIENT`; None if there is none.
        loaded: what the model calls those deferred ones that the conversation has brought in.
    """

    functions: tuple[Function, ...] = ()
    definitions: tuple[ToolDefinition, ...] = ()
    search: str | None = None
    loaded: tuple[str, ...] = ()

    @property
    def searches(self) -> dict[str, SearchKind]:
        """The search, if this server runs it; see `run_rounds`."""
        return {SEARCH_NAME: SearchKind.BM25} if self.search == SERVER else {}

    def with_loaded(self, functions: Iterable[Function]) -> Toolbox:
        """With what a conversation has brought in; what the request defines itself is as it says there."""
        known = {function.visible_name for function in self.functions}
        more: dict[str, Function] = {}
        names: dict[str, None] = {}
        for function in functions:
            names[function.visible_name] = None
            if function.visible_name not in known:
                definition = replace(function.definition, deferred=True)
                more[function.visible_name] = replace(function, definition=definition)
        return replace(
            self,
            functions=(*self.functions, *more.values()),
            definitions=(*self.definitions, *(f.definition for f in more.values())),
            loaded=tuple(names),
        )

    def name_fields(self, visible_name: str) -> dict[str, Any]:
        """``name`` and ``namespace`` of a call."""
        for function in self.functions:
            if function.visible_name == visible_name and function.namespace is not None:
                return {
                    "name": function.written["name"],
                    "namespace": function.namespace["name"],
                }
        return {"name": visible_name}

    def written(self, visible_names: Sequence[str]) -> list[dict[str, Any]]:
        """Functions as the client wrote them, those of one namespace together."""
        by_name = {function.visible_name: function for function in self.functions}
        shown: list[dict[str, Any]] = []
        groups: dict[str, dict[str, Any]] = {}
        for name in visible_names:
            function = by_name[name]
            if function.namespace is None:
                shown.append(dict(function.written))
                continue
            group = groups.get(function.namespace["name"])
            if group is None:
                group = groups[function.namespace["name"]] = {**function.namespace, "tools": []}
                shown.append(group)
            group["tools"].append(dict(function.written))
        return shown


def visible_name(name: str, namespace: str | None) -> str:
    """What the model calls a function."""
    return name if namespace is None else f"{namespace}.{name}"


def read_tools(tools: Sequence[Mapping[str, Any]] | None, path: str = "tools") -> Toolbox:
    """`tools` of a request, or of an item.

    Raises:
        InvalidRequestError: one is malformed or of a kind that is not served, or there are deferred ones in a
            request and nothing to find them with.
    """
    functions: list[Function] = []
    definitions: list[ToolDefinition] = []
    search: str | None = None
    for at, tool in enumerate(tools or ()):
        where = f"{path}[{at}]"
        if tool.get("type") == "tool_search":
            search = _execution(tool, where)
            definitions.append(ToolDefinition(_search_schema(tool, where, search), path=where))
            continue
        found = list(_functions(tool, where))
        functions += found
        definitions += [function.definition for function in found]
    return Toolbox(tuple(functions), tuple(definitions), search)


def require_search(toolbox: Toolbox) -> None:
    """Refuse deferred tools that nothing can bring in.

    Raises:
        InvalidRequestError: naming the first.
    """
    deferred = [d.path for d in toolbox.definitions if d.deferred]
    if deferred and toolbox.search is None:
        raise InvalidRequestError(
            f"{deferred[0]}.defer_loading needs a tool of type 'tool_search' beside it: without one the model "
            "can never find this tool",
            param=f"{deferred[0]}.defer_loading",
        )


def _functions(tool: Mapping[str, Any], path: str) -> Iterable[Function]:
    kind = tool.get("type")
    if kind == "function":
        return (Function(_definition(tool, path, None), tool),)
    if kind != "namespace":
        raise InvalidRequestError(
            f"{path}: of all tools only those of type 'function', 'namespace' and 'tool_search' are "
            f"supported, not {str(kind)[:40]!r}: this server runs no others",
            param=f"{path}.type",
            code=UNSUPPORTED_CODE,
        )
    name = _name(tool, path)
    inner = tool.get("tools")
    if not isinstance(inner, list) or not all(isinstance(one, Mapping) for one in inner):
        raise InvalidRequestError(
            f"{path}.tools must be a list of functions", param=f"{path}.tools"
        )
    namespace = {key: value for key, value in tool.items() if key != "tools"}
    found = []
    for at, one in enumerate(inner):
        where = f"{path}.tools[{at}]"
        if one.get("type") != "function":
            raise InvalidRequestError(
                f"{where}: of all tools only those of type 'function' are supported in a namespace, not "
                f"{str(one.get('type'))[:40]!r}",
                param=f"{where}.type",
                code=UNSUPPORTED_CODE,
            )
        found.append(Function(_definition(one, where, name), one, namespace))
    return found


def _definition(tool: Mapping[str, Any], path: str, namespace: str | None) -> ToolDefinition:
    # Null stands for absent: what the SDKs add of themselves must not reach the prompt.
    function = {
        name: value
        for name, value in tool.items()
        if name in _FUNCTION_FIELDS and value is not None
    }
    function["name"] = visible_name(_name(tool, path), namespace)
    schema = {"type": "function", "function": function}
    return ToolDefinition(schema, deferred=tool.get("defer_loading") is True, path=path)


def _execution(tool: Mapping[str, Any], path: str) -> str:
    execution = tool.get("execution") or SERVER
    if execution not in (SERVER, CLIENT):
        raise InvalidRequestError(
            f"{path}.execution must be 'server' or 'client'", param=f"{path}.execution"
        )
    return str(execution)


def _search_schema(tool: Mapping[str, Any], path: str, execution: str) -> dict[str, Any]:
    """A search that the client runs may look as the client wants."""
    schema = search_schema(SEARCH_NAME, SearchKind.BM25)
    if execution == SERVER:
        return schema
    function = schema["function"]
    for name, kind, what in (
        ("description", str, "a text"),
        ("parameters", Mapping, "a JSON schema, an object"),
    ):
        value = tool.get(name)
        if value is None:
            continue
        if not isinstance(value, kind):
            raise InvalidRequestError(f"{path}.{name} must be {what}", param=f"{path}.{name}")
        function[name] = value
    return schema


def shown_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """`tools` as the response repeats them."""
    defaults = {"description": None, "parameters": None, "strict": False}
    return [
        {**defaults, **tool} if tool.get("type") == "function" else dict(tool)
        for tool in tools or ()
    ]


def tool_choice(choice: str | Mapping[str, Any] | None, *, is_parallel: bool) -> ToolChoice:
    """`tool_choice` in canonical form.

    Raises:
        InvalidRequestError: it is of a form that is not known.
    """
    if choice is None or isinstance(choice, str):
        return ToolChoice(ToolMode(choice or "auto"), None, is_parallel)
    kind = choice.get("type")
    if kind == "function":
        return ToolChoice(ToolMode.REQUIRED, (_chosen(choice, "tool_choice"),), parallel=False)
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
    names = tuple(_chosen(tool, f"tool_choice.tools[{at}]") for at, tool in enumerate(tools))
    return ToolChoice(ToolMode(mode), names, is_parallel)


def _chosen(tool: Any, path: str) -> str:
    """The name that the model knows a tool by."""
    if isinstance(tool, Mapping) and tool.get("type") == "tool_search":
        return SEARCH_NAME
    name = _name(tool, path)
    namespace = tool.get("namespace")
    return visible_name(name, namespace if isinstance(namespace, str) else None)


def _name(tool: Any, path: str) -> str:
    name = tool.get("name") if isinstance(tool, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"{path}.name must be the name of a tool", param=f"{path}.name")
    return name


def in_flat_form(error: RequestError) -> RequestError:
    """An error about a canonical tool, with the path that the client wrote."""
    if error.param is None or ".function" not in error.param:
        return error
    message = str(error).replace(".function.", ".")
    return type(error)(message, param=error.param.replace(".function", "", 1), code=error.code)
