"""Guards what one message is: events in Anthropic's order, blocks, stop reasons; whole equals streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.cache.report import CacheReport
from ostinato.cache.types import MissReason
from ostinato.engine.outputs import FinishReason
from ostinato.errors import EngineStoppedError
from ostinato.models.tools.syntax import ToolCallStyle
from tests.api.anthropic.tools import (
    CALL,
    HI,
    MESSAGES,
    SHORT,
    WEATHER,
    assistant,
    block,
    body,
    events,
    message,
    post,
    user,
)
from tests.api.fake import MODEL, FakeBackend


def types(stream: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in stream]


def test_a_whole_message_has_the_documented_fields(client: TestClient) -> None:
    answer = message(client)
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Once upon a time"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 7,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 4,
            "service_tier": "standard",
        },
    }


def test_a_stream_has_the_documented_order_and_says_the_same(client: TestClient) -> None:
    stream = events(client)
    assert types(stream) == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, opened, *deltas, closed, end, _ = stream
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["cache_read_input_tokens"] == 7
    assert opened == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert "".join(delta["delta"]["text"] for delta in deltas) == "Once upon a time"
    assert closed == {"type": "content_block_stop", "index": 0}
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert end["usage"] == message(client)["usage"]


def test_a_call_is_a_block_of_its_own_and_its_input_comes_in_pieces(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.tool_call_style = ToolCallStyle.HERMES
    backend.words = ("Let me ", "see.", *(CALL[at : at + 7] for at in range(0, len(CALL), 7)))
    stream = events(client, tools=[WEATHER])
    starts = [event["content_block"] for event in stream if event["type"] == "content_block_start"]
    text, call = starts
    assert text == {"type": "text", "text": ""}
    assert call.pop("id").startswith("toolu_")
    assert call == {"type": "tool_use", "name": "get_weather", "input": {}}
    pieces = [
        event["delta"]["partial_json"]
        for event in stream
        if event["type"] == "content_block_delta" and event["index"] == 1
    ]
    assert len(pieces) > 1
    assert json.loads("".join(pieces)) == {"city": "Oslo"}
    assert stream[-2]["delta"]["stop_reason"] == "tool_use"
    whole = message(client, tools=[WEATHER])
    assert whole["stop_reason"] == "tool_use"
    assert [one["type"] for one in whole["content"]] == ["text", "tool_use"]
    assert whole["content"][1]["input"] == {"city": "Oslo"}


def test_an_input_that_was_cut_off_is_what_there_is_of_it(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.tool_call_style = ToolCallStyle.HERMES
    backend.words = ('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "da',)
    backend.finish = FinishReason.LENGTH
    answer = message(client, tools=[WEATHER], max_tokens=1)
    assert answer["content"][0]["input"] == {"city": "Oslo"}
    assert answer["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(("max_tokens", "reason"), [(4, "max_tokens"), (5, None)])
def test_an_answer_that_ends_early_for_want_of_room_says_so(
    client: TestClient, backend: FakeBackend, max_tokens: int, reason: str | None
) -> None:
    backend.finish = FinishReason.LENGTH
    answer = message(client, max_tokens=max_tokens)
    assert answer["stop_reason"] == (reason or "model_context_window_exceeded")


def test_an_empty_answer_has_no_blocks(client: TestClient, backend: FakeBackend) -> None:
    backend.words = ("",)
    assert message(client)["content"] == []
    assert types(events(client)) == ["message_start", "message_delta", "message_stop"]


def test_a_failure_in_mid_stream_is_an_error_event(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.failure, backend.fail_after = EngineStoppedError("over"), 2
    stream = events(client)
    assert types(stream)[-2:] == ["content_block_delta", "error"]
    assert stream[-1]["error"]["type"] == "api_error"
    assert stream[-1]["request_id"]


def test_parameters_reach_the_engine_under_its_own_names(
    client: TestClient, backend: FakeBackend
) -> None:
    message(client, temperature=0.5, top_k=3, top_p=0.9, stop_sequences=["x", "y"], max_tokens=9)
    params = backend.requests[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 0.9)
    assert params.stop == ("x", "y")
    assert params.max_tokens == 9
    assert backend.requests[0].clips_max_tokens


def test_a_prewarm_generates_nothing(client: TestClient, backend: FakeBackend) -> None:
    backend.words = ("",)
    backend.finish = FinishReason.LENGTH
    backend.report = CacheReport(prompt_tokens=10, read_by_tier={}, miss_reason=MissReason.COLD)
    answer = message(client, max_tokens=0, system=[block("Be brief.", cache_control=SHORT)])
    assert answer["content"] == []
    assert answer["stop_reason"] == "max_tokens"
    assert backend.requests[0].params.max_tokens == 0


def test_count_tokens_counts_the_rendered_prompt(client: TestClient) -> None:
    asked = {"model": MODEL, "system": "Be brief.", "messages": HI}
    response = client.post(f"{MESSAGES}/count_tokens", json=asked)
    assert response.json() == {"input_tokens": 2}  # the fake counts messages


def test_a_conversation_arrives_in_canonical_form(client: TestClient, backend: FakeBackend) -> None:
    backend.tool_call_style = ToolCallStyle.HERMES
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
    message(
        client,
        system=[block("Be"), block("brief.", cache_control=SHORT)],
        tools=[WEATHER],
        messages=[
            user(block("How is")),
            user(block("Oslo?")),
            {"role": "system", "content": "The user is in a hurry."},
            assistant(
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "?"},
                block("Let me see."),
                call,
            ),
            user(
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [block("no"), block("network")],
                    "is_error": True,
                    "cache_control": SHORT,
                },
                block("And now?"),
            ),
        ],
    )
    prompt = backend.requests[0].prompt.source
    assert not isinstance(prompt, str | tuple)
    system, asked, hurry, answered, result, again = prompt.messages
    assert [part.text for part in system.parts] == ["Be", "brief."]
    assert [part.text for part in asked.parts] == ["How is", "Oslo?"]
    assert hurry.role == "system"
    assert answered.reasoning == "Hm."
    assert answered.text == "Let me see."
    assert answered.tool_calls[0].arguments == '{"city": "Oslo"}'
    assert [part.text for part in result.parts] == ["Error: no", "network"]
    assert result.tool_call_id == "toolu_1"
    assert again.text == "And now?"
    marked = [segment.path for segment in prompt.segments() if segment.breakpoint]
    assert marked == ["system[1]", "messages[4].content[0]"]
    assert prompt.tools[0].schema["function"] == {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": WEATHER["input_schema"],
    }


@pytest.mark.parametrize(
    ("thinking", "variables"),
    [
        (None, {}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
    ],
)
def test_thinking_is_handed_to_the_template(
    client: TestClient, backend: FakeBackend, thinking: Any, variables: dict[str, bool]
) -> None:
    message(client, thinking=thinking)
    prompt = backend.requests[0].prompt.source
    assert not isinstance(prompt, str | tuple)
    assert dict(prompt.template_variables) == variables


def test_ids_are_new_each_time_and_never_in_the_prompt(
    client: TestClient, backend: FakeBackend
) -> None:
    first, second = message(client)["id"], message(client)["id"]
    assert first != second
    one, other = (request.prompt.source for request in backend.requests)
    assert one == other
    assert first not in repr(one)


def test_unknown_betas_and_unknown_fields_are_accepted(client: TestClient) -> None:
    headers = {"anthropic-beta": "prompt-caching-2024-07-31,something-new"}
    assert message(client, headers, inference_geo="eu", parsed={}, check=1)["content"]


def test_a_beta_query_changes_nothing(client: TestClient) -> None:
    assert client.post(f"{MESSAGES}?beta=true", json=body()).status_code == 200
    assert post(client).status_code == 200
