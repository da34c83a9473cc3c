"""Calls and their results, as Chat Completions pairs them.

    assistant with tool_calls ─► one tool message or more for each call ─► anything else

OpenAI answers 400 to a call without a tool message right behind ("must be followed by tool messages responding
to each 'tool_call_id'") and to a tool message without a call before ("must be a response to a preceding message
with 'tool_calls'").
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.api.prompt import Message, Role
from ostinato.errors import InvalidRequestError


def require_answered_calls(messages: Sequence[Message], *, asks_for_answer: bool) -> None:
    """Refuse calls without results, and results without calls.

    Args:
        messages: one each of the request's.
        asks_for_answer: the conversation goes on with an answer; else it may end with open calls.

    Raises:
        InvalidRequestError: names the message and the id.
    """
    calls: list[str] = []
    answered: set[str | None] = set()
    caller = 0
    for at, message in enumerate(messages):
        if message.role is Role.TOOL:
            if message.tool_call_id not in calls:
                raise _orphan(f"messages[{at}]", message.tool_call_id or "")
            answered.add(message.tool_call_id)
            continue
        _require_all(calls, answered, caller)
        calls, caller, answered = [call.call_id for call in message.tool_calls], at, set()
    if asks_for_answer:
        _require_all(calls, answered, caller)


def _require_all(calls: Sequence[str], answered: set[str | None], caller: int) -> None:
    missing = [call_id for call_id in calls if call_id not in answered]
    if missing:
        raise InvalidRequestError(
            f"messages[{caller}]: an assistant message with tool_calls must be followed by tool messages "
            f"responding to each tool_call_id; these have none: {', '.join(missing)[:200]}. Send a message of "
            "role 'tool' for each right behind it, or leave the calls out",
            param=f"messages[{caller}].tool_calls",
        )


def _orphan(path: str, call_id: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{path}: a message of role 'tool' must be a response to a preceding message with tool_calls, and "
        f"none there has the id {call_id[:80]!r}: send the assistant message that made the call right before "
        "its results",
        param=f"{path}.tool_call_id",
    )
