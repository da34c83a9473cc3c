"""Guards that every output has its call and every call its output, over the whole conversation, the stored part
included."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.openai_responses.items import stored_items
from ostinato.api.openai_responses.pairing import require_answered_calls
from ostinato.errors import InvalidRequestError
from tests.api.http import refused
from tests.api.openai_responses.test_responses import URL, ask, refuse

HI = {"role": "user", "content": "hi"}


def call(call_id: str = "c1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": "{}", **more}


def output(call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "4"}


NO_CALL = "No tool call found for function call output with call_id "
NO_OUTPUT = "No tool output found for function call "
WRONG: dict[str, tuple[list[Any], str, str]] = {
    "an output alone": ([HI, output()], "input[1].call_id", NO_CALL + "c1"),
    "an output of another call": ([HI, call(), output("c2")], "input[2].call_id", NO_CALL + "c2"),
    "an output before its call": ([HI, output(), call()], "input[1].call_id", NO_CALL + "c1"),
    "a call at the end": ([HI, call()], "input[1].call_id", NO_OUTPUT + "c1"),
    "one call of two": (
        [call(), call("c2"), output(), HI],
        "input[1].call_id",
        NO_OUTPUT + "c2",
    ),
}


@pytest.mark.parametrize("truncation", ["auto", "disabled"])
@pytest.mark.parametrize("name", WRONG)
def test_calls_and_outputs_that_do_not_pair_are_refused_with_the_item(
    client: TestClient, name: str, truncation: str
) -> None:
    items, param, text = WRONG[name]
    error = refuse(client, input=items, truncation=truncation)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert error["message"].startswith(text)
    counted = client.post(f"{URL}/input_tokens", json={"model": "tiny", "input": items})
    assert refused(counted, 400)["param"] == param


def test_other_items_may_stand_between_a_call_and_its_output(client: TestClient) -> None:
    ask(client, [HI, call(), HI, output(), {"role": "assistant", "content": "4"}, HI])


def test_the_stored_part_of_a_conversation_has_calls_too(client: TestClient) -> None:
    first = ask(client, [HI, call(), output()])
    continued = {"previous_response_id": first["id"]}
    ask(client, [HI], **continued)
    ask(client, [output()], **continued)
    error = refuse(client, input=[output("c9")], **continued)
    assert error["param"] == "input[0].call_id"


def check(items: list[Any], first: int) -> None:
    require_answered_calls(stored_items(items), first)


def test_a_call_of_the_response_before_is_answered_in_the_input() -> None:
    check([HI, call(), output()], 2)
    with pytest.raises(InvalidRequestError, match="of the previous response") as refusal:
        check([HI, call(), HI], 2)
    assert refusal.value.param == "input"


def test_what_truncation_or_a_limit_took_from_the_stored_part_is_no_fault_of_the_client() -> None:
    check([output(), HI, HI], 2)
    check([HI, call(status="incomplete"), HI], 2)
    check([HI, call(status="incomplete"), output()], 2)


def test_an_item_that_may_be_the_other_half_is_refused_by_its_own_name(client: TestClient) -> None:
    error = refuse(client, input=[{"type": "item_reference", "id": "fc_1"}, output()])
    assert "item_reference" in error["message"]
