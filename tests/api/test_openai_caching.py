"""Guards the caching fields of Chat Completions: a marker or a key that is read and then dropped."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.prompt import Breakpoint, Prompt, TTLClass
from tests.api.fake import FakeBackend
from tests.api.http import CHAT, refused

MARKED = {"type": "text", "text": "hello", "prompt_cache_breakpoint": {"mode": "explicit"}}


def sent(client: TestClient, backend: FakeBackend, **fields: Any) -> Prompt:
    messages = [{"role": "user", "content": [MARKED, {"type": "text", "text": "there"}]}]
    answer = client.post(CHAT, json={"model": "tiny", "messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    source = backend.requests[-1].prompt.source
    assert isinstance(source, Prompt)
    return source


@pytest.mark.parametrize(
    ("fields", "explicit", "implicit"),
    [
        ({}, TTLClass.SHORT, TTLClass.SHORT),
        ({"prompt_cache_options": {"ttl": "12h"}}, TTLClass.LONG, TTLClass.LONG),
        ({"prompt_cache_options": {"mode": "explicit"}}, TTLClass.SHORT, None),
        ({"prompt_cache_retention": "24h"}, TTLClass.SHORT, TTLClass.LONG),
        ({"prompt_cache_retention": "in_memory"}, TTLClass.SHORT, TTLClass.SHORT),
        (
            {"prompt_cache_options": {"ttl": "30m"}, "prompt_cache_retention": "24h"},
            TTLClass.SHORT,
            TTLClass.SHORT,
        ),
    ],
)
def test_markers_modes_and_lifetimes_reach_the_prompt(
    client: TestClient,
    backend: FakeBackend,
    fields: dict[str, Any],
    explicit: TTLClass,
    implicit: TTLClass | None,
) -> None:
    prompt = sent(client, backend, **fields)
    assert [part.breakpoint for part in prompt.messages[0].parts] == [Breakpoint(explicit), None]
    expected = None if implicit is None else Breakpoint(implicit, explicit=False)
    assert prompt.implicit_breakpoint == expected


def test_a_marker_says_its_own_lifetime(client: TestClient, backend: FakeBackend) -> None:
    part = {**MARKED, "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    prompt = sent(client, backend, messages=[{"role": "user", "content": [part]}])
    assert prompt.messages[0].parts[0].breakpoint == Breakpoint(TTLClass.LONG)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm"),
        (
            {"prompt_cache_options": {"comparison_response_id": "x"}},
            "prompt_cache_options.comparison_response_id",
        ),
        ({"prompt_cache_options": {"mode": "both"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_retention": "1y"}, "prompt_cache_retention"),
        ({"prompt_cache_key": "x" * 2000}, "prompt_cache_key"),
    ],
)
def test_what_chat_lacks_and_what_nobody_knows_is_refused(
    client: TestClient, fields: dict[str, Any], param: str
) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = client.post(CHAT, json={"model": "tiny", "messages": messages, **fields})
    assert refused(answer, 400)["param"] == param
