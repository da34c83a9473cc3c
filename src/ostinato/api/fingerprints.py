"""From an encoded prompt to its fingerprint: what `product.diagnosis` compares of two requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ostinato.api.backend import EncodedPrompt, ServedModel
from ostinato.api.prompt import Message, Prompt
from ostinato.cache.types import TenantId
from ostinato.product.diagnosis import Change, Fingerprint, Fingerprinter, SegmentContent


def fingerprint_of(
    fingerprinter: Fingerprinter,
    encoded: EncodedPrompt,
    *,
    tenant: TenantId,
    model: ServedModel,
    settings: Mapping[Change, Any],
) -> Fingerprint:
    """The fingerprint of a conversation.

    Args:
        fingerprinter: of the server.
        encoded: made from a `Prompt`.
        tenant: whose it is.
        model: that answers.
        settings: JSON values of what the dialect has besides; None is as absent. `Change.MODEL` may add to what
            the model is, e.g. a speed; template variables are part of `Change.OTHER_SETTINGS` already.
    """
    prompt = encoded.source
    assert isinstance(prompt, Prompt)
    others = settings.get(Change.OTHER_SETTINGS)
    variables = dict(prompt.template_variables)
    return fingerprinter.fingerprint(
        tenant,
        [
            SegmentContent(segment.kind, content, end)
            for segment, content, end in zip(
                encoded.segments, _contents(prompt), encoded.boundaries, strict=True
            )
        ],
        len(encoded.token_ids),
        {
            **settings,
            Change.MODEL: [model.id, model.fingerprint, settings.get(Change.MODEL)],
            Change.OTHER_SETTINGS: [variables, others] if variables or others else None,
        },
    )


def _contents(prompt: Prompt) -> Iterator[Any]:
    """In the order of `Prompt.segments`."""
    for tool in prompt.tools:
        if not tool.deferred:
            yield tool.schema
    for message in prompt.messages:
        yield from _message_contents(message)


def _message_contents(message: Message) -> Iterator[Any]:
    """What belongs to the message as a whole goes with its first segment. Ids of calls are not rendered."""
    whole: list[Any] = [message.name, message.reasoning]
    for part in message.parts:
        yield [part.text, *whole]
        whole = []
    for call in message.tool_calls:
        yield [call.name, call.arguments, *whole]
        whole = []
