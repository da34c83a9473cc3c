"""Guards tokenizers built from GGUF arrays against other implementations.

The oracles (fixtures/tokenizer_oracles.json) are llama.cpp, transformers and SentencePiece. A wrong
pre-tokenizer gives ids that look right and answers that are subtly worse, so only comparison shows it.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.registry import resolve_model
from ostinato.models.special_text import MARK
from ostinato.models.tokenizer import Tokenizer
from ostinato.models.tokenizer_gguf import tokenizer_from_gguf
from ostinato.models.weights.gguf_format import read_header
from tests import tiny
from tests.models.gguf_samples import tiny_tokenizer_metadata

ORACLES = json.loads(
    Path(__file__).with_name("fixtures").joinpath("tokenizer_oracles.json").read_text()
)
TEXTS: list[str] = ORACLES["texts"]


@pytest.fixture(scope="module")
def smollm2_metadata(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = resolve_model("smollm2-135m-instruct", tmp_path_factory.mktemp("data"))
    return read_header(path).metadata


@pytest.fixture(scope="module")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return tokenizer_from_gguf(smollm2_metadata)


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    arrays = ORACLES["sentencepiece"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": arrays["tokens"],
        "tokenizer.ggml.scores": arrays["scores"],
        "tokenizer.ggml.token_type": arrays["types"],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


def pieces(pre: str, text: str) -> list[str]:
    """How the tokenizer splits `text` before it merges anything."""
    from tokenizers import Tokenizer as BackendTokenizer

    made = tokenizer_from_gguf(tiny_tokenizer_metadata(**{"tokenizer.ggml.pre": pre}))
    backend = BackendTokenizer.from_str(made.to_json())
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def test_smollm2_gives_the_ids_that_llama_cpp_gives(smollm2: Tokenizer) -> None:
    assert [smollm2.encode(text) for text in TEXTS] == ORACLES["smollm_ids"]


@pytest.mark.parametrize("pre", ORACLES["ids_by_pre"])
def test_other_pre_tokenizers_give_the_ids_that_llama_cpp_gives_with_them(
    pre: str, smollm2_metadata: dict[str, Any]
) -> None:
    made = tokenizer_from_gguf({**smollm2_metadata, "tokenizer.ggml.pre": pre})
    expected = ORACLES["ids_by_pre"][pre]
    assert [made.encode(text) for text in TEXTS[: len(expected)]] == expected


def test_smollm2_decodes_to_the_very_bytes(smollm2: Tokenizer) -> None:
    for text in TEXTS:
        ids = smollm2.encode(text)
        assert b"".join(smollm2.token_bytes(token_id) for token_id in ids) == text.encode()


def test_smollm2_ends_with_im_end_and_adds_no_bos(smollm2: Tokenizer) -> None:
    assert smollm2.eos_token_ids == {
        smollm2.token_id("<|im_end|>"),
        smollm2.token_id("<|endoftext|>"),
    }
    assert smollm2.bos_token_id == 1
    assert smollm2.vocab_size == 49152
    assert smollm2.encode_prompt("Hello") == smollm2.encode("Hello")


@pytest.mark.parametrize("pre", ["qwen2", "deepseek-r1-qwen"])
def test_qwen2_splits_text_as_transformers_does(pre: str) -> None:
    assert [pieces(pre, text) for text in TEXTS] == ORACLES["qwen2_pieces"]


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3"])
def test_llama3_splits_text_as_transformers_does(pre: str) -> None:
    assert [pieces(pre, text) for text in TEXTS] == ORACLES["llama3_pieces"]


def test_sentencepiece_arrays_give_the_ids_that_sentencepiece_gives() -> None:
    made = tokenizer_from_gguf(sentencepiece_metadata())
    assert [made.encode(text) for text in TEXTS] == ORACLES["sentencepiece"]["ids"]


def test_sentencepiece_prompts_begin_with_bos_and_decode_to_the_text() -> None:
    made = tokenizer_from_gguf(sentencepiece_metadata())
    for text in TEXTS:
        assert made.encode_prompt(text) == [1, *made.encode(text)]
        assert made.decode(made.encode_prompt(text)) == text


def test_composed_and_decomposed_characters_are_one_text_to_qwen2_only() -> None:
    decomposed = unicodedata.normalize("NFD", "é")
    for pre, same in (("qwen2", True), ("gpt-2", False)):
        made = tokenizer_from_gguf(tiny_tokenizer_metadata(**{"tokenizer.ggml.pre": pre}))
        assert (made.encode(decomposed) == made.encode("é")) is same


def test_smollm_takes_digits_one_by_one_and_gpt2_does_not() -> None:
    assert pieces("smollm", "12") == ["1", "2"]
    assert pieces("gpt-2", "12") == ["12"]


def test_tekken_parts_words_where_lower_case_turns_to_upper_case() -> None:
    assert pieces("tekken", "CamelCase 12") == ["Camel", "Case", "Ġ", "1", "2"]


def test_deepseek_coder_takes_digits_and_line_ends_one_by_one() -> None:
    assert pieces("deepseek-coder", "x = 10\n\n") == ["x", "Ġ=Ġ", "1", "0", "Ċ", "Ċ"]


def test_a_file_without_a_pre_tokenizer_is_split_by_the_formats_default() -> None:
    metadata = tiny_tokenizer_metadata()
    del metadata["tokenizer.ggml.pre"]
    text = "a  12345!"
    assert tokenizer_from_gguf(metadata).encode(text)
    assert pieces("default", text) == ["a", "Ġ", "Ġ", "123", "45", "!"]


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
        ({"tokenizer.ggml.pre": "gpt-2"}, False),
        ({"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True}, True),
    ],
)
def test_prompts_begin_with_bos_where_the_file_or_else_the_family_says_so(
    changes: dict[str, Any], adds: bool
) -> None:
    made = tokenizer_from_gguf(tiny_tokenizer_metadata(**changes))
    bos = [made.bos_token_id] if adds else []
    assert made.encode_prompt("the") == bos + made.encode("the")


def test_llama3_takes_a_whole_word_that_is_a_token_without_merges() -> None:
    metadata = tiny_tokenizer_metadata(**{"tokenizer.ggml.pre": "llama-bpe"})
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "zzzz"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    made = tokenizer_from_gguf(metadata)
    assert made.encode("zzzz") == [made.token_id("zzzz")]


def test_end_of_turn_ids_of_the_file_end_a_generation_too() -> None:
    the = tiny.tiny_vocabulary()["the"]
    made = tokenizer_from_gguf(tiny_tokenizer_metadata(**{"tokenizer.ggml.eot_token_id": the}))
    assert the in made.eos_token_ids


def test_user_defined_tokens_are_never_split_but_are_text() -> None:
    metadata = tiny_tokenizer_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "<tool_call>"]
    kinds = [*metadata["tokenizer.ggml.token_type"], 4]
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    made = tokenizer_from_gguf(metadata)
    assert made.encode("<tool_call>") == [len(tokens) - 1]
    assert not made.is_special(len(tokens) - 1)
    assert made.decode([len(tokens) - 1]) == "<tool_call>"


def every_kind(smollm2: Tokenizer) -> list[Tokenizer]:
    names = ("llama-bpe", "qwen2", "tekken", "default")
    byte_level = [tiny_tokenizer_metadata(**{"tokenizer.ggml.pre": name}) for name in names]
    return [smollm2, *map(tokenizer_from_gguf, [*byte_level, sentencepiece_metadata()])]


@pytest.mark.parametrize("kind", range(6))
def test_marks_in_ordinary_text_leave_no_trace(smollm2: Tokenizer, kind: int) -> None:
    tokenizer = every_kind(smollm2)[kind]
    for text in TEXTS:
        middle = len(text) // 2
        if any(special in text for special in ("<|", "<s>", "</s>", "<unk>")):
            continue
        assert tokenizer.encode_marked(text[:middle] + MARK + text[middle:]) == tokenizer.encode(
            text
        )


@pytest.mark.parametrize("kind", range(6))
def test_marked_spellings_of_special_tokens_are_text_between_real_ones(
    smollm2: Tokenizer, kind: int
) -> None:
    tokenizer = every_kind(smollm2)[kind]
    real = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i))
    for special in range(tokenizer.vocab_size):
        if tokenizer.is_special(special):
            spelling = tokenizer.token_text(special)
            text = f"{tokenizer.token_text(real)}{tokenizer.mark_special_text(f'a{spelling}b')}"
            first, *rest = tokenizer.encode_marked(text)
            assert first == real
            assert not any(tokenizer.is_special(i) for i in rest)
            assert tokenizer.decode(rest).strip() == f"a{spelling}b"


def test_an_unknown_pre_tokenizer_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'martian' is not known"):
        tokenizer_from_gguf(tiny_tokenizer_metadata(**{"tokenizer.ggml.pre": "martian"}))


def test_an_unknown_tokenizer_model_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'t5' is not supported"):
        tokenizer_from_gguf({"tokenizer.ggml.model": "t5"})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (tiny_tokenizer_metadata(**{"tokenizer.ggml.merges": ["th"]}), "not two tokens"),
        (tiny_tokenizer_metadata(**{"tokenizer.ggml.merges": ["x yy"]}), "do not fit"),
        (tiny_tokenizer_metadata(**{"tokenizer.ggml.tokens": []}), r"no tokenizer\.ggml\.tokens"),
        (sentencepiece_metadata(**{"tokenizer.ggml.scores": [0.5]}), "1 token scores for"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_a_damaged_file(
    metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        tokenizer_from_gguf(metadata)
