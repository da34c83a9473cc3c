"""From a request to the conversation that it continues, and to the prompt that is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.api.backend import Backend, EncodedPrompt, ServedModel
from ostinato.api.openai_responses.continuation import spliced
from ostinato.api.openai_responses.items import (
    Item,
    messages_of,
    stored_items,
    with_id,
)
from ostinato.api.openai_responses.request import ResponsesRequest
from ostinato.api.openai_responses.store import ResponseStore, StoredResponse
from ostinato.api.openai_responses.truncation import encode_what_fits
from ostinato.cache.types import TenantId
from ostinato.errors import RequestError


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request's conversation, ready to be answered.

    Attributes:
        items: all of it, in Responses' own form, each with an id.
        rendered: its prompt, as the model's template has it.
        computed: the same with the tokens that were generated before, where that can be done.
    """

    items: Sequence[Mapping[str, Any]]
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
        RequestError: an item cannot be read, or the conversation is too long.
    """
    shown = [] if previous is None else [*previous.items, *previous.response["output"]]
    history, new = stored_items(shown), body.input_items()
    items: list[Item] = [*history, *new]
    left: Sequence[Item] = items

    async def encode(some: Sequence[Item]) -> EncodedPrompt:
        return await backend.encode(body.prompt(some, len(some) - len(new)))

    if body.truncation == "auto":
        room = min(model.max_model_len, backend.health().pool_tokens)
        left, rendered = await encode_what_fits(items, encode, room - (body.max_output_tokens or 1))
    else:
        rendered = await encode(items)
    shown += [with_id(item) for item in new]
    if len(left) < len(items):
        kept = {id(item) for item in left}
        shown = [one for one, item in zip(shown, items, strict=True) if id(item) in kept]
        return Conversation(shown, rendered, rendered)
    return Conversation(shown, rendered, _computed(rendered, previous, model))


def _computed(
    rendered: EncodedPrompt, previous: StoredResponse | None, model: ServedModel
) -> EncodedPrompt:
    if previous is None or previous.continuation is None:
        return rendered
    before = stored_items(previous.items)
    answer = stored_items(previous.response["output"])
    segments = _num_segments([*before, *answer]) - _num_segments(before)
    return spliced(previous.continuation, rendered, segments, model.end_token_ids)


def _num_segments(items: Sequence[Item]) -> int:
    messages = messages_of(items, lambda _: None)
    return sum(len(message.parts) + len(message.tool_calls) for message in messages)
