"""Fields that are known, would change the answer, and are not supported yet: refused, never ignored.

Each is mapped to the values that mean the same as leaving it out. Fields that only label, store or route a
request (`user`, `metadata`, `store`, `service_tier`, `prompt_cache_key`, …) change no answer and are
ignored, like names that nobody knows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ostinato.errors import InvalidRequestError
from ostinato.models.chat_encoding import UNSUPPORTED_CODE

logger = logging.getLogger(__name__)

_OFF: tuple[Any, ...] = (None, False)
_EMPTY: tuple[Any, ...] = (None, "", [], {})

SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "use_beam_search": _OFF,
    "length_penalty": (None, 1, 1.0),
    "early_stopping": _OFF,
    "include_stop_str_in_output": _OFF,
    "prompt_logprobs": _OFF,
    "allowed_token_ids": _EMPTY,
    "bad_words": _EMPTY,
    "logits_processors": _EMPTY,
    "truncate_prompt_tokens": _OFF,
    "spaces_between_special_tokens": (None, True),
    "return_tokens_as_token_ids": _OFF,
    "vllm_xargs": _EMPTY,
}
"""Extras that vLLM's clients send to either endpoint."""

CHAT: Mapping[str, tuple[Any, ...]] = {
    **SAMPLING,
    "functions": _EMPTY,
    "function_call": (None, "none", "auto"),
    "modalities": (None, [], ["text"]),
    "audio": _EMPTY,
    "web_search_options": (None,),
    "moderation": (None,),
    "verbosity": (None, "medium"),
    "echo": _OFF,
    "continue_final_message": _OFF,
    "chat_template": (None,),
    "documents": _EMPTY,
    "add_special_tokens": _OFF,
    "best_of": (None, 1),
}

COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    **SAMPLING,
    "suffix": (None, ""),
    "echo": _OFF,
    "add_special_tokens": (None, True),
    "prompt_embeds": _EMPTY,
}

STREAM_OPTIONS: Mapping[str, tuple[Any, ...]] = {"continuous_usage_stats": _OFF}

CONTENT_PARTS = {
    "image_url": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "files",
    "input_file": "files",
    "computer_screenshot": "images",
}
"""Kinds of content parts that a text model cannot read."""


def refuse_unsupported(
    extra: Mapping[str, Any] | None, table: Mapping[str, tuple[Any, ...]], prefix: str = ""
) -> None:
    """Check the fields that a request model does not declare.

    Raises:
        InvalidRequestError: one of them is in `table` and says more than its neutral values do.
    """
    for name, value in (extra or {}).items():
        neutral = table.get(name)
        if neutral is None:
            logger.debug("ignored unknown field %r", f"{prefix}{name}")
        elif not _is_neutral(value, neutral):
            raise unsupported(f"{prefix}{name}")


def unsupported(name: str, why: str | None = None) -> InvalidRequestError:
    """The error for something that is understood but not offered."""
    reason = why or "it would change the answer, so it is not ignored: leave it out"
    return InvalidRequestError(
        f"{name} is not supported yet; {reason}", param=name, code=UNSUPPORTED_CODE
    )


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Equal in JSON's eyes: ``False == 0`` in Python, but not here."""
    return any(isinstance(value, bool) == isinstance(n, bool) and value == n for n in neutral)
