"""Guards tool search: the server runs it inside one message, appends what it finds, and reads it as history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.prompt import Prompt
from ostinato.clock import ManualClock
from ostinato.models.tools.syntax import ToolCallStyle
from tests.api.anthropic.tools import (
    CALL,
    HI,
    WEATHER,
    ScriptedBackend,
    block,
    events,
    message,
    user,
)

SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
REGEX = {"type": "tool_search_tool_regex", "name": "tool_search_tool_regex"}
DEFERRED = {**WEATHER, "defer_loading": True}
TOOLS = [SEARCH, DEFERRED]


def search(query: str, name: str = SEARCH["name"]) -> str:
    call = json.dumps({"name": name, "arguments": {"query": query}})
    return f"<tool_call>\n{call}\n</tool_call>"


@pytest.fixture
def backend() -> ScriptedBackend:
    answers = [("I search. ", search("weather city")), (CALL,)]
    return ScriptedBackend(tool_call_style=ToolCallStyle.HERMES, answers=answers)


@pytest.fixture
def client(backend: ScriptedBackend) -> Iterator[TestClient]:
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        yield client


def prompt(backend: ScriptedBackend, at: int) -> Prompt:
    source = backend.requests[at].prompt.source
    assert isinstance(source, Prompt)
    return source


def test_a_search_and_the_call_behind_it_are_one_message(
    client: TestClient, backend: ScriptedBackend
) -> None:
    answer = message(client, tools=TOOLS)
    text, searched, found, call = answer["content"]
    assert text == {"type": "text", "text": "I search. "}
    assert searched["type"] == "server_tool_use"
    assert searched["id"].startswith("srvtoolu_")
    assert searched["input"] == {"query": "weather city"}
    assert found == {
        "type": "tool_search_tool_result",
        "tool_use_id": searched["id"],
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "get_weather"}],
        },
    }
    assert call["type"] == "tool_use"
    assert call["input"] == {"city": "Oslo"}
    assert answer["stop_reason"] == "tool_use"
    assert answer["usage"]["output_tokens"] == 3
    assert answer["usage"]["cache_read_input_tokens"] == 14
    assert backend.requests[1].params.max_tokens == 8 - 2


def test_what_is_found_is_appended_and_nothing_before_it_changes(
    client: TestClient, backend: ScriptedBackend
) -> None:
    message(client, tools=TOOLS)
    before, behind = prompt(backend, 0), prompt(backend, 1)
    assert [tool["function"]["name"] for tool in before.template_tools()] == [SEARCH["name"]]
    assert behind.template_tools() == before.template_tools()
    assert behind.messages[: len(before.messages)] == before.messages
    assert '"get_weather"' in behind.messages[-1].text


def test_a_stream_tells_of_the_search_in_order(client: TestClient) -> None:
    stream = events(client, tools=TOOLS)
    starts = [event["content_block"] for event in stream if event["type"] == "content_block_start"]
    assert [one["type"] for one in starts] == [
        "text",
        "server_tool_use",
        "tool_search_tool_result",
        "tool_use",
    ]
    opened = [event["index"] for event in stream if event["type"] == "content_block_start"]
    closed = [event["index"] for event in stream if event["type"] == "content_block_stop"]
    assert opened == closed == [0, 1, 2, 3]
    assert [event["type"] for event in stream].count("message_start") == 1


def test_the_message_comes_back_as_the_prompt_that_was_computed(
    client: TestClient, backend: ScriptedBackend
) -> None:
    answer = message(client, tools=TOOLS)
    call = answer["content"][-1]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}
    turn = {"role": "assistant", "content": answer["content"]}
    message(client, tools=TOOLS, messages=[*HI, turn, user(result)])
    computed, resent = prompt(backend, 1), prompt(backend, 2)
    assert [one.text for one in resent.messages[:3]] == [one.text for one in computed.messages]
    assert [one.role for one in resent.messages[:3]] == [one.role for one in computed.messages]
    assert resent.messages[3].tool_calls[0].name == "get_weather"
    assert resent.messages[4].text == "rain"


def test_a_tool_reference_of_the_clients_own_search_brings_a_tool_in(
    client: TestClient, backend: ScriptedBackend
) -> None:
    backend.answers = [(CALL,)]
    own: dict[str, Any] = {**WEATHER, "name": "find_tools"}
    asked = {"type": "tool_use", "id": "toolu_1", "name": "find_tools", "input": {"city": "x"}}
    found = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [block("One:"), {"type": "tool_reference", "tool_name": "get_weather"}],
    }
    history = [*HI, {"role": "assistant", "content": [asked]}, user(found)]
    answer = message(client, tools=[own, DEFERRED], messages=history)
    assert answer["content"][0]["name"] == "get_weather"
    assert '"get_weather"' in prompt(backend, 0).messages[-1].text


def test_a_pattern_that_cannot_be_read_is_an_error_that_the_model_sees(
    client: TestClient, backend: ScriptedBackend
) -> None:
    backend.answers = [(search("(", REGEX["name"]),), ("Sorry.",)]
    answer = message(client, tools=[REGEX, DEFERRED])
    _, failed, text = answer["content"]
    assert failed["content"]["type"] == "tool_search_tool_result_error"
    assert failed["content"]["error_code"] == "invalid_tool_input"
    assert text["text"] == "Sorry."
    assert answer["stop_reason"] == "end_turn"


def test_a_model_that_searches_for_ever_is_stopped(
    client: TestClient, backend: ScriptedBackend
) -> None:
    backend.answers = [(search("weather"),)]
    answer = message(client, tools=TOOLS, max_tokens=100)
    searches = [one["id"] for one in answer["content"] if one["type"] == "server_tool_use"]
    results = [one for one in answer["content"] if one["type"] == "tool_search_tool_result"]
    assert [one["tool_use_id"] for one in results] == searches
    assert results[-1]["content"]["error_code"] == "unavailable"
    assert answer["stop_reason"] == "end_turn"
