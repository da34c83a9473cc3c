"""From a sampled token to the log-probabilities that a client sees: adds text and bytes."""

from __future__ import annotations

from typing import Protocol

from ostinato.engine.outputs import TokenLogprob, TopLogprob
from ostinato.engine.sampler import SampledToken


class TokenNames(Protocol):
    """What naming tokens needs of a tokenizer (`models/tokenizer.py`)."""

    def token_text(self, token_id: int) -> str:
        """The token as text, special tokens shown."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes that the token stands for."""
        ...


def token_logprob(sampled: SampledToken, tokenizer: TokenNames) -> TokenLogprob:
    """Name the chosen token and its rivals.

    Raises:
        ValueError: if the token was sampled without log-probabilities.
    """
    if sampled.logprob is None:
        raise ValueError(f"token {sampled.token_id} was sampled without log-probabilities")
    return TokenLogprob(
        token_id=sampled.token_id,
        text=tokenizer.token_text(sampled.token_id),
        raw=tokenizer.token_bytes(sampled.token_id),
        logprob=sampled.logprob,
        top=tuple(
            TopLogprob(
                token_id=token_id,
                text=tokenizer.token_text(token_id),
                raw=tokenizer.token_bytes(token_id),
                logprob=logprob,
            )
            for token_id, logprob in sampled.top
        ),
    )
