"""Guards text ↔ ids: exact bytes behind every token, special tokens, and which ids end a generation.

A missing end-of-turn id makes a chat run on into the next turn; inexact bytes break streaming of everything
that is not ASCII.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models

from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.tokenizer import Tokenizer
from tests import tiny

VOCABULARY = tiny.tiny_vocabulary()
ENDOFTEXT, IM_START, IM_END = (VOCABULARY[text] for text in tiny.SPECIAL_TOKENS)
ADDS_START = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<|im_start|>": {"id": "<|im_start|>", "ids": [IM_START], "tokens": ["<|im_start|>"]}
    },
}


def make_tokenizer(**changes: Any) -> Tokenizer:
    content = json.dumps({**tiny.tiny_tokenizer_json(), **changes})
    return Tokenizer.from_json(content, bos_token_id=IM_START, eos_token_ids=[IM_END])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


def folder_with(tmp_path: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


@given(text=st.text())
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(text: str) -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()


def test_one_character_may_be_several_tokens_with_exact_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀")
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [
        b"\xf0",
        b"\x9f",
        b"\x98",
        b"\x80",
    ]
    assert tokenizer.token_text(ids[0]) == "\ufffd"
    assert tokenizer.decode(ids) == "😀"


def test_special_tokens_are_parsed_shown_alone_and_left_out_of_decoded_text(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("<|im_start|>the<|im_end|>")
    assert ids == [IM_START, VOCABULARY["the"], IM_END]
    assert [tokenizer.is_special(token_id) for token_id in ids] == [True, False, True]
    assert tokenizer.token_text(IM_END) == "<|im_end|>"
    assert tokenizer.token_bytes(IM_END) == b"<|im_end|>"
    assert tokenizer.decode(ids) == "the"


def test_every_special_token_that_ends_a_turn_ends_a_generation(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_ids == {IM_END, ENDOFTEXT}
    assert tokenizer.bos_token_id == IM_START
    assert tokenizer.vocab_size == len(VOCABULARY)


def test_text_that_merely_spells_an_end_of_turn_token_ends_nothing() -> None:
    plain = tiny.tiny_tokenizer_json()
    plain["model"]["vocab"]["<|end|>"] = len(VOCABULARY)
    made = Tokenizer.from_json(json.dumps(plain), bos_token_id=None, eos_token_ids=[])
    assert made.eos_token_ids == {made.token_id("<|im_end|>"), made.token_id("<|endoftext|>")}
    assert made.token_id("<|end|>") is not None


def test_only_encode_prompt_adds_what_the_post_processor_adds() -> None:
    mark = {"id": "<|im_start|>", "type_id": 0}
    made = make_tokenizer(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": mark}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {
                "<|im_start|>": {
                    "id": "<|im_start|>",
                    "ids": [IM_START],
                    "tokens": ["<|im_start|>"],
                }
            },
        }
    )
    assert made.encode_prompt("the") == [IM_START, *made.encode("the")]
    assert made.encode("the") == [VOCABULARY["the"]]


def test_truncation_and_padding_of_a_training_run_are_switched_off() -> None:
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    made = make_tokenizer(padding=padding, truncation=truncation)
    assert (
        made.encode("abcd") == [ord(letter) - ord("!") for letter in "abcd"]
        or made.decode(made.encode("abcd")) == "abcd"
    )
    assert len(made.encode("abcd")) == 4


def test_ids_outside_the_vocabulary_have_no_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token_text(10**6) == ""
    assert not tokenizer.is_special(10**6)


def test_json_round_trips(tokenizer: Tokenizer) -> None:
    again = Tokenizer.from_json(
        tokenizer.to_json(),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    text = "<|im_start|>the end 12 é\n\n"
    assert again.encode(text) == tokenizer.encode(text)


def test_byte_fallback_tokens_stand_for_one_byte_and_word_starts_for_a_space() -> None:
    backend = BackendTokenizer(
        models.BPE(
            vocab={"<unk>": 0, "<0xE4>": 1, "▁the": 2},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    made = Tokenizer(backend, bos_token_id=None, eos_token_ids=[])
    assert made.token_bytes(1) == b"\xe4"
    assert made.token_bytes(2) == b" the"


def test_a_folder_gives_bos_and_every_end_that_its_files_name(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path,
        {
            "tokenizer.json": tiny.tiny_tokenizer_json(),
            "tokenizer_config.json": {"bos_token": {"content": "<|im_start|>"}, "eos_token": "the"},
            "config.json": {"eos_token_id": VOCABULARY["in"]},
            "generation_config.json": {"eos_token_id": [VOCABULARY["an"], VOCABULARY["er"]]},
        },
    )
    made = Tokenizer.from_folder(folder)
    assert made.bos_token_id == IM_START
    named = {VOCABULARY[text] for text in ("the", "in", "an", "er")}
    assert made.eos_token_ids == named | {IM_END, ENDOFTEXT}


def test_a_folder_with_a_tokenizer_alone_is_enough(tmp_path: Path) -> None:
    made = Tokenizer.from_folder(
        folder_with(tmp_path, {"tokenizer.json": tiny.tiny_tokenizer_json()})
    )
    assert made.bos_token_id is None
    assert made.eos_token_ids == {IM_END, ENDOFTEXT}


def test_a_folder_without_tokenizer_json_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="save_pretrained"):
        Tokenizer.from_folder(tmp_path)


def test_a_damaged_tokenizer_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not JSON"), ("[]", "not a JSON object")]
)
def test_damaged_settings_are_refused_by_file(tmp_path: Path, content: str, message: str) -> None:
    folder_with(tmp_path, {"tokenizer.json": tiny.tiny_tokenizer_json()})
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(
        ModelFormatError,
        match=rf"tokenizer_config\.json.* {message}|tokenizer_config\.json {message}",
    ):
        Tokenizer.from_folder(tmp_path)


@given(text=st.text() | st.sampled_from(["<|im_start|>the <|im_end|>\n", "", "the 12 é 😀"]))
def test_encoding_gives_the_backends_ids(text: str) -> None:
    content = {**tiny.tiny_tokenizer_json(), "post_processor": ADDS_START}
    backend = BackendTokenizer.from_str(json.dumps(content))
    tokenizer = make_tokenizer(post_processor=ADDS_START)
    assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
    assert (
        tokenizer.encode_prompt(text)
        == backend.encode(text).ids
        == [
            IM_START,
            *tokenizer.encode(text),
        ]
    )
