"""Guards against bodies made to break the server: numbers of thousands of digits, infinities, lone surrogates,
nesting without end. Whatever comes is answered, or refused as the client's mistake; never with a 500."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.http import CHAT, refused
from tests.hostile_json import HUGE, VALUES

TEXT = "/v1/completions"
SHARED = (
    *("model", "n", "seed", "max_tokens", "temperature", "top_p", "top_k", "min_p", "min_tokens"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "stop"),
    *("stop_token_ids", "ignore_eos", "cache_salt", "priority", "user", "stream", "logprobs"),
    *("stream_options", "metadata", "length_penalty", "best_of", "nobody_knows"),
)
CHAT_ONLY = ("messages", "tools", "tool_choice", "chat_template_kwargs", "top_logprobs")

MESSAGES = (
    '{"role": "user", "content": %s}',
    '{"role": %s, "content": "x"}',
    '{"role": "user", "content": "x", "name": %s}',
    '{"role": "user", "content": [{"type": "text", "text": %s}]}',
    '{"role": "user", "content": [{"type": %s, "text": "x"}]}',
)


def body(path: str, field: str, value: str) -> bytes:
    given = {"model": '"tiny"', "max_tokens": "2"}
    given |= (
        {"messages": '[{"role": "user", "content": "x"}]'} if path == CHAT else {"prompt": '"x"'}
    )
    given[field] = value
    return ("{" + ", ".join(f'"{name}": {json}' for name, json in given.items()) + "}").encode()


def answered_or_refused(client: TestClient, path: str, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response: Any = client.post(path, content=content, headers=headers)
    if response.status_code == 200:
        return
    assert 400 <= response.status_code < 500, content[:200]
    assert refused(response, response.status_code)["type"] == "invalid_request_error"
    assert len(response.text) < 2000


@pytest.mark.parametrize(
    ("path", "field"),
    [(CHAT, field) for field in SHARED + CHAT_ONLY]
    + [(TEXT, field) for field in (*SHARED, "prompt")],
)
def test_no_value_of_any_field_is_our_fault(client: TestClient, path: str, field: str) -> None:
    for value in VALUES:
        answered_or_refused(client, path, body(path, field, value))


@pytest.mark.parametrize("message", MESSAGES)
def test_no_part_of_a_message_is_our_fault(client: TestClient, message: str) -> None:
    for value in VALUES:
        answered_or_refused(client, CHAT, body(CHAT, "messages", f"[{message % value}]"))


@pytest.mark.parametrize("value", VALUES)
def test_no_body_as_a_whole_is_our_fault(client: TestClient, value: str) -> None:
    answered_or_refused(client, CHAT, value.encode())


def test_a_token_id_of_thousands_of_digits_is_named(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    content = body(CHAT, "logit_bias", f'{{"{HUGE}": 1}}')
    error = refused(client.post(CHAT, content=content, headers=headers), 400)
    assert error["param"] == "logit_bias"
    assert "is not a token id" in error["message"]


@pytest.mark.parametrize("content", [b'{"a": "\xff"}', b"[" * 100_000, f"[{HUGE}]".encode()])
def test_a_body_that_no_parser_takes_is_invalid_json(client: TestClient, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    error = refused(client.post(CHAT, content=content, headers=headers), 400)
    assert error["code"] == "invalid_json"


@pytest.mark.parametrize(
    "name", ["self", "messages", "tools", "bos_token", "raise_exception", "strftime_now"]
)
def test_template_variables_that_are_ours_are_refused_by_name(
    client: TestClient, name: str
) -> None:
    content = body(CHAT, "chat_template_kwargs", f'{{"{name}": 1}}')
    headers = {"content-type": "application/json"}
    error = refused(client.post(CHAT, content=content, headers=headers), 400)
    assert error["param"] == "chat_template_kwargs"
    assert name in error["message"]
