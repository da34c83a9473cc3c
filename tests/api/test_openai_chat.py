"""Guards the shapes of /v1/chat/completions: fields that SDKs read, the order of chunks, and usage that is
counted once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.prompt import Prompt, Role
from tests.api.fake import CACHED_TOKENS, MODEL, PROMPT_TOKENS, FakeBackend

URL = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def ask(client: TestClient, **fields: Any) -> Any:
    response = client.post(URL, json={"model": MODEL, "messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: TestClient, url: str = URL, **fields: Any) -> list[dict[str, Any]]:
    """All frames but the last, which must be [DONE]."""
    body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
    response = client.post(url, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert all(frame.startswith("data: ") for frame in frames[:-1])
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


def asked_prompt(backend: FakeBackend) -> Prompt:
    prompt = backend.requests[-1].prompt.source
    assert isinstance(prompt, Prompt)
    return prompt


def test_an_answer_has_the_shape_that_sdks_read(client: TestClient) -> None:
    answer = ask(client)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == MODEL
    assert answer["created"] == 1000
    assert answer["system_fingerprint"] == "fp_0123"
    [choice] = answer["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert choice["message"] == {
        "role": "assistant",
        "content": "Once upon a time",
        "refusal": None,
    }


def test_usage_says_what_was_reused_in_both_conventions(client: TestClient) -> None:
    assert ask(client)["usage"] == {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": 4,
        "total_tokens": PROMPT_TOKENS + 4,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS, "cache_write_tokens": 0},
        "prompt_cache_hit_tokens": CACHED_TOKENS,
        "prompt_cache_miss_tokens": PROMPT_TOKENS - CACHED_TOKENS,
    }


def test_with_several_answers_the_prompt_counts_once_and_outputs_add_up(client: TestClient) -> None:
    answer = ask(client, n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == CACHED_TOKENS


def test_a_stream_starts_with_the_role_and_ends_with_the_reason(client: TestClient) -> None:
    chunks = stream(client)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:-1]] == [
        {"content": word} for word in ("Once", " upon", " a", " time")
    ]
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


def test_a_stream_with_usage_has_null_until_a_last_chunk_without_choices(
    client: TestClient,
) -> None:
    chunks = stream(client, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 6
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == ask(client)["usage"]


def test_a_stream_of_several_answers_opens_and_ends_each(client: TestClient) -> None:
    choices = [chunk["choices"][0] for chunk in stream(client, n=2)]
    assert [choice["index"] for choice in choices[:2]] == [0, 1]
    assert all(choice["delta"]["role"] == "assistant" for choice in choices[:2])
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in own) == "Once upon a time"
        assert own[-1]["finish_reason"] == "stop"


def test_logprobs_have_tokens_bytes_and_rivals_and_no_infinity(client: TestClient) -> None:
    content = ask(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in content] == ["Once", " upon", " a", " time"]
    assert content[0]["bytes"] == list(b"Once")
    assert content[0]["logprob"] == -0.5
    assert content[0]["top_logprobs"][1] == {
        "token": "\ufffd",
        "logprob": -9999.0,
        "bytes": [0xE2, 0x9C],
    }


def test_streamed_logprobs_are_those_of_the_whole_answer(client: TestClient) -> None:
    whole = ask(client, logprobs=True)["choices"][0]["logprobs"]["content"]
    streamed = [
        token
        for chunk in stream(client, logprobs=True)
        for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == whole


def test_tokens_whose_text_is_held_back_still_bring_their_logprobs(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.words = ("", "x")
    chunks = stream(client, logprobs=True)
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:-1]] == [
        {"content": ""},
        {"content": "x"},
    ]
    assert len(stream(client)) == 3  # role, x, end: an empty delta says nothing


def test_every_sampling_field_reaches_the_engine(client: TestClient, backend: FakeBackend) -> None:
    ask(
        client,
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=7,
        stop=["a", "b"],
        stop_token_ids=[3],
        ignore_eos=True,
        min_tokens=2,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={"12": -100},
        skip_special_tokens=False,
        logprobs=True,
        top_logprobs=4,
        cache_salt="pepper",
        priority=-3,
    )
    request = backend.requests[-1]
    params = request.params
    assert (params.max_tokens, params.temperature, params.top_p) == (9, 0.5, 0.9)
    assert (params.top_k, params.min_p, params.seed) == (5, 0.1, 7)
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (3,))
    assert (params.ignore_eos, params.min_tokens) == (True, 2)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert (params.repetition_penalty, params.logit_bias) == (1.1, {12: -100.0})
    assert (params.skip_special_tokens, params.logprobs) == (False, 4)
    assert (request.cache_salt, request.priority) == ("pepper", -3)


def test_null_means_the_default(client: TestClient, backend: FakeBackend) -> None:
    ask(client, temperature=None, stop=None, n=None, max_tokens=None, stream=None, logprobs=None)
    params = backend.requests[-1].params
    assert (params.temperature, params.stop, params.n) == (1.0, (), 1)
    assert params.max_tokens is None
    assert params.logprobs is None


def test_one_stop_string_is_as_a_list_of_one(client: TestClient, backend: FakeBackend) -> None:
    ask(client, stop="\n")
    assert backend.requests[-1].params.stop == ("\n",)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"store": True},
        {"service_tier": "flex"},
        {"prompt_cache_key": "k"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"prediction": {"type": "content", "content": "x"}},
        {"a_field_that_nobody_knows": 1},
    ],
)
def test_fields_that_change_no_answer_are_ignored(
    client: TestClient, fields: dict[str, Any]
) -> None:
    ask(client, **fields)


def test_text_parts_are_joined_by_a_line_break_and_kept_apart(
    client: TestClient, backend: FakeBackend
) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    ask(client, messages=[{"role": "user", "content": parts}])
    [message] = asked_prompt(backend).messages
    assert [part.text for part in message.parts] == ["one", "two"]
    assert message.text == "one\ntwo"


def test_a_system_message_in_mid_conversation_stays_in_place(
    client: TestClient, backend: FakeBackend
) -> None:
    roles = ["system", "user", "developer", "user"]
    ask(client, messages=[{"role": role, "content": role} for role in roles])
    prompt = asked_prompt(backend)
    assert [message.role for message in prompt.messages] == [
        Role.SYSTEM,
        Role.USER,
        Role.SYSTEM,
        Role.USER,
    ]
    assert [message.text for message in prompt.messages] == roles


def test_a_tool_conversation_reaches_the_template_unchanged(
    client: TestClient, backend: FakeBackend
) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "add", "arguments": '{"b": 2, "a": 1}'},
    }
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"z": 1, "a": 2}}}]
    messages = [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    ask(client, messages=messages, tools=tools, tool_choice="auto")
    prompt = asked_prompt(backend)
    assert prompt.template_messages() == [
        {"role": "user", "content": ("1 + 2?",)},
        {"role": "assistant", "content": (), "tool_calls": [call]},
        {"role": "tool", "content": ("3",), "tool_call_id": "call_1"},
    ]
    assert json.dumps(prompt.template_tools()) == json.dumps(tools)  # order of keys included


def test_template_variables_are_handed_on(client: TestClient, backend: FakeBackend) -> None:
    ask(client, chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=False)
    assert asked_prompt(backend).template_variables == {"enable_thinking": False}
    assert asked_prompt(backend).add_generation_prompt is False


def test_equal_bodies_give_equal_prompts(client: TestClient, backend: FakeBackend) -> None:
    ask(client)
    ask(client)
    assert backend.requests[0].prompt.source == backend.requests[1].prompt.source
    assert backend.requests[0].request_id != backend.requests[1].request_id
