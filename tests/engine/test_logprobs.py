"""Guards that every log-probability a client sees is named with the right token's text and bytes."""

from __future__ import annotations

import pytest

from ostinato.engine.logprobs import token_logprob
from ostinato.engine.outputs import TokenLogprob, TopLogprob
from ostinato.engine.sampler import SampledToken


class ThreeTokens:
    """Token 2 is the first byte of a longer character."""

    def token_text(self, token_id: int) -> str:
        return ["a", "你", "\ufffd"][token_id]

    def token_bytes(self, token_id: int) -> bytes:
        return [b"a", "你".encode(), b"\xe4"][token_id]


def test_the_chosen_token_and_its_rivals_get_text_and_bytes() -> None:
    sampled = SampledToken(token_id=1, logprob=-0.5, top=((0, -0.25), (2, -3.0)))
    assert token_logprob(sampled, ThreeTokens()) == TokenLogprob(
        token_id=1,
        text="你",
        raw=b"\xe4\xbd\xa0",
        logprob=-0.5,
        top=(
            TopLogprob(token_id=0, text="a", raw=b"a", logprob=-0.25),
            TopLogprob(token_id=2, text="\ufffd", raw=b"\xe4", logprob=-3.0),
        ),
    )


def test_a_token_without_rivals_has_an_empty_top() -> None:
    assert token_logprob(SampledToken(0, logprob=0.0), ThreeTokens()).top == ()


def test_a_token_sampled_without_logprobs_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="token 1"):
        token_logprob(SampledToken(1), ThreeTokens())
