"""Guards that every call has one result and every result its call, and that marks are counted where clients set
them: what Anthropic refuses must not be answered here."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.prompt import Prompt, TTLClass
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

SEARCH = {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25"}


def use(call_id: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "get_weather", "input": {}, **more}


def result(call_id: str = "t1", content: Any = "rain", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def found(call_id: str) -> dict[str, Any]:
    content = {"type": "tool_search_tool_search_result", "tool_references": []}
    return {"type": "tool_search_tool_result", "tool_use_id": call_id, "content": content}


WRONG: dict[str, tuple[list[Any], str]] = {
    "a call without a result": (
        [*HI, assistant(use("t1"), use("t2")), user(result("t1"))],
        "messages[1].content[1]: tool_use ids without a tool_result in the next message: t2",
    ),
    "a question in between": (
        [*HI, assistant(use()), *HI, assistant(block("Well")), user(result())],
        "messages[1].content[0]: tool_use ids without",
    ),
    "a result without a call": (
        [*HI, assistant(block("Well")), user(block("x"), result("t9"))],
        "messages[2].content[1]: unexpected tool_use_id 't9'",
    ),
    "a result that comes again": (
        [*HI, assistant(use()), user(result()), assistant(block("Well")), user(result())],
        "messages[4].content[0]: unexpected tool_use_id 't1'",
    ),
    "two results of one call": (
        [*HI, assistant(use()), user(result(), result())],
        "messages[2].content[1]: a second tool_result",
    ),
    "two calls of one id": (
        [*HI, assistant(use(), use()), user(result())],
        "messages[1].content[1]: tool_use ids must be unique",
    ),
    "an id of an earlier turn": (
        [*HI, assistant(use()), user(result()), assistant(use()), user(result())],
        "messages[3].content[0]: tool_use ids must be unique",
    ),
    "a search's result without a search": (
        [*HI, assistant(found("s1")), *HI],
        "messages[1].content[0]: unexpected tool_use_id 's1' in a tool_search_tool_result",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_calls_and_results_that_do_not_pair_are_refused_with_the_block(
    client: TestClient, name: str
) -> None:
    messages, text = WRONG[name]
    assert text in refused(post(client, messages=messages, tools=[WEATHER, SEARCH]), 400)
    counted = client.post(
        f"{MESSAGES}/count_tokens", json={"model": body()["model"], "messages": messages}
    )
    assert text in refused(counted, 400)


def test_neighbouring_messages_of_one_speaker_are_one_turn(client: TestClient) -> None:
    messages = [
        *HI,
        assistant(use("t1")),
        assistant(block("and"), use("t2")),
        user(result("t2")),
        user(result("t1"), block("Well?")),
    ]
    assert post(client, messages=messages, tools=[WEATHER]).status_code == 200


def with_marks(inner: Any, outer: Any, tail: Any = None) -> list[Any]:
    parts = [block("dry"), block("rain", **({"cache_control": inner} if inner else {}))]
    own = {"cache_control": outer} if outer else {}
    end = block("Well?", **({"cache_control": tail} if tail else {}))
    return [*HI, assistant(use()), user(result("t1", parts, **own), end)]


def test_two_marks_on_one_result_are_two_of_four(client: TestClient) -> None:
    tools = [{**WEATHER, "cache_control": SHORT}]
    system = [block("a", cache_control=SHORT)]
    four: dict[str, Any] = {"tools": tools, "system": system, "messages": with_marks(SHORT, SHORT)}
    assert post(client, **four).status_code == 200
    fifth = {**four, "messages": with_marks(SHORT, SHORT, SHORT)}
    assert "5 have; the fifth is messages[2].content[1]" in refused(post(client, **fifth), 400)
    automatic = refused(post(client, **four, cache_control=SHORT), 400)
    assert "one more than the 4" in automatic


def test_the_order_of_lifetimes_holds_within_one_result(client: TestClient) -> None:
    wrong = post(client, messages=with_marks(SHORT, LONG), tools=[WEATHER])
    assert "messages[2].content[0] comes after messages[2].content[0].content[1]" in refused(
        wrong, 400
    )
    assert post(client, messages=with_marks(LONG, SHORT), tools=[WEATHER]).status_code == 200


@pytest.mark.parametrize(("inner", "outer"), [(LONG, SHORT), (LONG, None), (None, LONG)])
def test_a_result_is_kept_as_long_as_its_longest_mark_says(
    client: TestClient, backend: FakeBackend, inner: Any, outer: Any
) -> None:
    assert post(client, messages=with_marks(inner, outer), tools=[WEATHER]).status_code == 200
    source = backend.requests[-1].prompt.source
    assert isinstance(source, Prompt)
    marks = [segment.breakpoint for segment in source.segments()]
    assert [mark.ttl for mark in marks if mark is not None] == [TTLClass.LONG]


def test_a_mark_on_a_tool_reference_counts_and_is_kept(
    client: TestClient, backend: FakeBackend
) -> None:
    reference = {"type": "tool_reference", "tool_name": "get_weather", "cache_control": SHORT}
    late = [SEARCH, {**WEATHER, "defer_loading": True}]
    messages = [*HI, assistant(use()), user(result("t1", [reference]))]
    assert post(client, messages=messages, tools=late).status_code == 200
    source = backend.requests[-1].prompt.source
    assert isinstance(source, Prompt)
    assert source.segments()[-1].breakpoint is not None
    marked = [block(str(n), cache_control=SHORT) for n in range(4)]
    fifth = refused(post(client, messages=messages, tools=late, system=marked), 400)
    assert "the fifth is messages[2].content[0].content[0]" in fifth
