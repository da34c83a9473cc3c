"""SamplingParams: how one request wants its tokens chosen. Validated once, then immutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, NoReturn

from ostinato.engine.grammar.spec import GrammarSpec
from ostinato.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_N = 128
MAX_STOP = 16
MAX_STOP_LENGTH = 1000
"""Characters of one stop string."""

GREEDY_BELOW = 1e-5
"""Temperatures below this choose the likeliest token: dividing by them means nothing in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Names and ranges follow vLLM's, so that its users feel at home.

    As there, `stop` may be given as one string, and `stop`, `stop_token_ids` and `logit_bias` as
    None or as any iterable or mapping; the attributes always are tuples and a dict of their own.

    Attributes:
        n: independent answers to one prompt; the prompt is computed once and forked. 1 to 128.
        max_tokens: most tokens to generate; None means as many as context and pool allow.
        min_tokens: end-of-sequence and stop tokens cannot be chosen, and stop strings are not looked
            for, before this many tokens.
        temperature: 0 (or below 1e-5) is greedy. 0 to 100.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest set with this much probability. Above 0, at most 1.
        min_p: keep tokens with at least this share of the likeliest token's probability. 0 to 1.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt
            or output. 0.01 to 100.
        presence_penalty: subtracted once from tokens in the output. −2 to 2.
        frequency_penalty: subtracted per occurrence in the output. −2 to 2.
        seed: makes the request's choices reproducible; answer i of n uses its own stream. Taken
            modulo 2**64.
        stop: strings that end the answer; not part of it. At most 16, of at most 1,000 characters.
        stop_token_ids: tokens that end the answer; not part of its text.
        ignore_eos: go on after the model's end-of-sequence token.
        logprobs: report the log-probability of each chosen token and of this many likeliest ones. 0
            to 20.
        logit_bias: added to the logits of token ids, −100 to 100.
        skip_special_tokens: leave special tokens out of the text.
        shown_special_tokens: special tokens, by their spelling, that are in the text all the same.
        grammar: what the answer, or a part of it, must match; see `engine/grammar`.

    Raises:
        InvalidRequestError: naming the field, what was given and what is allowed.
    """

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    skip_special_tokens: bool = True
    shown_special_tokens: tuple[str, ...] = ()
    grammar: GrammarSpec | None = None

    def __post_init__(self) -> None:
        self._normalise_collections()
        self._check_lengths()
        self._check_shaping()
        self._check_stops()
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "skip_special_tokens"):
            value: object = getattr(self, name)
            if not isinstance(value, bool):
                _refuse(name, value, "true or false")
        grammar: object = self.grammar
        if grammar is not None and not isinstance(grammar, GrammarSpec):
            _refuse("grammar", repr(grammar)[:40], "a Grammar, or one that holds for a part of it")

    @classmethod
    def prewarm(cls) -> SamplingParams:
        """Compute the prompt and generate nothing: the only params whose `max_tokens` is 0."""
        params = cls(max_tokens=1)
        object.__setattr__(params, "max_tokens", 0)
        return params

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always chosen and no random number is drawn."""
        return self.temperature < GREEDY_BELOW

    @property
    def argmax_only(self) -> bool:
        """Whether of each row of the model's own logits only the largest is asked for."""
        is_shaped = self.has_penalties or self.min_tokens > 0 or len(self.logit_bias) > 0
        return self.greedy and self.logprobs is None and self.grammar is None and not is_shaped

    @property
    def has_penalties(self) -> bool:
        """Whether any of the three penalties is on, hence whether a history must be kept."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def _normalise_collections(self) -> None:
        stop: object = self.stop
        if isinstance(stop, str):
            stop = (stop,)
        token_ids: object = self.stop_token_ids
        bias: object = self.logit_bias
        if bias is not None and not isinstance(bias, Mapping):
            _refuse("logit_bias", bias, "a mapping from token ids to numbers")
        object.__setattr__(self, "stop", _tuple("stop", stop))
        object.__setattr__(self, "stop_token_ids", _tuple("stop_token_ids", token_ids))
        object.__setattr__(self, "logit_bias", dict(bias or {}))

    def _check_lengths(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, None)
        _integer("min_tokens", self.min_tokens, 0, self.max_tokens)

    def _check_shaping(self) -> None:
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, -1, None)
        if not 0.0 < _real("top_p", self.top_p) <= 1.0:
            _refuse("top_p", self.top_p, "above 0 and at most 1")
        _number("min_p", self.min_p, 0.0, 1.0)
        # Near 0 the division would overflow a float32.
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for token_id, bias in self.logit_bias.items():
            _integer("logit_bias", token_id, 0, None)
            _number(f"logit_bias[{token_id}]", bias, -100.0, 100.0)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP:
            _refuse("stop", f"{len(self.stop)} strings", f"at most {MAX_STOP} strings")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                _refuse("stop", repr(text), "strings of at least one character")
            if len(text) > MAX_STOP_LENGTH:
                _refuse(
                    "stop",
                    f"{len(text):,} characters long",
                    f"strings of at most {MAX_STOP_LENGTH:,} characters",
                )
        for token_id in self.stop_token_ids:
            _integer("stop_token_ids", token_id, 0, None)


def _tuple(name: str, value: object) -> tuple[object, ...]:
    if value is None:
        return ()
    if not isinstance(value, Iterable):
        _refuse(name, value, "a list")
    return tuple(value)


def _integer(name: str, value: object, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        _refuse(name, repr(value), "an integer")
    _number(name, value, low, high)


def _number(name: str, value: object, low: float, high: float | None) -> None:
    number = _real(name, value)
    if not (low <= number and (high is None or number <= high)):  # a NaN fails both
        wanted = f"at least {low}" if high is None else f"between {low} and {high}"
        _refuse(name, value, wanted)


def _real(name: str, value: object) -> Any:  # `Real` does not declare comparison with float
    if isinstance(value, bool) or not isinstance(value, Real):
        _refuse(name, repr(value), "a number")
    return value


def _refuse(name: str, value: object, wanted: str) -> NoReturn:
    raise InvalidRequestError(f"{name} must be {wanted}, not {value}", param=name.split("[")[0])
