"""From a request to the conversation that it continues, and to the prompt that is computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ostinato.api.backend import Backend, EncodedPrompt, ServedModel
from ostinato.api.openai_responses.continuation import Continuation, spliced
from ostinato.api.openai_responses.items import (
    Item,
    ToolSearchOutputItem,
    messages_of,
    stored_items,
    with_id,
)
from ostinato.api.openai_responses.pairing import require_answered_calls
from ostinato.api.openai_responses.request import ResponsesRequest
from ostinato.api.openai_responses.store import ResponseStore, StoredResponse
from ostinato.api.openai_responses.tools import Toolbox
from ostinato.api.openai_responses.truncation import encode_what_fits
from ostinato.api.prompt import Message, Prompt
from ostinato.cache.types import TenantId
from ostinato.errors import RequestError


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request's conversation, ready to be answered.

    Attributes:
        items: all of it, in Responses' own form, each with an id.
        toolbox: of the request and the conversation.
        rendered: its prompt, as the model's template has it.
        computed: the same with the tokens that were generated before, where that can be done.
    """

    items: Sequence[Mapping[str, Any]]
    toolbox: Toolbox
    rendered: EncodedPrompt
    computed: EncodedPrompt


async def previous_of(
    body: ResponsesRequest, tenant: TenantId, store: ResponseStore
) -> StoredResponse | None:
    """The response that a request continues; None if it continues none.

    Raises:
        RequestError: there is no such response, or no more.
    """
    wanted = body.previous_response_id
    if wanted is None:
        return None
    found = await store.get(tenant, wanted)
    if found is None:
        raise RequestError(
            f"there is no response {wanted[:80]!r} to continue: it was never stored (store: false), was "
            "deleted, or is too old; send the conversation in input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return found


async def open_conversation(
    body: ResponsesRequest, model: ServedModel, previous: StoredResponse | None, backend: Backend
) -> Conversation:
    """Put the earlier items before the input, leave out what need not fit, encode.

    Raises:
        RequestError: an item cannot be read, a call and its output do not pair, or the conversation is too
            long.
    """
    shown = [] if previous is None else [*previous.items, *previous.response["output"]]
    history, new = stored_items(shown), body.input_items()
    items: list[Item] = [*history, *new]
    require_answered_calls(items, len(history))
    left: Sequence[Item] = items

    async def encode(some: Sequence[Item]) -> EncodedPrompt:
        return await backend.encode(body.prompt(some, len(some) - len(new)))

    if body.truncation == "auto":
        room = min(model.max_model_len, backend.health().pool_tokens)
        left, rendered = await encode_what_fits(items, encode, room - (body.max_output_tokens or 1))
    else:
        rendered = await encode(items)
    toolbox = body.toolbox(left, len(left) - len(new))
    shown += [with_id(item) for item in new]
    if len(left) < len(items):
        kept = {id(item) for item in left}
        shown = [one for one, item in zip(shown, items, strict=True) if id(item) in kept]
        return Conversation(shown, toolbox, rendered, rendered)
    computed = await _computed(rendered, previous, model, backend)
    return Conversation(shown, toolbox, rendered, computed)


async def _computed(
    rendered: EncodedPrompt, previous: StoredResponse | None, model: ServedModel, backend: Backend
) -> EncodedPrompt:
    """The prompt with the tokens of the response that it continues."""
    if previous is None or previous.continuation is None:
        return rendered
    answer = stored_items(previous.response["output"])
    searches = [at for at, item in enumerate(answer) if isinstance(item, ToolSearchOutputItem)]
    behind = searches[-1] + 1 if searches else 0  # of an answer that searched, its last generation
    before = [*stored_items(previous.items), *answer[:behind]]
    num_before = num_segments(_messages(before))
    num_answer = num_segments(_messages([*before, *answer[behind:]])) - num_before
    return await continued(
        previous.continuation, rendered, num_answer, model.end_token_ids, backend
    )


async def continued(
    previous: Continuation,
    rendered: EncodedPrompt,
    num_answer_segments: int,
    end_token_ids: Collection[int],
    backend: Backend,
) -> EncodedPrompt:
    """`spliced`, unless the model's template leaves out what the answer's turn thought: then it expects not to
    read it again.

    Args:
        previous: what the answer left.
        rendered: the conversation that goes on from there.
        num_answer_segments: of the answer in it.
        end_token_ids: tokens that end a turn.
        backend: renders.

    Raises:
        RequestError: the conversation cannot be rendered without the thought.
    """
    assert isinstance(rendered.source, Prompt)  # it was rendered from messages
    num_tools = len(rendered.source.template_tools())
    bare = _without_thought(rendered.source, len(previous.boundaries) - num_tools)
    if bare is not None:
        forgetful = await backend.encode(bare)
        if np.array_equal(forgetful.token_ids, rendered.token_ids):
            return rendered
    return spliced(previous, rendered, num_answer_segments, end_token_ids)


def _without_thought(prompt: Prompt, at: int) -> Prompt | None:
    """`prompt` without the thought of the turn that holds segment `at` of its messages; None: it has none."""
    for number, message in enumerate(prompt.messages):
        size = num_segments([message])
        if at < size:
            if message.reasoning is None:
                return None
            messages = list(prompt.messages)
            messages[number] = replace(message, reasoning=None)
            return replace(prompt, messages=tuple(messages))
        at -= size
    return None


def _messages(items: Sequence[Item]) -> tuple[Message, ...]:
    return messages_of(items, lambda _: None)


def num_segments(messages: Sequence[Message]) -> int:
    """Segments of these messages, as `Prompt.segments` counts them."""
    return sum(len(message.parts) + len(message.tool_calls) for message in messages)
