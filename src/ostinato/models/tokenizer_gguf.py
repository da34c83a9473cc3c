"""A tokenizer from the arrays in a GGUF file.

GGUF keeps the vocabulary, the merges (or scores) and the *name* of the pre-tokenizer; how that pre-tokenizer
splits text is knowledge of the reader. The table below holds what the models' own ``tokenizer.json`` files
do, for the architectures that we run. An unknown name is refused: a wrong split gives plausible, wrong ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as BackendTokenizer

from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.tokenizer import Tokenizer


class _TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # as ByteLevel has it


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How one family splits text.

    Attributes:
        splits: made fresh for each tokenizer; run in order in front of the byte alphabet.
        nfc: text is composed (Unicode NFC) first.
        ignore_merges: a word that is a token as a whole is taken so, merges or not.
        adds_bos: prompts begin with BOS where the file does not say.
    """

    splits: Callable[[], list[Any]]
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False


def _split(*patterns: str) -> Callable[[], list[Any]]:
    return lambda: [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def _digits_then_gpt2() -> list[Any]:
    return [pre_tokenizers.Digits(individual_digits=True), *_split(_GPT2)()]


_PLAIN_GPT2 = _PreTokenizer(_split(_GPT2))
_SINGLE_DIGITS = _PreTokenizer(_digits_then_gpt2)
_LLAMA3_STYLE = _PreTokenizer(_split(_LLAMA3), ignore_merges=True, adds_bos=True)
_QWEN2_STYLE = _PreTokenizer(_split(_QWEN2), nfc=True)
_PRE_TOKENIZERS: dict[str, _PreTokenizer] = {
    "gpt-2": _PLAIN_GPT2,
    "olmo": _PLAIN_GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "falcon3": _LLAMA3_STYLE,
    "smaug-bpe": _PreTokenizer(_split(_LLAMA3), adds_bos=True),
    "qwen2": _QWEN2_STYLE,
    "deepseek-r1-qwen": _QWEN2_STYLE,
    "tekken": _PreTokenizer(_split(_TEKKEN), ignore_merges=True, adds_bos=True),
    "deepseek-coder": _PreTokenizer(
        _split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
    ),
    # What GGUF readers do for files that name no pre-tokenizer.
    "default": _PreTokenizer(
        _split(
            r"[\p{P}\$\+<=>\^~\|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        )
    ),
}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Args:
        metadata: the file's key/values, arrays as lists.

    Raises:
        UnsupportedModelError: a tokenizer model or pre-tokenizer that we do not know, named.
        ModelFormatError: arrays are missing or do not fit each other.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        backend = _byte_level_bpe(metadata)
    elif kind == "llama":
        backend = _sentencepiece_bpe(metadata)
    else:
        raise UnsupportedModelError(
            f"the GGUF tokenizer model {kind!r} is not supported; gpt2 (byte-level BPE) and llama "
            "(SentencePiece BPE) are"
        )
    ids = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return Tokenizer(
        backend,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=[id_ for id_ in ids if isinstance(id_, int)],
    )


def _byte_level_bpe(metadata: Mapping[str, Any]) -> BackendTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    pre = _PRE_TOKENIZERS.get(name)
    if pre is None:
        raise UnsupportedModelError(
            f"the GGUF pre-tokenizer {name!r} is not known; known are "
            f"{', '.join(sorted(_PRE_TOKENIZERS))}. Use the model's safetensors version, which brings "
            "its own tokenizer.json"
        )
    tokens = _array(metadata, "tokens")
    merges = [_merge(text) for text in _array(metadata, "merges")]
    backend = _backend(
        lambda vocab: models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges),
        tokens,
    )
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    byte_alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*pre.splits(), byte_alphabet])
    backend.decoder = decoders.ByteLevel()
    _add_marks(backend, metadata, tokens)
    _add_bos(backend, metadata, tokens, default=pre.adds_bos)
    return backend


def _sentencepiece_bpe(metadata: Mapping[str, Any]) -> BackendTokenizer:
    """SentencePiece BPE with byte fallback.

    The file has scores and no merges. SentencePiece merges the pair whose joined piece has the highest
    score, so every split of a piece into two pieces is a merge, ranked by the score of the whole.
    """
    tokens = _array(metadata, "tokens")
    scores = _array(metadata, "scores")
    if len(scores) != len(tokens):
        raise ModelFormatError(f"{len(scores)} token scores for {len(tokens)} tokens in the file")
    kinds = metadata.get("tokenizer.ggml.token_type") or [_TokenType.NORMAL] * len(tokens)
    merges = _merges_from_scores(tokens, scores, kinds)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    backend = _backend(
        lambda vocab: models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        ),
        tokens,
    )
    prefix = (
        [normalizers.Prepend("▁")] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    )
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    _add_marks(backend, metadata, tokens)
    _add_bos(backend, metadata, tokens, default=True)
    return backend


def _merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int]
) -> list[tuple[str, str]]:
    pieces = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind in (_TokenType.NORMAL, _TokenType.USER_DEFINED, _TokenType.UNUSED)
    }
    position = {token: index for index, token in enumerate(tokens)}
    found = [
        (-score, position[token[:cut]], position[token[cut:]], token[:cut], token[cut:])
        for token, score in pieces.items()
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
    return [(left, right) for _, _, _, left, right in sorted(found)]


def _backend(
    make_model: Callable[[dict[str, int]], models.Model], tokens: Sequence[str]
) -> BackendTokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        return BackendTokenizer(make_model(vocab))
    except Exception as error:  # the package raises bare Exception
        raise ModelFormatError(f"the file's vocabulary and merges do not fit: {error}") from error


def _add_marks(
    backend: BackendTokenizer, metadata: Mapping[str, Any], tokens: Sequence[str]
) -> None:
    """Control tokens are special; user-defined ones are text that is never split."""
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    marks: Iterable[AddedToken] = (
        AddedToken(token, special=kind != _TokenType.USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, kinds, strict=False)
        if kind in (_TokenType.UNKNOWN, _TokenType.CONTROL, _TokenType.USER_DEFINED)
    )
    backend.add_tokens(list(marks))


def _add_bos(
    backend: BackendTokenizer, metadata: Mapping[str, Any], tokens: Sequence[str], *, default: bool
) -> None:
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", default):
        return
    backend.post_processor = processors.TemplateProcessing(
        single=[tokens[bos], "$A"],
        pair=[tokens[bos], "$A", "$B"],
        special_tokens=[(tokens[bos], bos)],
    )


def _merge(text: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not space:
        raise ModelFormatError(f"the merge {text!r} in the file is not two tokens")
    return left, right


def _array(metadata: Mapping[str, Any], name: str) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not values:
        raise ModelFormatError(f"the file has no tokenizer.ggml.{name}: fetch the model again")
    return values
