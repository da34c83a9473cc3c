"""Guards what a client is told when it is wrong: the status, OpenAI's body, the field and what would be
right; and that a bug of ours tells nothing but the request id."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.errors import (
    CapacityError,
    ContextLengthError,
    EngineOverloadedError,
    EngineStoppedError,
    GrammarError,
    GrammarFailedError,
    RequestFailedError,
)
from tests.api.fake import MODEL, FakeBackend
from tests.api.http import CHAT, post_raw, refused

TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def post(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    """Escaped JSON, which can carry what UTF-8 cannot."""
    headers = {"content-type": "application/json"}
    return client.post(path, content=json.dumps(body), headers=headers)


def chat(client: TestClient, **fields: Any) -> Any:
    return post(client, CHAT, {"model": MODEL, "messages": HELLO, **fields})


def text(client: TestClient, **fields: Any) -> Any:
    return post(client, TEXT, {"model": MODEL, "prompt": "hello", **fields})


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": "hot"}, "temperature", "a number, not the string 'hot'"),
        ({"temperature": True}, "temperature", "a number, not the boolean true"),
        ({"max_tokens": "5"}, "max_tokens", "an integer, not the string '5'"),
        ({"max_tokens": True}, "max_tokens", "an integer, not the boolean true"),
        ({"max_tokens": 5.0}, "max_tokens", "an integer, not the number 5.0"),
        ({"n": [1]}, "n", "an integer, not a list of 1"),
        ({"stream": "yes"}, "stream", "true or false, not the string 'yes'"),
        ({"stop": 5}, "stop", "a string or a list of strings, not the integer 5"),
        ({"stop": ["a", 5]}, "stop[1]", "a string, not the integer 5"),
        ({"model": None}, "model", "a string, not null"),
        ({"messages": "hi"}, "messages", "a list, not the string 'hi'"),
        ({"messages": [5]}, "messages[0]", "an object, not the integer 5"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "a string or a list of content parts, not the integer 5",
        ),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role",
            "'assistant' or 'tool', not the string 'robot'",
        ),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is required"),
        (
            {"messages": [{"role": "user", "content": ["x"]}]},
            "messages[0].content[0]",
            "an object, not the string 'x'",
        ),
        ({"tools": {"a": 1}}, "tools", "a list, not an object"),
        ({"tool_choice": "sometimes"}, "tool_choice", "'auto' or 'required'"),
        ({"cache_salt": ""}, "cache_salt", "at least 1 character(s) long"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1", "a number, not the string 'x'"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "at least 0, not the integer -1"),
        ({"stream_options": True}, "stream_options", "an object, not the boolean true"),
    ],
)
def test_a_wrong_type_is_named_with_its_path_and_what_is_right(
    client: TestClient, fields: dict[str, Any], param: str, message: str
) -> None:
    error = refused(chat(client, **fields), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert message in error["message"]
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"max_tokens": -5}, "max_tokens", "max_tokens must be at least 1, not -5"),
        (
            {"max_completion_tokens": 0},
            "max_completion_tokens",
            "max_completion_tokens must be at least 1, not 0",
        ),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "send one of them"),
        ({"temperature": -0.1}, "temperature", "between 0.0 and 100.0"),
        ({"top_p": 0}, "top_p", "above 0 and at most 1"),
        ({"n": 0}, "n", "between 1 and"),
        ({"stop": ["x"] * 17}, "stop", "at most 16 strings"),
        ({"stop": ""}, "stop", "at least one character"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "'x' is not a token id"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "between -100.0 and 100.0"),
        ({"top_logprobs": 3}, "top_logprobs", "only together with logprobs"),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "top_logprobs must be between 0 and 20",
        ),
        ({"messages": []}, "messages", "at least one message"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        (
            {"messages": [{"role": "tool", "content": "3"}]},
            "messages[0].tool_call_id",
            "is required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "is required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "telepathy"}]}]},
            "messages[0].content[0].type",
            "must be 'text'",
        ),
        (
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs",
            "must not set messages",
        ),
        (
            {"messages": [{"role": "user", "content": "\ud800"}]},
            "messages[0].content",
            "valid Unicode",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(
    client: TestClient, backend: FakeBackend, fields: dict[str, Any], param: str, message: str
) -> None:
    error = refused(chat(client, **fields), 400)
    assert error["param"] == param
    assert message in error["message"]
    assert backend.requests == []


def test_not_a_number_is_refused(client: TestClient) -> None:
    body = json.dumps({"model": MODEL, "messages": HELLO, "temperature": float("nan")})
    assert refused(post_raw(client, body.encode()), 400)["param"] == "temperature"


def test_everything_that_is_wrong_is_listed(client: TestClient) -> None:
    error = refused(client.post(CHAT, json={"n": "1"}), 400)
    assert error["param"] == "model"
    for path in ("model is required", "messages is required", "n must be an integer"):
        assert path in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{"name": "f"}]},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "x"}},
        {"web_search_options": {}},
        {"reasoning_effort": "high"},
        {"verbosity": "low"},
        {"use_beam_search": True},
        {"include_stop_str_in_output": True},
        {"prompt_logprobs": 1},
        {"prompt_logprobs": 0},
        {"chat_template": "{{ messages }}"},
        {"echo": True},
        {"best_of": 2},
    ],
)
def test_what_would_change_the_answer_is_refused_and_named(
    client: TestClient, backend: FakeBackend, fields: dict[str, Any]
) -> None:
    error = refused(chat(client, **fields), 400)
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == next(iter(fields))
    assert f"{error['param']} is not supported yet" in error["message"]
    assert backend.requests == []


def test_continuous_usage_is_refused_under_its_path(client: TestClient) -> None:
    options = {"continuous_usage_stats": True}
    error = refused(chat(client, stream=True, stream_options=options), 400)
    assert error["param"] == "stream_options.continuous_usage_stats"


@pytest.mark.parametrize(
    ("kind", "named"), [("image_url", "images"), ("input_audio", "audio"), ("file", "files")]
)
def test_parts_that_are_not_text_are_refused(client: TestClient, kind: str, named: str) -> None:
    messages = [{"role": "user", "content": [{"type": kind, kind: {}}]}]
    error = refused(chat(client, messages=messages), 400)
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == "messages[0].content[0].type"
    assert f"not {named}" in error["message"]


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "end"}, {"best_of": 3}])
def test_text_completions_refuse_what_they_cannot_do(
    client: TestClient, fields: dict[str, Any]
) -> None:
    error = refused(text(client, **fields), 400)
    assert error["code"] == "unsupported_parameter"
    assert error["param"] == next(iter(fields))


@pytest.mark.parametrize(
    ("prompt", "param", "message"),
    [
        (5, "prompt", "a list of lists of token ids, not empty, not the integer 5"),
        ([], "prompt", "not an empty list"),
        (["a", 5], "prompt[1]", "a string, not the integer 5"),
        ([1, "a"], "prompt[1]", "an integer, not the string 'a'"),
        ([1, True], "prompt[1]", "an integer, not the boolean true"),
        ([[1], 2], "prompt[1]", "a list, not the integer 2"),
        ([-1], "prompt[0]", "at least 0"),
        ([2**31], "prompt[0]", "at most 2147483647"),
        ([2**70], "prompt[0]", "an integer"),
        (["x"] * 1025, "prompt", "at most 1024 prompts, not 1025"),
        ("\udfff", "prompt", "valid Unicode"),
    ],
)
def test_a_wrong_prompt_is_refused(
    client: TestClient, prompt: Any, param: str, message: str
) -> None:
    error = refused(text(client, prompt=prompt), 400)
    assert error["param"] == param
    assert message in error["message"]


def test_an_unknown_model_is_a_404_that_lists_what_is_served(client: TestClient) -> None:
    for response in (chat(client, model="gpt-9"), client.get("/v1/models/org/gpt-9")):
        error = refused(response, 404)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
        assert f"served: '{MODEL}'" in error["message"]


def test_a_context_that_is_too_long_keeps_its_code_and_numbers(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.refuse = ContextLengthError("the context is 2048 tokens, …", param="prompt")
    error = refused(chat(client), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "2048" in error["message"]
    assert refused(text(client), 400)["param"] == "prompt"


def test_a_request_that_never_fits_is_refused_under_the_name_that_was_sent(
    client: TestClient, backend: FakeBackend
) -> None:
    backend.refuse = CapacityError("prompt + max_tokens is too much", param="max_tokens")
    error = refused(chat(client, max_completion_tokens=9, stream=True), 400)
    assert error["code"] == "kv_capacity_exceeded"
    assert error["param"] == "max_completion_tokens"


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (EngineOverloadedError("1024 requests are waiting"), "engine_overloaded"),
        (EngineStoppedError("secret"), "engine_unavailable"),
    ],
)
def test_a_full_or_stopped_engine_is_a_503_that_says_when_to_retry(
    client: TestClient, backend: FakeBackend, failure: Exception, code: str, fields: dict[str, Any]
) -> None:
    backend.failure, backend.fail_after = failure, 0
    response = chat(client, **fields)
    error = refused(response, 503)
    assert error["code"] == code
    assert error["type"] == "server_error"
    assert response.headers["retry-after"] == "1"
    assert "secret" not in error["message"]


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
@pytest.mark.parametrize("failure", [RuntimeError("secret"), RequestFailedError("secret")])
def test_a_bug_is_a_500_without_details_and_a_log_entry_with_them(
    client: TestClient,
    backend: FakeBackend,
    failure: Exception,
    fields: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend.failure, backend.fail_after = failure, 0
    with caplog.at_level(logging.ERROR, logger="ostinato.api"):
        response = chat(client, **fields)
    error = refused(response, 500)
    request_id = response.headers["x-request-id"]
    assert error["code"] == "internal_error"
    assert "secret" not in response.text
    assert request_id in error["message"]
    assert request_id in caplog.text
    assert "secret" in caplog.text


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_a_grammar_that_nothing_can_follow_is_the_clients(
    client: TestClient,
    backend: FakeBackend,
    fields: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend.failure, backend.fail_after = GrammarFailedError("request 'r' failed"), 0
    backend.failure.__cause__ = GrammarError("the grammar cannot be followed: too many items")
    error = refused(chat(client, **fields), 400)
    assert error["code"] == "grammar_failed"
    assert "too many items; send a simpler schema" in error["message"]
    assert not caplog.records


def test_an_error_repeats_only_the_beginning_of_what_it_refuses(client: TestClient) -> None:
    error = refused(chat(client, **{"structured_outputs": {"x" * 50_000: 1}}), 400)
    assert len(error["message"]) == 1001
    assert len(error["param"]) == 201
    assert len(refused(client.get("/v1/" + "x" * 5000), 404)["message"]) < 300


def test_an_error_in_mid_stream_is_a_frame_and_the_stream_ends_without_done(
    client: TestClient, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.failure, backend.fail_after = RuntimeError("secret"), 2
    response = chat(client, stream=True)
    assert response.status_code == 200
    frames = response.text.split("\n\n")
    assert frames[-1] == ""
    error = json.loads(frames[-2].removeprefix("data: "))["error"]
    assert error["code"] == "internal_error"
    assert "secret" not in response.text
    assert "[DONE]" not in response.text
    assert response.headers["x-request-id"] in caplog.text
