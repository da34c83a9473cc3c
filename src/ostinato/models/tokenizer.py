"""Text to token ids and back, around `tokenizers.Tokenizer`.

Sources: a ``tokenizer.json`` (here) or the arrays in a GGUF file (`tokenizer_gguf.py`). What the wrapper adds:
the ids that end a generation, and the exact bytes behind each token, which a decoder of single tokens cannot
give because one character may be spread over several.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from ostinato.errors import ContextLengthError, ModelFormatError, UnsupportedModelError
from ostinato.models.hf_files import read_json, token_content
from ostinato.models.special_text import MARK, special_text_pattern, without_marks
from ostinato.models.token_bounds import TokenBounds, token_bounds

END_OF_TURN_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<|end_of_turn|>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
)
"""Special tokens that end a turn or a text in every model that has them. Model files often name only one of
the tokens that their own chat template ends a turn with."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "▁"  # SentencePiece writes a space so


def _bytes_of_characters() -> dict[str, int]:
    """The inverse of byte-level BPE's alphabet.

    Printable Latin-1 characters stand for their own code; the other bytes, in order, for the characters
    from U+0100 on (Radford et al. 2019, GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet |= {chr(0x100 + rank): byte for rank, byte in enumerate(others)}
    return alphabet


_BYTES_OF_CHARACTERS = _bytes_of_characters()


class Tokenizer:
    """A model's tokenizer. Thread-safe; does not change.

    Attributes:
        vocab_size: ids are below this; the model's output matrix may be wider.
        bos_token_id: begin of text, None where the model has none.
        eos_token_ids: each of these ends a generation.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None,
        eos_token_ids: Iterable[int],
    ) -> None:
        # A tokenizer.json may carry the truncation and padding of somebody's training run.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._added = dict(backend.get_added_tokens_decoder())
        self._special_ids = frozenset(id_ for id_, token in self._added.items() if token.special)
        self._special_text = special_text_pattern(
            token.content for token in self._added.values() if token.special
        )
        self._without_marks: tokenizers.Tokenizer | None = None  # large, and seldom needed
        self._without_marks_lock = threading.Lock()
        self._byte_level = _decodes_byte_level(backend)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        highest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self._sizes = np.full(
            highest + 1, -1, dtype=np.int64
        )  # in bytes; below 0: not measured yet
        self.bos_token_id = bos_token_id
        named = (backend.token_to_id(text) for text in END_OF_TURN_TOKENS)
        self.eos_token_ids = frozenset(eos_token_ids) | {
            id_ for id_ in named if id_ is not None and id_ in self._special_ids
        }

    @classmethod
    def from_json(
        cls, text: str, *, bos_token_id: int | None, eos_token_ids: Iterable[int]
    ) -> Tokenizer:
        """Build from the content of a ``tokenizer.json``.

        Raises:
            ModelFormatError: if the `tokenizers` package refuses it.
        """
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the package raises bare Exception
            raise ModelFormatError(f"tokenizer.json cannot be read: {error}") from error
        return cls(backend, bos_token_id=bos_token_id, eos_token_ids=eos_token_ids)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Build from ``tokenizer.json`` and, where present, the configuration files beside it.

        Raises:
            UnsupportedModelError: no ``tokenizer.json``.
            ModelFormatError: a file is damaged.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UnsupportedModelError(
                f"{folder} has no tokenizer.json. Convert its tokenizer with "
                "`transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
            )
        settings = read_json(folder / "tokenizer_config.json")
        eos = _ids(read_json(folder / "config.json").get("eos_token_id"))
        eos |= _ids(read_json(folder / "generation_config.json").get("eos_token_id"))
        plain = cls.from_json(
            file.read_text(encoding="utf-8"), bos_token_id=None, eos_token_ids=eos
        )
        return plain._with_named_tokens(settings)

    def _with_named_tokens(self, settings: Mapping[str, Any]) -> Tokenizer:
        bos = self.token_id(token_content(settings.get("bos_token")))
        eos = self.token_id(token_content(settings.get("eos_token")))
        return Tokenizer(
            self._backend,
            bos_token_id=bos,
            eos_token_ids=self.eos_token_ids | ({eos} if eos is not None else set()),
        )

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Text that spells a special token becomes that token; nothing is added."""
        return _encode(self._backend, text, add_special_tokens=False)

    def mark_special_text(self, text: str) -> str:
        """Set a `special_text.MARK` into each spelling of a special token, for `encode_marked`."""
        if self._special_text is None:
            return text
        return self._special_text.sub(rf"\g<0>{MARK}", text)

    def encode_marked(self, text: str) -> list[int]:
        """`encode`, except that spellings of special tokens that are marked are ordinary text."""
        return _encode(self._backend_for(text), text, add_special_tokens=False)

    def encode_marked_with_bounds(
        self, text: str, offsets: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """`encode_marked`, and for each character offset the number of tokens wholly before it.

        Args:
            text: with or without marks.
            offsets: into `text`, ascending.
        """
        token_ids = self.encode_marked(text)
        if not offsets:
            return token_ids, []
        ends = np.cumsum(self._sizes_of(token_ids))
        pieces = [text[start:end].replace(MARK, "") for start, end in pairwise([0, *offsets])]
        wanted = np.cumsum([len(piece.encode()) for piece in pieces])
        rest = len(text[offsets[-1] :].replace(MARK, "").encode())
        if self._byte_level and len(ends) and ends[-1] == wanted[-1] + rest:
            return token_ids, np.searchsorted(ends, wanted, side="right").tolist()
        return token_ids, self._counts_by_offsets(text, offsets)

    def _counts_by_offsets(self, text: str, offsets: Sequence[int]) -> list[int]:
        """`encode_marked_with_bounds` for tokenizers that change text: by the offsets that the package tracks.

        Those leave white space at a token's end out, so a token counts where its successor begins at the
        latest.
        """
        [encoding] = self._backend_for(text).encode_batch([text], add_special_tokens=False)
        starts = [start for start, _ in encoding.offsets[1:]] + [len(text)]
        ends = [max(end, start) for (_, end), start in zip(encoding.offsets, starts, strict=True)]
        counts = np.searchsorted(np.maximum.accumulate(ends), offsets, side="right")
        return [int(count) for count in counts]

    def _backend_for(self, text: str) -> tokenizers.Tokenizer:
        """The tokenizer that reads marks if there are any."""
        if MARK not in text:
            return self._backend
        with self._without_marks_lock:
            if self._without_marks is None:
                self._without_marks = without_marks(self.to_json())
        return self._without_marks

    def _sizes_of(self, token_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Bytes of each token; each id of the vocabulary is measured once."""
        ids = np.asarray(token_ids, dtype=np.int64)
        for token_id in np.unique(ids[self._sizes[ids] < 0]).tolist():
            self._sizes[token_id] = len(self.token_bytes(token_id))
        return self._sizes[ids]

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt: `encode`, plus what the model's own post-processor adds, usually BOS."""
        return _encode(self._backend, text, add_special_tokens=True)

    def require_fit(self, text: str, max_tokens: int) -> None:
        """Refuse, before it is tokenised, text that cannot come to so few tokens; marks do not count.

        Raises:
            ContextLengthError: it has more bytes than `max_tokens` tokens can stand for.
        """
        if 4 * len(text) <= max_tokens or self._bounds is None:  # 4 bytes a character at most
            return
        if (least := self._bounds.min_tokens(text)) > max_tokens:
            raise ContextLengthError(
                f"the context is {max_tokens} tokens; the prompt's {len(text):,} characters are at "
                f"least {least:,} tokens, since no token stands for more than "
                f"{self._bounds.longest_token_bytes} bytes",
                param="prompt",
            )

    @cached_property
    def _bounds(self) -> TokenBounds | None:
        return token_bounds(self._backend, _BYTES_OF_CHARACTERS)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` without the special tokens; bytes that are no character become U+FFFD."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text

    def token_id(self, text: str | None) -> int | None:
        """The id of the token that is spelled exactly so, special tokens included; None without one."""
        return None if text is None else self._backend.token_to_id(text)

    def token_text(self, token_id: int) -> str:
        """One token as text; special tokens are shown, broken characters are U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that a token stands for; empty for ids without a token."""
        added = self._added.get(token_id)
        if added is not None:
            return str(added.content).encode()
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_level:
            return b"".join(_bytes_of_character(character) for character in piece)
        if match := _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return str(piece).replace(_WORD_START, " ").encode()

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark (end of turn, begin of text, …) and not text."""
        return token_id in self._special_ids

    def to_json(self) -> str:
        """The content of an equivalent ``tokenizer.json``; BOS and EOS ids are not part of it."""
        return self._backend.to_str()


def _encode(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """As a batch of one, since that lets other threads run meanwhile and a single text does not."""
    [encoding] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids


def _bytes_of_character(character: str) -> bytes:
    byte = _BYTES_OF_CHARACTERS.get(character)
    return character.encode() if byte is None else bytes([byte])


def _decodes_byte_level(backend: tokenizers.Tokenizer) -> bool:
    if backend.decoder is None:
        return False
    decoder = json.loads(backend.decoder.__getstate__())
    parts = decoder.get("decoders", [decoder])
    return any(part["type"] == "ByteLevel" for part in parts)


def _ids(value: Any) -> set[int]:
    """The ids in a configuration entry that may be absent, one id or a list of ids."""
    values = value if isinstance(value, list) else [value]
    return {entry for entry in values if isinstance(entry, int)}
