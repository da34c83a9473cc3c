"""Guards deferred tools: they are found by words and by patterns, and what brings them in is appended, so that
every token in front of it stays where it was."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.api.answer_reader import AnswerReader, FinishedCall
from ostinato.api.prompt import Message, Prompt, Role, TextPart, ToolDefinition
from ostinato.api.tool_calling import ToolChoice, plan_tools
from ostinato.api.tool_search import (
    MAX_RESULTS,
    MAX_ROUNDS,
    NOTHING_FOUND,
    Progress,
    Round,
    Searched,
    SearchError,
    SearchKind,
    SearchResult,
    ToolCatalog,
    append_searches,
    run_rounds,
    search_schema,
)
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.models.chat_encoding import encode_segments
from ostinato.models.chat_template import ChatTemplate
from ostinato.models.tokenizer import Tokenizer
from ostinato.models.tools.syntax import ToolCallStyle
from tests.tiny import tiny_tokenizer_json
from tests.tool_template import HERMES_TEMPLATE

SEARCH = "tool_search_tool_bm25"


def tool(
    name: str, description: str = "", deferred: bool = True, **arguments: str
) -> ToolDefinition:
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    function = {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties},
    }
    return ToolDefinition({"type": "function", "function": function}, deferred=deferred)


WEATHER = tool("get_weather", "Weather of a city, now", city="Name of the place")
MAIL = tool("sendEmail", "Sends a mail", address="Of the recipient")
FILES = tool("list_files", "Files of a folder", path="Where to look")
BUY = tool("buy", "Buys things", deferred=False)
SEARCH_TOOL = ToolDefinition(search_schema(SEARCH, SearchKind.BM25))
CATALOG = ToolCatalog([SEARCH_TOOL, BUY, WEATHER, MAIL, FILES])
PROMPT = Prompt(
    messages=(Message(Role.USER, (TextPart("Is it raining in Oslo?"),)),),
    tools=(SEARCH_TOOL, BUY, WEATHER, MAIL, FILES),
)


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("weather", "get_weather"),
        ("what is the WEATHER like", "get_weather"),
        ("email", "sendEmail"),
        ("recipient address", "sendEmail"),
        ("folder", "list_files"),
        ("place", "get_weather"),
    ],
)
def test_words_find_a_tool_by_its_name_description_or_arguments(query: str, best: str) -> None:
    assert CATALOG.search_bm25(query)[0] == best


def test_words_that_nobody_has_and_tools_that_are_not_deferred_are_not_found() -> None:
    assert CATALOG.search_bm25("buys quantum") == ()
    assert ToolCatalog([BUY]).search_bm25("buys") == ()


def test_rare_words_count_more_than_common_ones_and_short_texts_more_than_long() -> None:
    common = [tool(f"t{i}", "reads the log") for i in range(5)]
    catalog = ToolCatalog(
        [*common, tool("rare", "reads the tape"), tool("long", "tape " + "x " * 50)]
    )
    assert catalog.search_bm25("reads tape")[0] == "rare"
    assert catalog.search_bm25("tape") == ("rare", "long")
    assert catalog.search_bm25("log") == ("t0", "t1", "t2", "t3", "t4")


def test_no_search_finds_more_than_the_model_can_read() -> None:
    catalog = ToolCatalog([tool(f"log_{i}") for i in range(MAX_RESULTS + 3)])
    assert len(catalog.search_bm25("log")) == MAX_RESULTS
    assert catalog.search_regex("log") == tuple(f"log_{i}" for i in range(MAX_RESULTS))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^get_", ("get_weather",)),
        ("(?i)EMAIL", ("sendEmail",)),
        ("path|city", ("get_weather", "list_files")),
        ("Where to", ("list_files",)),
        ("nothing", ()),
    ],
)
def test_a_pattern_finds_a_tool_by_its_name_description_or_arguments(
    pattern: str, names: tuple[str, ...]
) -> None:
    result = CATALOG.search(SearchKind.REGEX, json.dumps({"query": pattern}))
    assert (result.names, result.error) == (names, None)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"query": "("}', SearchError.INVALID_PATTERN),
        (json.dumps({"query": "a" * 201}), SearchError.PATTERN_TOO_LONG),
        ("{}", SearchError.UNAVAILABLE),
        ('{"query": 3}', SearchError.UNAVAILABLE),
        ("[", SearchError.UNAVAILABLE),
    ],
)
def test_a_search_that_cannot_be_run_tells_the_model_why(
    arguments: str, error: SearchError
) -> None:
    result = CATALOG.search(SearchKind.REGEX, arguments)
    assert (result.names, result.error) == ((), error)
    assert result.text


@given(arguments=st.text(max_size=30), query=st.text(max_size=30), kind=st.sampled_from(SearchKind))
def test_no_query_breaks_a_search(arguments: str, query: str, kind: SearchKind) -> None:
    for given_arguments in (arguments, json.dumps({"query": query})):
        assert set(CATALOG.search(kind, given_arguments).names) <= {
            "get_weather",
            "sendEmail",
            "list_files",
        }


def test_a_reference_holds_the_definitions_and_nothing_else_decides_its_text() -> None:
    text = CATALOG.reference_text(["list_files", "get_weather", "list_files", "unknown"])
    assert [json.loads(line) for line in text.splitlines()[1:]] == [FILES.schema, WEATHER.schema]
    assert text == CATALOG.reference_text(["list_files", "get_weather"])
    assert CATALOG.reference_text(["unknown"]) == NOTHING_FOUND


def test_the_search_tool_says_nothing_of_what_is_deferred() -> None:
    assert search_schema("s", SearchKind.REGEX) == search_schema("s", SearchKind.REGEX)
    fewer = replace(PROMPT, tools=(SEARCH_TOOL, BUY, MAIL))
    assert encode(fewer).tolist() == encode(PROMPT).tolist()


def encode(prompt: Prompt) -> np.ndarray[Any, np.dtype[np.int32]]:
    tokenizer = Tokenizer.from_json(
        json.dumps(tiny_tokenizer_json()), bos_token_id=None, eos_token_ids=()
    )
    template = ChatTemplate(HERMES_TEMPLATE, bos_token="", eos_token="")
    model: Any = SimpleNamespace(name="tiny", tokenizer=tokenizer, chat_template=template)
    return encode_segments(
        model,
        prompt.template_messages(),
        tools=prompt.template_tools(),
        add_generation_prompt=prompt.add_generation_prompt,
        variables={},
    ).token_ids


def test_a_search_appends_and_every_token_in_front_of_it_stays() -> None:
    before = encode(PROMPT)
    call = FinishedCall("call_x", SEARCH, '{"query": "weather"}')
    result = CATALOG.search(SearchKind.BM25, call.arguments)
    for text in ("", "Let me look."):
        after = encode(append_searches(PROMPT, None, text, [(call, result)]))
        assert len(after) > len(before)
        np.testing.assert_array_equal(after[: len(before)], before)
    other = encode(append_searches(PROMPT, None, "", [(replace(call, call_id="call_y"), result)]))
    np.testing.assert_array_equal(
        encode(append_searches(PROMPT, None, "", [(call, result)])), other
    )  # ids never reach the prompt


def test_a_found_tool_may_be_called_and_a_deferred_one_may_not() -> None:
    choice = ToolChoice()
    use = plan_tools(PROMPT.tools, choice, ToolCallStyle.HERMES)
    assert use is not None
    assert [function.name for function in use.functions] == [SEARCH, "buy"]
    use = plan_tools(PROMPT.tools, choice, ToolCallStyle.HERMES, loaded=["get_weather"])
    assert use is not None
    assert [function.name for function in use.functions] == [SEARCH, "buy", "get_weather"]


class Rounds:
    """A backend of prepared answers, one a round."""

    def __init__(self, *answers: str, finish: FinishReason = FinishReason.STOP) -> None:
        self.answers = answers
        self.finish = finish
        self.opened: list[tuple[int, Prompt, tuple[str, ...]]] = []
        self.closed = 0

    async def open(self, number: int, prompt: Prompt, found: Sequence[str]) -> Round:
        self.opened.append((number, prompt, tuple(found)))
        use = plan_tools(prompt.tools, ToolChoice(), ToolCallStyle.HERMES, loaded=found)
        assert use is not None
        text = self.answers[min(number, len(self.answers) - 1)]
        return Round(self._deltas(text), AnswerReader(f"response-{number}", None, use.parser()))

    async def _deltas(self, text: str) -> AsyncGenerator[OutputDelta, None]:
        try:
            half = len(text) // 2
            yield _delta(text[:half], None)
            yield _delta(text[half:], self.finish)
        finally:
            self.closed += 1

    def run(self) -> list[Progress | Searched]:
        async def everything() -> list[Progress | Searched]:
            steps = run_rounds(PROMPT, {SEARCH: SearchKind.BM25}, self.open)
            return [step async for step in steps]

        return asyncio.run(everything())


def _delta(text: str, reason: FinishReason | None) -> OutputDelta:
    return OutputDelta("r", 0, text, (), (), reason, None, None, 0)


def written(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_the_server_runs_a_search_and_goes_on_behind_it() -> None:
    rounds = Rounds(
        "I look." + written(SEARCH, query="weather"), written("get_weather", city="Oslo")
    )
    steps = rounds.run()
    [searched] = [step for step in steps if isinstance(step, Searched)]
    assert searched.result.names == ("get_weather",)
    assert [found for _, _, found in rounds.opened] == [(), ("get_weather",)]
    first, second = (prompt for _, prompt, _ in rounds.opened)
    assert first == PROMPT
    pair = (searched.call, searched.result)
    assert second == append_searches(PROMPT, None, "I look.", [pair])
    last = steps[-1]
    assert isinstance(last, Progress)
    assert [call.name for call in last.reader.calls] == ["get_weather"]
    assert rounds.closed == 2


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        ("No search.", FinishReason.STOP),
        (written("buy"), FinishReason.STOP),
        (written(SEARCH, query="mail") + "\n" + written("buy"), FinishReason.STOP),
        (written(SEARCH, query="mail"), FinishReason.LENGTH),
    ],
)
def test_an_answer_that_the_client_must_go_on_with_is_over(
    answer: str, finish: FinishReason
) -> None:
    rounds = Rounds(answer, finish=finish)
    assert not [step for step in rounds.run() if isinstance(step, Searched)]
    assert len(rounds.opened) == 1


def test_two_searches_of_one_turn_are_both_run() -> None:
    both = written(SEARCH, query="mail") + "\n" + written(SEARCH, query="folder")
    rounds = Rounds(both, "Done.")
    found = [step.result.names for step in rounds.run() if isinstance(step, Searched)]
    assert found == [("sendEmail",), ("list_files",)]
    assert rounds.opened[1][2] == ("sendEmail", "list_files")


def test_a_model_that_only_searches_is_stopped() -> None:
    rounds = Rounds(written(SEARCH, query="mail"))
    steps = rounds.run()
    assert len([step for step in steps if isinstance(step, Searched)]) == MAX_ROUNDS
    assert len(rounds.opened) == rounds.closed == MAX_ROUNDS + 1


def test_a_search_that_found_nothing_is_told_to_the_model() -> None:
    assert CATALOG.search(SearchKind.BM25, '{"query": "quantum"}') == SearchResult(
        (), NOTHING_FOUND
    )
