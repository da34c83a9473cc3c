"""Calls and their results, as Anthropic pairs them; a function a rule.

| rule                                                              | error of Anthropic's                    |
|-------------------------------------------------------------------|-----------------------------------------|
| each `tool_use` has a `tool_result` in the next message           | ids were found without `tool_result`    |
| each `tool_result` has its `tool_use` in the message before       | unexpected `tool_use_id`                |
| one result a call                                                 | each tool_use must have a single result |
| ids of calls are unique in the conversation                       | `tool_use` ids must be unique           |
| a search's result comes behind its `server_tool_use`              | unexpected `tool_use_id`                |

Neighbouring messages of one speaker count as one, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from ostinato.api.anthropic.blocks import (
    Block,
    InputMessage,
    ServerToolUseBlock,
    ToolResultBlock,
    ToolSearchResultBlock,
    ToolUseBlock,
)
from ostinato.errors import InvalidRequestError

_Placed = tuple[str, Block]
"""A block and its path."""


def require_answered_calls(messages: Sequence[InputMessage]) -> None:
    """See the module's docstring. For conversations that end with the user's turn.

    Raises:
        InvalidRequestError: a rule is broken; names the block and its id.
    """
    open_calls: Mapping[str, str] = {}
    known: set[str] = set()
    for turn in _turns(messages):
        _require_results(turn, open_calls)
        _require_searches(turn, known)
        open_calls = {block.id: path for path, block in turn if isinstance(block, ToolUseBlock)}


def _turns(messages: Sequence[InputMessage]) -> Iterator[list[_Placed]]:
    for _, run in groupby(enumerate(messages), key=lambda numbered: numbered[1].role):
        yield [
            (f"messages[{at}].content[{n}]", block)
            for at, message in run
            if not isinstance(message.content, str)
            for n, block in enumerate(message.content)
        ]


def _require_results(turn: Sequence[_Placed], open_calls: Mapping[str, str]) -> None:
    """Exactly one result in `turn` for each call of the turn before; `open_calls` has their paths by id."""
    results: set[str] = set()
    for path, block in turn:
        if not isinstance(block, ToolResultBlock):
            continue
        call_id = block.tool_use_id
        if call_id not in open_calls:
            raise _refused(
                path,
                f"unexpected tool_use_id {call_id[:80]!r} in a tool_result: each must have its tool_use in "
                "the message before; send that one too, or leave the result out",
            )
        if call_id in results:
            raise _refused(
                path,
                f"a second tool_result for tool_use_id {call_id[:80]!r}: each tool_use must have a single "
                "result; put both into its content",
            )
        results.add(call_id)
    if missing := [call_id for call_id in open_calls if call_id not in results]:
        raise _refused(
            open_calls[missing[0]],
            "tool_use ids without a tool_result in the next message: "
            f"{', '.join(missing)[:200]}; send one for each, with is_error if the tool did not run",
        )


def _require_searches(turn: Sequence[_Placed], known: set[str]) -> None:
    """Ids of calls are new, and results of searches have one of a call before them; `known` takes them all."""
    for path, block in turn:
        if isinstance(block, ToolUseBlock | ServerToolUseBlock):
            if block.id in known:
                raise _refused(
                    path, f"tool_use ids must be unique, but {block.id[:80]!r} was there before"
                )
            known.add(block.id)
        elif isinstance(block, ToolSearchResultBlock) and block.tool_use_id not in known:
            raise _refused(
                path,
                f"unexpected tool_use_id {block.tool_use_id[:80]!r} in a tool_search_tool_result: its "
                "server_tool_use must come before it; send both or neither",
            )


def _refused(path: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path}: {what}", param=path)
