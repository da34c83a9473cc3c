"""Tools that the prompt does not begin with: deferred definitions, and searching them.

Definitions of tools stand at the very front of a prompt, so whoever adds one there invalidates everything
behind it. Deferred tools are left out instead. The model gets a search tool; what it finds is appended to the
conversation as the result of that call, definitions and all. Nothing in front changes, not by a byte:

    tools (search tool among them) ─ messages ─ call of the search tool ─ result: definitions ─ …

`run_rounds` does that on the server, within one request, as Anthropic's and OpenAI's search tools do.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ostinato.api.answer_reader import AnswerEvent, AnswerReader, FinishedCall
from ostinato.api.generation import Deltas
from ostinato.api.prompt import Message, Prompt, Role, TextPart, ToolCall, ToolDefinition
from ostinato.engine.grammar.text_pattern import TextPattern
from ostinato.engine.outputs import FinishReason, OutputDelta

MAX_RESULTS = 5
MAX_ROUNDS = 8
"""Searches that one request may run; the model's next call of a search tool ends it unanswered."""
NOTHING_FOUND = "No tools were found."
_FOUND = "These tools can be called now:"
_FIELDS = ("name", "description", "parameters", "strict")

_K1, _B = 1.2, 0.75
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class SearchKind(StrEnum):
    """How a search tool searches."""

    BM25 = "bm25"
    REGEX = "regex"


_ASKS = {
    SearchKind.BM25: (
        "Finds tools that are not listed here, by words that describe what is wanted. What it finds can be "
        "called afterwards.",
        "What the tool should do, in a few words",
    ),
    SearchKind.REGEX: (
        "Finds tools that are not listed here, by a regular expression over their names, descriptions and "
        "arguments. What it finds can be called afterwards.",
        "A regular expression, e.g. (?i)weather",
    ),
}


def search_schema(name: str, kind: SearchKind) -> dict[str, Any]:
    """A search tool as the model sees it. It says nothing of the deferred tools: those may change."""
    description, query = _ASKS[kind]
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": query}},
                "required": ["query"],
                "additionalProperties": False,
            },
        },
    }


class SearchError(StrEnum):
    """Why a search could not be run; Anthropic's words."""

    INVALID_PATTERN = "invalid_pattern"
    PATTERN_TOO_LONG = "pattern_too_long"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What came of a search.

    Attributes:
        names: of the tools found, best first.
        text: what the model reads.
        error: set if there was no search.
    """

    names: tuple[str, ...]
    text: str
    error: SearchError | None = None


class ToolCatalog:
    """The deferred tools of one request.

    Args:
        tools: all tools of the request.
    """

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._schemas = {
            str(tool.schema["function"]["name"]): tool.schema for tool in tools if tool.deferred
        }
        self._fields = {name: tuple(_texts(schema)) for name, schema in self._schemas.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def search(self, kind: SearchKind, arguments: str) -> SearchResult:
        """Run a call of a search tool, given its JSON text. Never raises: the model reads the error."""
        query = _query_of(arguments)
        if query is None:
            return SearchResult((), NOTHING_FOUND, SearchError.UNAVAILABLE)
        if kind is SearchKind.BM25:
            return self._result(self.search_bm25(query))
        try:
            return self._result(self.search_regex(query))
        except ValueError as error:
            too_long = "longer than" in str(error)
            code = SearchError.PATTERN_TOO_LONG if too_long else SearchError.INVALID_PATTERN
            return SearchResult((), f"The search failed: {error}.", code)

    def search_bm25(self, query: str) -> tuple[str, ...]:
        """Names of the best tools for some words: Okapi BM25 (Robertson et al. 1994) over names, descriptions
        and arguments; ties in the order of the request."""
        documents = {name: Counter(_words(" ".join(texts))) for name, texts in self._fields.items()}
        lengths = {name: sum(counts.values()) for name, counts in documents.items()}
        mean = sum(lengths.values()) / len(lengths) if lengths else 1.0
        scores: defaultdict[str, float] = defaultdict(float)
        for word in dict.fromkeys(_words(query)):
            having = [name for name, counts in documents.items() if word in counts]
            rarity = math.log(1 + (len(documents) - len(having) + 0.5) / (len(having) + 0.5))
            for name in having:
                count = documents[name][word]
                norm = _K1 * (1 - _B + _B * lengths[name] / (mean or 1.0))
                scores[name] += rarity * count * (_K1 + 1) / (count + norm)
        order = {name: at for at, name in enumerate(documents)}
        return tuple(sorted(scores, key=lambda name: (-scores[name], order[name]))[:MAX_RESULTS])

    def search_regex(self, pattern: str) -> tuple[str, ...]:
        """Names of the first tools of which some text matches.

        Raises:
            ValueError: see `TextPattern`.
        """
        compiled = TextPattern(pattern)
        found = (
            name
            for name, texts in self._fields.items()
            if any(compiled.is_in(text) for text in texts)
        )
        return tuple(name for name, _ in zip(found, range(MAX_RESULTS), strict=False))

    def reference_text(self, names: Sequence[str]) -> str:
        """What brings tools in: their definitions, each as templates write those at the front of a prompt.

        Names that are not deferred tools are left out; a function of the names and definitions alone.
        """
        known = [name for name in dict.fromkeys(names) if name in self._schemas]
        return reference_text([self._schemas[name] for name in known])

    def _result(self, names: tuple[str, ...]) -> SearchResult:
        return SearchResult(names, self.reference_text(names))


def reference_text(schemas: Sequence[Mapping[str, Any]]) -> str:
    """What brings these tools in: their definitions, each as templates write those at the front of a prompt.

    Fields have an order of their own: SDKs that send a definition back may have changed the client's.
    """
    if not schemas:
        return NOTHING_FOUND
    lines = (json.dumps(_in_order(schema), ensure_ascii=False) for schema in schemas)
    return "\n".join([_FOUND, *lines])


def _in_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    function = schema["function"]
    known = {name: function[name] for name in _FIELDS if name in function}
    return {"type": schema["type"], "function": {**known, **function}}


def append_searches(
    prompt: Prompt,
    thought: str | None,
    text: str,
    searches: Sequence[tuple[FinishedCall, SearchResult]],
) -> Prompt:
    """`prompt` continued by an assistant turn that searched, and by what it found.

    Args:
        prompt: that the turn answered.
        thought: what the turn began with.
        text: what it said before its calls.
        searches: its calls of search tools, and what came of them.
    """
    parts = (TextPart(text),) if text else ()
    calls = tuple(ToolCall(call.call_id, call.name, call.arguments) for call, _ in searches)
    turn = Message(Role.ASSISTANT, parts, tool_calls=calls, reasoning=thought)
    found = (
        Message(Role.TOOL, (TextPart(result.text),), tool_call_id=call.call_id)
        for call, result in searches
    )
    return replace(prompt, messages=(*prompt.messages, turn, *found))


@dataclass(frozen=True, slots=True)
class Progress:
    """A delta of the answer, and what its text says."""

    delta: OutputDelta
    events: Sequence[AnswerEvent]
    reader: AnswerReader


@dataclass(frozen=True, slots=True)
class Searched:
    """The server ran a search; the answer goes on behind it in a new round."""

    call: FinishedCall
    result: SearchResult


@dataclass(frozen=True, slots=True)
class Round:
    """One generation of an answer that searches.

    Attributes:
        deltas: of its only answer.
        reader: of its text, made for the tools that may be called in this round.
    """

    deltas: Deltas
    reader: AnswerReader


async def run_rounds(
    prompt: Prompt,
    searches: Mapping[str, SearchKind],
    open_round: Callable[[int, Prompt, Sequence[str]], Awaitable[Round]],
) -> AsyncGenerator[Progress | Searched, None]:
    """One answer, searches of the server's own included.

    A round ends like any answer. If all its calls are searches and it was not cut off, they are run, appended,
    and the next round continues from there; else the answer is over. Closing this closes the round.

    Args:
        prompt: with the search tools among its tools.
        searches: names of the search tools.
        open_round: starts a generation; given are the round's number, its prompt, and the names of the tools
            that were found so far.

    Raises:
        RequestError: a continued prompt cannot be served.
    """
    catalog = ToolCatalog(prompt.tools)
    found: list[str] = []
    for number in range(MAX_ROUNDS + 1):
        current = await open_round(number, prompt, tuple(found))
        reason: FinishReason | None = None
        async with aclosing(current.deltas) as deltas:
            async for delta in deltas:
                events = current.reader.read(delta)
                reason = delta.finish_reason
                yield Progress(delta, events, current.reader)
        calls = current.reader.calls
        is_search = bool(calls) and all(call.name in searches for call in calls)
        if not is_search or reason is not FinishReason.STOP or number == MAX_ROUNDS:
            return
        searched: list[tuple[FinishedCall, SearchResult]] = []
        for call in calls:
            result = catalog.search(searches[call.name], call.arguments)
            found += [name for name in result.names if name not in found]
            searched.append((call, result))
            yield Searched(call, result)
        reader = current.reader
        prompt = append_searches(prompt, reader.thought or None, reader.text, searched)


def _query_of(arguments: str) -> str | None:
    try:
        query = json.loads(arguments)["query"]
    except (ValueError, KeyError, TypeError):
        return None
    return query if isinstance(query, str) and query else None


def _texts(schema: Mapping[str, Any]) -> Iterator[str]:
    """What is searched of a tool: its name, its description, names and descriptions of its arguments."""
    function = schema["function"]
    yield function["name"]
    yield _text(function.get("description"))
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if isinstance(properties, Mapping):
        for name, argument in properties.items():
            yield str(name)
            if isinstance(argument, Mapping):
                yield _text(argument.get("description"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(text: str) -> list[str]:
    """Lower-case words; ``getWeather`` and ``get_weather`` are two each."""
    return [word.lower() for word in _WORD.findall(_HUMP.sub(" ", text))]
