"""Guards that every failure on this dialect's paths is in its shape, with Anthropic's types and a way out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.api.app import create_app
from ostinato.api.tenants import KeyRing, key_ring
from ostinato.clock import ManualClock
from ostinato.errors import (
    ContextLengthError,
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    RequestFailedError,
)
from tests.api.anthropic.tools import (
    HI,
    LONG,
    MESSAGES,
    SHORT,
    WEATHER,
    assistant,
    block,
    body,
    post,
    refused,
    user,
)
from tests.api.fake import FakeBackend

CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}
DEFERRED = {**WEATHER, "defer_loading": True}
SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}

BODIES: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "at least one message"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content must not be empty"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content must not be empty"),
    ({"messages": [user(block(""))]}, "messages[0].content[0].text must not be empty"),
    ({"messages": [*HI, assistant(block("Once"))]}, "must end with a user message"),
    ({"messages": [{"role": "system", "content": "x"}, *HI]}, "must follow one of role 'user'"),
    ({"messages": [user(IMAGE)]}, "reads text only, not images"),
    ({"messages": [user({"type": "document"})]}, "reads text only, not documents"),
    ({"messages": [user({"type": "poem"})]}, "messages[0].content[0].type must be one of"),
    ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type is required"),
    ({"messages": [user(CALL)]}, "in a message of role 'user'"),
    ({"messages": [user(RESULT)]}, "unexpected tool_use_id 'toolu_1'"),
    (
        {"messages": [*HI, assistant(CALL), *HI]},
        "without a tool_result in the next message: toolu_1",
    ),
    (
        {"messages": [*HI, assistant(CALL), user({**RESULT, "content": [IMAGE]})]},
        "messages[2].content[0].content[0]: the loaded model reads text only",
    ),
    (
        {"messages": [user(*(block("x", cache_control=SHORT) for _ in range(5)))]},
        "at most 4 blocks may have cache_control, but 5 have; the fifth is messages[0].content[4]",
    ),
    (
        {
            "cache_control": SHORT,
            "messages": [user(*(block("x", cache_control=SHORT) for _ in range(4)), block("y"))],
        },
        "one more than the 4",
    ),
    (
        {"cache_control": LONG, "messages": [user(block("x", cache_control=SHORT))]},
        "have different ttls",
    ),
    (
        {
            "system": [block("x", cache_control=SHORT)],
            "messages": [user(block("y", cache_control=LONG))],
        },
        "messages[0].content[0] comes after system[0]",
    ),
    (
        {"messages": [user(block("", cache_control=SHORT))]},
        "cache_control cannot be set for empty text blocks",
    ),
    (
        {
            "messages": [
                *HI,
                assistant(
                    {"type": "thinking", "thinking": "x", "signature": "s", "cache_control": SHORT}
                ),
                *HI,
            ]
        },
        "cache_control cannot be set for thinking blocks",
    ),
    (
        {"tools": [WEATHER, {**DEFERRED, "name": "b", "cache_control": SHORT}]},
        "tools[1].cache_control cannot be set for a tool with defer_loading",
    ),
    ({"messages": [user(block("x", cache_control={"type": "ephemeral", "ttl": "2h"}))]}, "ttl"),
    ({"tools": [DEFERRED]}, "at least one tool must be there from the start"),
    ({"tools": [{**SEARCH, "defer_loading": True}]}, "a search tool cannot be deferred"),
    (
        {"tools": [{"type": "web_search_20260318", "name": "web_search"}]},
        "tools of type 'web_search_20260318' are not run by this server",
    ),
    ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "tools[0].name must be"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema must be a JSON schema"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name: there is another tool called 'get_weather'"),
    ({"tool_choice": {"type": "auto"}}, "only together with tools"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}},
        "which is not among the tools",
    ),
    ({"tools": [WEATHER], "tool_choice": {"type": "any"}}, "cannot be required of this model"),
    ({"max_tokens": -1}, "max_tokens must be at least 0"),
    ({"max_tokens": None}, "max_tokens must be an integer"),
    ({"max_tokens": 0, "stream": True}, "stream is not allowed with it"),
    ({"max_tokens": 0, "thinking": {"type": "adaptive"}}, "thinking is not allowed with it"),
    (
        {"max_tokens": 0, "tools": [WEATHER], "tool_choice": {"type": "any"}},
        "tool_choice is not allowed with it",
    ),
    (
        {
            "max_tokens": 0,
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        },
        "output_config.format is not allowed with it",
    ),
    ({"n": 2}, "n is not supported"),
    ({"stop": "x"}, "here it is stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences must be strings of at least one character"),
    ({"temperature": -1}, "temperature must be between"),
    ({"mcp_servers": [{"url": "https://example.org"}]}, "mcp_servers is not supported"),
]


@pytest.mark.parametrize(("fields", "text"), BODIES, ids=[text for _, text in BODIES])
def test_a_wrong_body_is_refused_with_the_place_and_the_reason(
    client: TestClient, fields: dict[str, Any], text: str
) -> None:
    assert text in refused(post(client, **fields), 400)


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_sampling_fields_are_gone_since_the_version_of_october_2026(
    client: TestClient, name: str
) -> None:
    old, new = ({"anthropic-version": version} for version in ("2023-06-01", "2026-10-21"))
    assert post(client, old, **{name: 1}).status_code == 200
    assert post(client, **{name: 1}).status_code == 200
    assert f"{name} does not exist" in refused(post(client, new, **{name: 1}), 400)


def test_citations_of_a_user_are_gone_since_then_too(client: TestClient) -> None:
    cited = [user(block("x", citations=[{"type": "char_location"}]))]
    assert post(client, {"anthropic-version": "2023-06-01"}, messages=cited).status_code == 200
    new = post(client, {"anthropic-version": "2026-10-21"}, messages=cited)
    assert "citations must be empty" in refused(new, 400)


@pytest.mark.parametrize("version", ["yesterday", "2022-01-01", ""])
def test_a_version_that_never_was_is_refused(client: TestClient, version: str) -> None:
    assert "is not a version" in refused(post(client, {"anthropic-version": version}), 400)


def test_failures_have_anthropics_statuses_and_types(
    client: TestClient, backend: FakeBackend
) -> None:
    refused(post(client, model="claude-9"), 404, "not_found_error")
    refused(client.post(f"{MESSAGES}/batches", json={}), 404, "not_found_error")
    refused(client.get(MESSAGES), 405)
    backend.refuse = EngineOverloadedError("full")
    assert refused(post(client), 529, "overloaded_error") == "full"
    assert post(client).headers["retry-after"]
    backend.refuse = EngineStoppedError("over")
    refused(post(client), 503, "api_error")
    backend.refuse = RequestFailedError("secret")
    assert "secret" not in refused(post(client), 500, "api_error")
    backend.refuse = ContextLengthError("9 tokens, room for 8", param="prompt")
    assert refused(post(client), 400) == "9 tokens, room for 8"
    assert refused(post(client, stream=True), 400) == "9 tokens, room for 8"
    backend.refuse = InvalidRequestError(
        "tools[0].function.parameters cannot be enforced", param="tools[0].function.parameters"
    )
    assert refused(post(client), 400) == "tools[0].input_schema cannot be enforced"


def test_a_body_that_is_no_json_or_too_large_is_refused_in_this_shape(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    assert "JSON" in refused(client.post(MESSAGES, content=b"{", headers=headers), 400)
    assert "JSON" in refused(client.post(MESSAGES, content=b"", headers=headers), 400)
    refused(client.post(MESSAGES, content=b"{}", headers={"content-type": "text/plain"}), 415)
    large = {**headers, "content-length": str(2**31)}
    refused(client.post(MESSAGES, content=b"{}", headers=large), 413, "request_too_large")


def test_the_shape_follows_the_header_on_paths_of_several_dialects(client: TestClient) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    refused(client.get("/v1/models/nothing", headers=headers), 404, "not_found_error")
    assert set(client.get("/v1/models/nothing").json()) == {"error"}


def test_a_thread_is_refused_in_the_way_that_sdks_recover_from(client: TestClient) -> None:
    response = post(client, thread={"type": "create"})
    assert response.status_code == 400
    details = response.json()["error"]["details"]
    assert details == {"error_code": "thread_unsupported_request", "unsupported": []}
    assert post(client, thread=False).status_code == 200


def test_count_tokens_refuses_what_messages_refuses(client: TestClient) -> None:
    counted = client.post(
        f"{MESSAGES}/count_tokens", json={"model": "tiny", "messages": [user(IMAGE)]}
    )
    assert "images" in refused(counted, 400)
    unknown = client.post(f"{MESSAGES}/count_tokens", json={"model": "x", "messages": HI})
    refused(unknown, 404, "not_found_error")


@pytest.fixture
def guarded(backend: FakeBackend, clock: ManualClock) -> Iterator[TestClient]:
    keys: KeyRing | None = key_ring(None, "acme=0123456789abcdef0123", clock)
    with TestClient(create_app(backend, clock=clock, keys=keys)) as client:
        yield client


def test_a_key_may_come_in_either_header(guarded: TestClient) -> None:
    key = "0123456789abcdef0123"
    assert post(guarded, {"x-api-key": key}).status_code == 200
    assert post(guarded, {"authorization": f"Bearer {key}"}).status_code == 200
    both = {"x-api-key": key, "authorization": f"Bearer {key}"}
    assert post(guarded, both).status_code == 200
    for headers in ({}, {"x-api-key": "wrong"}, {**both, "x-api-key": "another"}):
        refused(post(guarded, headers), 401, "authentication_error")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "name", "input", "cache_control"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
NAMES = ["messages", "system", "tools", "tool_choice", "thinking", "cache_control", "max_tokens"]

_FUZZED = TestClient(create_app(FakeBackend(), clock=ManualClock()), raise_server_exceptions=False)


@settings(max_examples=150)
@given(
    fields=st.dictionaries(
        st.sampled_from([*NAMES, "output_config", "diagnostics", "stop_sequences"]), JSON
    )
)
def test_no_body_makes_the_server_fail(fields: dict[str, Any]) -> None:
    response = _FUZZED.post(
        MESSAGES,
        content=json.dumps({**body(), **fields}),
        headers={"content-type": "application/json"},
    )
    if response.status_code != 200:
        assert refused(response, 400)
