"""Guards that Chat Completions refuses, as OpenAI does, calls that nobody answers and answers that nobody asked
for: most templates would render them, and the model would be asked nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.fake import MODEL
from tests.api.http import CHAT, refused

HI = {"role": "user", "content": "hi"}


def calls(*ids: str) -> dict[str, Any]:
    function = {"name": "add", "arguments": "{}"}
    made = [{"id": one, "type": "function", "function": function} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def tool(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "4"}


def post(client: TestClient, messages: list[Any], **more: Any) -> Any:
    return client.post(CHAT, json={"model": MODEL, "messages": messages, **more})


SYSTEM = {"role": "system", "content": "be brief"}
WRONG: dict[str, tuple[list[Any], str, str]] = {
    "a result without any call": ([HI, tool("c1")], "messages[1].tool_call_id", "'c1'"),
    "a result at the very beginning": ([tool("c1"), HI], "messages[0].tool_call_id", "'c1'"),
    "a result of another call": (
        [HI, calls("c1"), tool("c2")],
        "messages[2].tool_call_id",
        "'c2'",
    ),
    "a result behind something else": (
        [HI, calls("c1"), tool("c1"), HI, tool("c1")],
        "messages[4].tool_call_id",
        "'c1'",
    ),
    "a call before the next question": ([HI, calls("c1"), HI], "messages[1].tool_calls", "c1"),
    "one call of two": (
        [HI, calls("c1", "c2"), tool("c1"), HI],
        "messages[1].tool_calls",
        "none: c2",
    ),
    "a call at the end": ([HI, calls("c1")], "messages[1].tool_calls", "c1"),
    "a call before other calls": (
        [HI, calls("c1"), calls("c2"), tool("c2")],
        "messages[1].tool_calls",
        "c1",
    ),
    "a system message in between": (
        [HI, calls("c1"), SYSTEM, tool("c1")],
        "messages[1].tool_calls",
        "c1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_calls_and_results_that_do_not_pair_are_refused_with_the_message(
    client: TestClient, name: str
) -> None:
    messages, param, text = WRONG[name]
    error = refused(post(client, messages), 400)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"].startswith(param.partition(".")[0])
    assert text in error["message"]


def test_results_may_come_in_any_order_and_ids_may_come_again_in_a_later_turn(
    client: TestClient,
) -> None:
    messages = [HI, calls("c1", "c2"), tool("c2"), tool("c1"), calls("c1"), tool("c1"), HI]
    assert post(client, messages).status_code == 200


def test_a_conversation_that_asks_for_no_answer_may_end_with_a_call(client: TestClient) -> None:
    ended = post(client, [HI, calls("c1")], add_generation_prompt=False)
    assert ended.status_code == 200
