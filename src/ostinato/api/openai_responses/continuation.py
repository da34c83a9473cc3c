"""Continuation: the next prompt of a conversation, with what was generated put in token by token.

Text that a model generated need not come back as the tokens that it was generated as: a tokenizer may cut it
elsewhere, a template may trim it. One token that differs makes all K/V behind it useless. So a stored response
keeps its token ids, and the next prompt is

    prompt as it was computed ‖ answer as it was generated ‖ the new prompt from the end of that turn on

as long as the new prompt, rendered anew, begins with the conversation that the old one was rendered from. If it
does not (other instructions, other tools, a template that rewrites history), the new rendering is taken.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ostinato.api.backend import EncodedPrompt
from ostinato.api.prompt import SegmentKind
from ostinato.cache.types import TokenArray

MAX_CLOSING_TOKENS = {SegmentKind.ASSISTANT: 2, SegmentKind.TOOL_USE: 16}
"""Most tokens that a template may put between the end of a turn's last segment and the token that ends the
turn, before it is taken for something else: white space, or the closing mark of a call."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a response leaves for the one that continues it.

    Attributes:
        token_ids: ``(num_tokens,)`` int32: the prompt as it was computed and the answer as it was generated,
            without the token that ended it.
        boundaries: of the prompt's segments, in `token_ids`.
        base_tokens: length of the prompt up to its last segment's end, as it was rendered.
        base_digest: SHA-256 of those tokens.
        is_cut_off: the answer ended in the middle, because it was long enough.
    """

    token_ids: TokenArray
    boundaries: tuple[int | None, ...]
    base_tokens: int
    base_digest: bytes
    is_cut_off: bool

    def to_json(self) -> dict[str, Any]:
        raw = zlib.compress(np.ascontiguousarray(self.token_ids, dtype="<i4").tobytes())
        return {
            "token_ids": base64.b64encode(raw).decode(),
            "boundaries": list(self.boundaries),
            "base_tokens": self.base_tokens,
            "base_digest": self.base_digest.hex(),
            "is_cut_off": self.is_cut_off,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Continuation:
        raw = zlib.decompress(base64.b64decode(value["token_ids"]))
        return cls(
            token_ids=np.frombuffer(raw, dtype="<i4").astype(np.int32),
            boundaries=tuple(value["boundaries"]),
            base_tokens=value["base_tokens"],
            base_digest=bytes.fromhex(value["base_digest"]),
            is_cut_off=value["is_cut_off"],
        )


def continuation_of(
    rendered: EncodedPrompt,
    computed: EncodedPrompt,
    output_token_ids: Sequence[int],
    end_token_ids: Collection[int],
    *,
    is_cut_off: bool,
) -> Continuation | None:
    """What a response leaves; None if it cannot be continued token by token.

    Args:
        rendered: its prompt, as the model's template has it.
        computed: the same as it was computed: `spliced`, or `rendered` itself.
        output_token_ids: of the answer, the token that ended it included.
        end_token_ids: tokens that end a turn.
        is_cut_off: the answer was long enough before it ended.
    """
    base = rendered.boundaries[-1] if rendered.boundaries else None
    if base is None or not output_token_ids:
        return None
    output = list(output_token_ids)
    if output[-1] in end_token_ids:
        del output[-1]
    return Continuation(
        token_ids=np.concatenate((computed.token_ids, np.array(output, dtype=np.int32))),
        boundaries=computed.boundaries,
        base_tokens=base,
        base_digest=_digest(rendered.token_ids[:base]),
        is_cut_off=is_cut_off,
    )


def spliced(
    previous: Continuation,
    rendered: EncodedPrompt,
    num_answer_segments: int,
    end_token_ids: Collection[int],
) -> EncodedPrompt:
    """The prompt that continues `previous`; `rendered` itself where that cannot be done exactly.

    Args:
        previous: of the response that is continued.
        rendered: the whole conversation.
        num_answer_segments: segments of the previous answer in it, behind those of the previous prompt.
        end_token_ids: tokens that end a turn.
    """
    first = len(previous.boundaries)
    last = first + num_answer_segments - 1
    if num_answer_segments < 1 or last >= len(rendered.segments):
        return rendered
    base = rendered.boundaries[first - 1] if first else None
    if base != previous.base_tokens or _digest(rendered.token_ids[:base]) != previous.base_digest:
        return rendered
    rest = _end_of_turn(rendered, last, end_token_ids, is_cut_off=previous.is_cut_off)
    if rest is None:
        return rendered
    kept = len(previous.token_ids)
    answer = (*(None,) * (num_answer_segments - 1), kept)
    behind = (None if end is None else end - rest + kept for end in rendered.boundaries[last + 1 :])
    return replace(
        rendered,
        token_ids=np.concatenate((previous.token_ids, rendered.token_ids[rest:])),
        boundaries=(*previous.boundaries, *answer, *behind),
    )


def _end_of_turn(
    rendered: EncodedPrompt, last: int, end_token_ids: Collection[int], *, is_cut_off: bool
) -> int | None:
    """Where the token lies that ends the turn whose last segment is `last`; None if that is not certain."""
    end, kind = rendered.boundaries[last], rendered.segments[last].kind
    if end is None or (is_cut_off and kind is not SegmentKind.ASSISTANT):
        return None
    reach = 0 if is_cut_off else MAX_CLOSING_TOKENS.get(kind, 0)
    behind = rendered.token_ids[end : end + reach + 1].tolist()
    return next((end + at for at, token in enumerate(behind) if token in end_token_ids), None)


def _digest(token_ids: TokenArray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(token_ids, dtype="<i4").tobytes()).digest()
