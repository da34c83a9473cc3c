"""Guards the refusal of text by its bytes alone: it must never refuse what would have fitted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostinato.errors import ContextLengthError
from ostinato.models.special_text import MARK
from ostinato.models.tokenizer import Tokenizer
from tests import tiny

DECOMPOSED_HANGUL = "\u1112\u1161\u11ab"


def tokenizer_of(**changes: Any) -> Tokenizer:
    content = json.dumps({**tiny.tiny_tokenizer_json(), **changes})
    return Tokenizer.from_json(content, bos_token_id=None, eos_token_ids=())


def model_without(*pieces: str, **changes: Any) -> dict[str, Any]:
    model = tiny.tiny_tokenizer_json()["model"]
    vocab = {text: id_ for text, id_ in model["vocab"].items() if text not in pieces}
    return {**model, "vocab": vocab, **changes}


KINDS = {
    "byte level": tokenizer_of(),
    "composed": tokenizer_of(normalizer={"type": "NFC"}),
    "some bytes have no token": tokenizer_of(model=model_without("z", "À", "Ā")),
}


def refused(tokenizer: Tokenizer, text: str, max_tokens: int) -> bool:
    try:
        tokenizer.require_fit(text, max_tokens)
    except ContextLengthError:
        return True
    return False


@given(text=st.text(max_size=300), kind=st.sampled_from(sorted(KINDS)))
@example(text=DECOMPOSED_HANGUL * 40, kind="composed")
@example(text="z\0" * 100, kind="some bytes have no token")
@example(text="<|endoftext|>" * 30, kind="byte level")
@example(text=MARK * 30, kind="byte level")
def test_what_fits_is_never_refused(text: str, kind: str) -> None:
    tokenizer = KINDS[kind]
    for ids in (tokenizer.encode(text), tokenizer.encode_marked(text)):
        assert not refused(tokenizer, text, max(len(ids), 1))


@pytest.mark.parametrize("kind", ["byte level", "some bytes have no token"])
def test_text_of_more_bytes_than_the_longest_tokens_cover_is_refused_with_numbers(
    kind: str,
) -> None:
    longest = len("<|endoftext|>")
    KINDS[kind].require_fit("a" * 10 * longest, 10)
    with pytest.raises(ContextLengthError, match=r"10 tokens.* 131 characters .*least 11 tokens"):
        KINDS[kind].require_fit("a" * (10 * longest + 1), 10)


def added_token(**changes: Any) -> dict[str, Any]:
    return {**tiny.tiny_tokenizer_json()["added_tokens"][0], **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "aaaa"}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": None},
        {"added_tokens": [added_token(rstrip=True)]},
    ],
)
def test_where_a_token_may_swallow_any_amount_of_text_nothing_is_refused(
    changes: dict[str, Any],
) -> None:
    tokenizer_of(**changes).require_fit("a " * 100_000, 1)
