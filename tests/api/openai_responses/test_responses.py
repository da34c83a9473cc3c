"""Guards POST /v1/responses over a backend that says what it is told: shapes, order of events, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.openai_responses.store import MAX_AGE
from ostinato.api.prompt import Breakpoint, Prompt, Role, TTLClass
from ostinato.clock import ManualClock
from ostinato.engine.outputs import FinishReason
from ostinato.errors import EngineStoppedError
from ostinato.models.tools.syntax import ToolCallStyle
from tests.api.fake import CACHED_TOKENS, PROMPT_TOKENS, FakeBackend
from tests.api.http import refused

URL = "/v1/responses"


def ask(client: TestClient, given: Any = "hello", **fields: Any) -> dict[str, Any]:
    answer = client.post(URL, json={"model": "tiny", "input": given, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def events(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "tiny", "input": "hello", "stream": True, **fields}
    text = client.post(URL, json=body).text
    found = []
    for frame in text.strip().split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def prompt_of(backend: FakeBackend) -> Prompt:
    source = backend.requests[-1].prompt.source
    assert isinstance(source, Prompt)
    return source


def refuse(client: TestClient, status: int = 400, **fields: Any) -> dict[str, Any]:
    return refused(client.post(URL, json={"model": "tiny", "input": "hello", **fields}), status)


def test_an_answer_repeats_what_was_asked_and_counts_reads_in_both_vendors_fields(
    client: TestClient,
) -> None:
    response = ask(client, instructions="Be brief.", prompt_cache_key="k", metadata={"a": "b"})
    assert response["object"] == "response"
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Once upon a time"
    assert response["instructions"] == "Be brief."
    assert response["metadata"] == {"a": "b"}
    assert response["prompt_cache_key"] == "k"
    assert response["prompt_cache_options"] == {"mode": "implicit", "ttl": "30m"}
    usage = response["usage"]
    assert usage["input_tokens"] == PROMPT_TOKENS
    assert usage["input_tokens_details"]["cached_tokens"] == CACHED_TOKENS
    assert usage["input_tokens_details"]["cache_write_tokens"] == 0
    assert usage["prompt_cache_hit_tokens"] == CACHED_TOKENS
    assert usage["prompt_cache_miss_tokens"] == PROMPT_TOKENS - CACHED_TOKENS


def test_a_streamed_text_tells_its_events_in_the_documented_order(client: TestClient) -> None:
    found = events(client)
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *("output_text.delta",) * 4,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    text = "".join(event["delta"] for event in found if event["type"].endswith("text.delta"))
    assert text == found[8]["text"] == "Once upon a time"
    assert found[0]["response"]["status"] == "in_progress"
    assert found[-1]["response"]["output"] == [found[-2]["item"]]
    assert {event["item_id"] for event in found[3:10]} == {found[2]["item"]["id"]}


def test_an_answer_that_is_cut_off_is_incomplete_and_says_why(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.finish = FinishReason.LENGTH
    response = ask(client, max_output_tokens=4)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert events(client)[-1]["type"] == "response.incomplete"


def test_a_failure_in_mid_stream_is_the_last_event(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.fail_after, backend.failure = 2, EngineStoppedError("gone")
    found = events(client)
    assert found[-1]["type"] == "response.failed"
    assert found[-1]["response"]["status"] == "failed"
    assert found[-1]["response"]["error"]["code"] == "server_error"


def test_a_failure_before_the_first_event_is_an_ordinary_error(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.fail_after, backend.failure = 0, EngineStoppedError("gone")
    refuse(client, 503, stream=True)


CALLS = (
    "Let me look.",
    '<tool_call>\n{"name": "look", "arg',
    'uments": {"at": 1}}\n</tool_call>',
    '\n<tool_call>\n{"name": "look", "arguments": {"at": 2}}\n</tool_call>',
)
LOOK = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}},
}


@pytest.fixture
def calling(client: TestClient, backend: FakeBackend) -> TestClient:
    backend.words = CALLS
    backend.tool_call_style = ToolCallStyle.HERMES
    return client


def test_calls_are_items_of_their_own_whole_and_streamed(calling: TestClient) -> None:
    response = ask(calling, tools=[LOOK])
    message, first, second = response["output"]
    assert message["content"][0]["text"] == "Let me look."
    assert (first["type"], first["name"], first["arguments"]) == (
        "function_call",
        "look",
        '{"at": 1}',
    )
    assert second["arguments"] == '{"at": 2}'
    assert first["call_id"] != second["call_id"]
    found = events(calling, tools=[LOOK])
    kinds = [event["type"].removeprefix("response.") for event in found]
    start = kinds.index("output_item.done") + 1
    assert kinds[start : start + 2] == ["output_item.added", "function_call_arguments.delta"]
    done = [event for event in found if event["type"].endswith("arguments.done")]
    assert [event["arguments"] for event in done] == ['{"at": 1}', '{"at": 2}']
    assert [event["output_index"] for event in done] == [1, 2]
    assert found[-1]["response"]["output"] == [
        event["item"] for event in found if event["type"] == "response.output_item.done"
    ]


def test_a_conversation_of_items_becomes_turns_in_place(
    client: TestClient, backend: FakeBackend
) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    ask(
        client,
        [
            {"role": "developer", "content": "rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
            {
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "two"}],
            },
            call,
            {**call, "call_id": "c2"},
            {"type": "function_call_output", "call_id": "c1", "output": "three"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "four"}],
            },
            {"role": "system", "content": "later rules"},
        ],
        instructions="first of all",
    )
    messages = prompt_of(backend).messages
    assert [(message.role, message.text) for message in messages] == [
        (Role.SYSTEM, "first of all"),
        (Role.SYSTEM, "rules"),
        (Role.USER, "one"),
        (Role.ASSISTANT, "two"),
        (Role.TOOL, "three"),
        (Role.TOOL, "four"),
        (Role.SYSTEM, "later rules"),
    ]
    assert [call.call_id for call in messages[3].tool_calls] == ["c1", "c2"]
    assert messages[3].reasoning == "hm"


def test_breakpoints_and_lifetimes_reach_the_prompt(
    client: TestClient, backend: FakeBackend
) -> None:
    def part(text: str, **mark: Any) -> dict[str, Any]:
        return {"type": "input_text", "text": text, "prompt_cache_breakpoint": mark}

    content = [part("a", mode="explicit"), part("b", mode="explicit", ttl="12h")]
    ask(client, [{"role": "user", "content": content}])
    prompt = prompt_of(backend)
    marks = [part.breakpoint for part in prompt.messages[0].parts]
    assert marks == [Breakpoint(TTLClass.SHORT), Breakpoint(TTLClass.LONG)]
    assert prompt.implicit_breakpoint == Breakpoint(explicit=False)
    ask(client, [{"role": "user", "content": content}], prompt_cache_options={"ttl": "12h"})
    assert prompt_of(backend).messages[0].parts[0].breakpoint == Breakpoint(TTLClass.LONG)
    response = ask(client, "x", prompt_cache_options={"mode": "explicit"})
    assert prompt_of(backend).implicit_breakpoint is None
    assert response["prompt_cache_options"] == {"mode": "explicit", "ttl": "30m"}
    response = ask(client, "x", prompt_cache_retention="24h")
    assert prompt_of(backend).implicit_breakpoint == Breakpoint(TTLClass.LONG, explicit=False)
    assert response["prompt_cache_retention"] == "24h"


def test_a_tool_reaches_the_prompt_without_the_nulls_that_sdks_add(
    client: TestClient, backend: FakeBackend
) -> None:
    response = ask(client, tools=[{**LOOK, "description": None, "strict": None}])
    [tool] = prompt_of(backend).tools
    assert tool.schema == {
        "type": "function",
        "function": {"name": "look", "parameters": LOOK["parameters"]},
    }
    assert response["tools"][0]["name"] == "look"


def test_a_stored_response_is_read_listed_and_deleted(client: TestClient) -> None:
    first = ask(client, "one")
    second = ask(client, "two", previous_response_id=first["id"])
    assert client.get(f"{URL}/{second['id']}").json() == second
    listed = client.get(f"{URL}/{second['id']}/input_items", params={"order": "asc"}).json()
    texts = [item["content"][0]["text"] for item in listed["data"]]
    assert texts == ["one", "Once upon a time", "two"]
    page = client.get(f"{URL}/{second['id']}/input_items", params={"limit": 1}).json()
    assert page["data"][0]["content"][0]["text"] == "two"
    assert page["has_more"]
    after = client.get(f"{URL}/{second['id']}/input_items", params={"after": page["last_id"]})
    assert len(after.json()["data"]) == 2
    assert client.delete(f"{URL}/{first['id']}").json()["deleted"] is True
    refused(client.get(f"{URL}/{first['id']}"), 404)
    third = ask(client, "three", previous_response_id=second["id"])
    assert len(client.get(f"{URL}/{third['id']}/input_items").json()["data"]) == 5


def test_a_continuation_holds_the_conversation_but_not_the_instructions(
    client: TestClient, backend: FakeBackend
) -> None:
    first = ask(client, "one", instructions="old rules")
    ask(client, "two", previous_response_id=first["id"], instructions="new rules")
    texts = [message.text for message in prompt_of(backend).messages]
    assert texts == ["new rules", "one", "Once upon a time", "two"]


def test_what_is_not_stored_or_too_old_cannot_be_continued(
    client: TestClient, clock: ManualClock
) -> None:
    unstored = ask(client, store=False)
    error = refuse(client, previous_response_id=unstored["id"])
    assert error["code"] == "previous_response_not_found"
    stored = ask(client)
    clock.advance(MAX_AGE)
    refuse(client, previous_response_id=stored["id"])
    refused(client.get(f"{URL}/{stored['id']}"), 404)


def test_diagnostics_tell_hits_misses_and_what_is_unknown(
    client: TestClient, backend: FakeBackend
) -> None:
    first = ask(client, "one")

    def against(response_id: str, **fields: Any) -> Any:
        options = {"comparison_response_id": response_id}
        return ask(client, prompt_cache_options=options, **fields)["prompt_cache_diagnostics"]

    assert against(first["id"], given="one") == {"type": "cache_hit"}
    assert against("resp_none") == {"type": "comparison_response_not_found"}
    miss = against(first["id"], given="two")
    assert (miss["type"], miss["reason"]) == ("cache_miss", "input_changed")
    assert miss["cache_missed_tokens"] == PROMPT_TOKENS
    tools = against(first["id"], given="one", tools=[LOOK])
    assert tools["reason"] == "tools_changed"
    keyed = against(first["id"], given="one", prompt_cache_key="k")
    assert keyed == {"type": "cache_hit"}
    assert "prompt_cache_diagnostics" not in first
    streamed = events(client, prompt_cache_options={"comparison_response_id": first["id"]})
    assert streamed[-1]["response"]["prompt_cache_diagnostics"]["type"] == "cache_miss"


def test_tokens_of_an_input_are_counted_with_its_history(client: TestClient) -> None:
    answer = client.post(f"{URL}/input_tokens", json={"input": "hello"})
    assert answer.json() == {"object": "response.input_tokens", "input_tokens": PROMPT_TOKENS}
    refused(client.post(f"{URL}/input_tokens", json={"previous_response_id": "resp_none"}), 400)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"stop": ["x"]}, "stop"),
        ({"n": 2}, "n"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].type"),
        ({"input": [{"type": "computer_call_output"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"prompt_cache_retention": "1y"}, "prompt_cache_retention"),
        ({"prompt_cache_options": {"ttl": "5m"}}, "prompt_cache_options.ttl"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    client: TestClient, fields: dict[str, Any], param: str
) -> None:
    assert refuse(client, **fields)["param"] == param


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_parts_that_are_no_text_are_refused(client: TestClient, kind: str) -> None:
    error = refuse(client, input=[{"role": "user", "content": [{"type": kind}]}])
    assert error["param"] == "input[0].content[0].type"
    assert "text only" in error["message"]


def test_nothing_runs_in_the_background_so_nothing_can_be_cancelled(client: TestClient) -> None:
    refused(client.post(f"{URL}/resp_1/cancel"), 400)
    refused(client.get(f"{URL}/resp_1", params={"stream": True}), 400)


def test_logprobs_come_with_the_text_when_they_are_asked_for(client: TestClient) -> None:
    include = ["message.output_text.logprobs"]
    [part] = ask(client, include=include, top_logprobs=2)["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["Once", " upon", " a", " time"]
    found = events(client, include=include)
    deltas = [event for event in found if event["type"].endswith("text.delta")]
    assert all(len(event["logprobs"]) == 1 for event in deltas)
