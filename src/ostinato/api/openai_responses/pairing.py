"""Calls and their outputs, as the Responses API pairs them: by `call_id` over the whole conversation, whatever
stands between them.

OpenAI answers 400 to "No tool call found for function call output" and "No tool output found for function
call", with the conversation that a `previous_response_id` stands for taken into account.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.api.openai_responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    Item,
    OtherItem,
)
from ostinato.errors import InvalidRequestError


def require_answered_calls(items: Sequence[Item], first: int) -> None:
    """Refuse outputs without a call before them, and calls without an output.

    Of the earlier items, outputs may lack their call, since a truncated conversation may have lost it; calls
    that were cut off may be of no use to the client, and need no output.

    Args:
        items: the whole conversation, nothing left out.
        first: index of the first item that comes from the request's `input`.

    Raises:
        InvalidRequestError: names the item and its id.
    """
    if any(isinstance(item, OtherItem) for item in items):
        return  # such an item may be the other half, and is refused by name when it is read
    calls: dict[str, int] = {}
    answered: set[str] = set()
    for at, item in enumerate(items):
        if isinstance(item, FunctionCallItem):
            calls.setdefault(item.call_id, at)
            if _is_cut_off(item):
                answered.add(item.call_id)
        elif isinstance(item, FunctionOutputItem):
            if item.call_id not in calls and at >= first:
                raise _orphan(item.call_id, f"input[{at - first}].call_id")
            answered.add(item.call_id)
    for call_id, at in calls.items():
        if call_id not in answered:
            raise _unanswered(call_id, at - first)


def _is_cut_off(item: FunctionCallItem) -> bool:
    return (item.model_extra or {}).get("status") == "incomplete"


def _orphan(call_id: str, path: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"No tool call found for function call output with call_id {call_id[:80]} ({path}): send the "
        "function_call before it, or continue the response that made it by previous_response_id",
        param=path,
    )


def _unanswered(call_id: str, at: int) -> InvalidRequestError:
    place = "of the previous response" if at < 0 else f"input[{at}].call_id"
    return InvalidRequestError(
        f"No tool output found for function call {call_id[:80]} ({place}): send a function_call_output with "
        "this call_id in input",
        param="input" if at < 0 else f"input[{at}].call_id",
    )
