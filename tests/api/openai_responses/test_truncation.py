"""Guards ``truncation: "auto"``: prompts that do not fit, and cuts that move at every turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from ostinato.api.backend import EncodedPrompt
from ostinato.api.openai_responses.items import Item, MessageItem
from ostinato.api.openai_responses.truncation import encode_what_fits
from ostinato.errors import ContextLengthError

ROOM = 400
RULES = MessageItem(role="developer", content="rules")


async def encode(items: Sequence[Item]) -> EncodedPrompt:
    """Four characters a token; twice the room is refused unseen."""
    size = sum(len(item.model_dump_json()) for item in items) // 4
    if size > 2 * ROOM:
        raise ContextLengthError("too long")
    return EncodedPrompt("", np.zeros(size, dtype=np.int32))


def conversation(turns: int) -> list[Item]:
    items: list[Item] = [RULES]
    for turn in range(turns):
        items.append(MessageItem(role="user", content=f"question {turn}"))
        items.append(MessageItem(role="assistant", content=f"answer {turn} " * 4))
    return [*items, MessageItem(role="user", content="last")]


def fit(items: list[Item]) -> tuple[Sequence[Item], EncodedPrompt]:
    return asyncio.run(encode_what_fits(items, encode, ROOM))


def test_what_fits_is_left_alone() -> None:
    items = conversation(2)
    assert fit(items)[0] is items


@pytest.mark.parametrize("turns", [12, 20, 50, 300])
def test_the_oldest_turns_go_and_rules_and_last_turn_stay(turns: int) -> None:
    items = conversation(turns)
    left, prompt = fit(items)
    assert len(prompt.token_ids) <= ROOM
    assert left[0] is RULES
    assert left[-1] is items[-1]
    assert list(left[1:]) == items[-(len(left) - 1) :]
    assert isinstance(left[1], MessageItem)
    assert left[1].role == "user"


def test_the_cut_stays_where_it_is_for_several_turns() -> None:
    starts = [fit(conversation(turns))[0][1] for turns in range(12, 60)]
    texts = [start.content for start in starts if isinstance(start, MessageItem)]
    assert len(set(texts)) < len(texts) / 2


def test_a_last_turn_that_is_too_long_alone_is_refused_by_whoever_counts() -> None:
    items: list[Item] = [RULES, MessageItem(role="user", content="x" * 9 * ROOM)]
    with pytest.raises(ContextLengthError):
        fit(items)
