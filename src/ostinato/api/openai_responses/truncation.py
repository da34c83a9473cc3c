"""``truncation: "auto"``: leave out the oldest turns of a conversation that is longer than the context.

A prompt that loses its oldest turn at every request has a new beginning every time, and nothing of it is ever
in the cache. So the cut moves in strides: it stays where it is until the conversation has grown by a stride,
and the requests in between share their prefix.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate

from ostinato.api.backend import EncodedPrompt
from ostinato.api.openai_responses.items import Item, MessageItem
from ostinato.errors import ContextLengthError

Encode = Callable[[Sequence[Item]], Awaitable[EncodedPrompt]]


async def encode_what_fits(
    items: Sequence[Item], encode: Encode, room: int
) -> tuple[Sequence[Item], EncodedPrompt]:
    """Encode a conversation without as many of its oldest turns as it takes to fit.

    System messages at its very beginning and its last turn always stay, whether that fits or not.

    Args:
        items: the whole conversation.
        encode: renders and tokenises.
        room: most tokens.

    Returns:
        The items that are left, and their prompt.

    Raises:
        ContextLengthError: not even the last turn can be encoded.
    """
    whole = await _encoded(items, encode)
    if whole is not None and len(whole.token_ids) <= room:
        return items, whole
    kept = _num_leading_system(items)
    cuts = cut_points(items, kept, stride=room)
    low, high = 0, len(cuts) - 1  # the first cut that fits is in between, or none does
    while low < high:
        middle = (low + high) // 2
        prompt = await _encoded([*items[:kept], *items[cuts[middle] :]], encode)
        if prompt is not None and len(prompt.token_ids) <= room:
            high = middle
        else:
            low = middle + 1
    left = [*items[:kept], *items[cuts[low] :]] if cuts else items
    return left, await encode(left)


def cut_points(items: Sequence[Item], kept: int, stride: int) -> list[int]:
    """Where a conversation may begin behind its first `kept` items, ever later: at the first turn behind each
    multiple of `stride` bytes. They depend on what comes before them only."""
    starts = [
        at
        for at, item in enumerate(items)
        if at > kept and isinstance(item, MessageItem) and item.role == "user"
    ]
    sizes = (len(item.model_dump_json()) for item in items[kept:])
    before = [0, *accumulate(sizes)]
    cuts: dict[int, int] = {}
    for start in starts:
        cuts.setdefault(before[start - kept] // stride, start)
    points = sorted(set(cuts.values()))
    if starts and starts[-1] not in points:
        points.append(starts[-1])
    return points


async def _encoded(items: Sequence[Item], encode: Encode) -> EncodedPrompt | None:
    try:
        return await encode(items)
    except ContextLengthError:
        return None


def _num_leading_system(items: Sequence[Item]) -> int:
    for at, item in enumerate(items):
        if not (isinstance(item, MessageItem) and item.role in ("system", "developer")):
            return at
    return len(items)
