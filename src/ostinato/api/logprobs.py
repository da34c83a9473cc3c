"""Log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.engine.outputs import TokenLogprob, TopLogprob

LOWEST = -9999.0
"""Written for a token that could not be chosen: JSON has no −∞."""


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """``{"content": [{token, logprob, bytes, top_logprobs}], "refusal": null}``."""
    content = [
        {**_named(token), "top_logprobs": [_named(rival) for rival in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def legacy_logprobs(
    tokens: Sequence[TokenLogprob], num_rivals: int, first_offset: int
) -> dict[str, Any]:
    """The shape of text completions: four lists, one entry a token.

    Args:
        tokens: chosen tokens.
        num_rivals: the request's `logprobs`; with 0 there is no ``top_logprobs``.
        first_offset: characters of token text before these tokens; see `text_length`.
    """
    offsets = []
    offset = first_offset
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [_rivals(token) for token in tokens] if num_rivals else None,
        "text_offset": offsets,
    }


def text_length(tokens: Sequence[TokenLogprob]) -> int:
    """Characters of the tokens' texts, one after the other."""
    return sum(len(token.text) for token in tokens)


def _named(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": _finite(token.logprob), "bytes": list(token.raw)}


def _rivals(token: TokenLogprob) -> dict[str, float]:
    """Likeliest first, then the chosen token if it is not among them. Tokens of equal text share a key:
    the likelier one stays."""
    rivals: dict[str, float] = {}
    candidates: tuple[TokenLogprob | TopLogprob, ...] = (*token.top, token)
    for rival in candidates:
        rivals.setdefault(rival.text, _finite(rival.logprob))
    return rivals


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
