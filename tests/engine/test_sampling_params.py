"""Guards the limits of every sampling parameter: what passes here reaches the engine's thread unchecked."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ostinato.engine.grammar.spec import Grammar, GrammarKind
from ostinato.engine.sampling_params import (
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP,
    MAX_STOP_LENGTH,
    SamplingParams,
)
from ostinato.errors import InvalidRequestError

NUMBERS = {
    # name: (lowest, highest, a little below, a little above)
    "temperature": (0.0, 100.0, -1e-9, 100.1),
    "top_p": (1e-9, 1.0, 0.0, 1.0001),
    "min_p": (0.0, 1.0, -1e-9, 1.0001),
    "repetition_penalty": (0.01, 100.0, 0.0, 100.1),
    "presence_penalty": (-2.0, 2.0, -2.1, 2.1),
    "frequency_penalty": (-2.0, 2.0, -2.1, 2.1),
}
INTEGERS = {
    "n": (1, MAX_N, 0, MAX_N + 1),
    "top_k": (-1, 10**30, -2, None),
    "max_tokens": (1, 10**30, 0, None),
    "min_tokens": (0, 10**30, -1, None),
    "seed": (-(2**63), 2**64 - 1, -(2**63) - 1, 2**64),
    "logprobs": (0, MAX_LOGPROBS, -1, MAX_LOGPROBS + 1),
}
LIMITS = {**NUMBERS, **INTEGERS}


def refused(**params: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**params)
    return caught.value


def test_the_defaults_are_valid_and_sample_freely() -> None:
    params = SamplingParams()
    assert not params.greedy
    assert params.stop == ()
    assert params.stop_token_ids == ()
    assert params.logit_bias == {}


@pytest.mark.parametrize("name", LIMITS)
def test_both_ends_of_every_range_are_allowed(name: str) -> None:
    low, high, _, _ = LIMITS[name]
    assert getattr(SamplingParams(**{name: low}), name) == low
    assert getattr(SamplingParams(**{name: high}), name) == high


@pytest.mark.parametrize("name", LIMITS)
def test_a_value_outside_its_range_is_refused_by_name(name: str) -> None:
    _, _, below, above = LIMITS[name]
    for value in (below, above):
        if value is not None:
            error = refused(**{name: value})
            assert error.param == name
            assert name in str(error)
            assert str(value) in str(error)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(name: str, value: float) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["0.5", True, None, 1j, [1.0]])
def test_what_is_not_a_number_is_refused(name: str, value: object) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["1", True, 1.0, math.nan, [1]])
def test_what_is_not_an_integer_is_refused(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.param == name
    assert "integer" in str(error)


@pytest.mark.parametrize("name", ["ignore_eos", "skip_special_tokens"])
@pytest.mark.parametrize("value", [0, "false", None])
def test_what_is_not_a_boolean_is_refused(name: str, value: object) -> None:
    assert refused(**{name: value}).param == name


def test_numpy_numbers_and_fractions_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_p=Fraction(1, 2), top_k=np.int64(3), seed=np.int32(-1)
    )
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.5, 3, -1)


@pytest.mark.parametrize("top_p", [0.0, -1, 1.5, math.nan])
def test_the_error_says_what_would_be_right(top_p: float) -> None:
    assert str(refused(top_p=top_p)) == f"top_p must be above 0 and at most 1, not {top_p}"


@pytest.mark.parametrize(
    ("temperature", "greedy"), [(0, True), (0.0, True), (9e-6, True), (1e-5, False), (1, False)]
)
def test_temperatures_too_small_to_divide_by_are_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_min_tokens_may_equal_max_tokens_and_not_exceed_it() -> None:
    assert SamplingParams(min_tokens=5, max_tokens=5).min_tokens == 5
    error = refused(min_tokens=6, max_tokens=5)
    assert error.param == "min_tokens"
    assert "between 0 and 5" in str(error)


def test_max_tokens_none_means_no_limit_of_the_request_s_own() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=1000).max_tokens is None


@pytest.mark.parametrize("stop", ["END", ["END"], ("END",), iter(["END"])])
def test_stop_may_be_one_string_or_several(stop: Any) -> None:
    assert SamplingParams(stop=stop).stop == ("END",)


def test_none_stands_for_no_stops_and_no_bias() -> None:
    params = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None)  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids, params.logit_bias) == ((), (), {})


def test_as_many_stop_strings_as_allowed_and_no_more() -> None:
    assert len(SamplingParams(stop=("x",) * MAX_STOP).stop) == MAX_STOP
    assert refused(stop=("x",) * (MAX_STOP + 1)).param == "stop"


def test_a_stop_string_may_be_so_long_and_no_longer() -> None:
    assert SamplingParams(stop="x" * MAX_STOP_LENGTH).stop == ("x" * MAX_STOP_LENGTH,)
    error = refused(stop=["a", "x" * 1_900_000])
    assert error.param == "stop"
    assert str(error) == (
        "stop must be strings of at most 1,000 characters, not 1,900,000 characters long"
    )


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [1], [None], 5])
def test_stop_strings_that_are_empty_or_no_strings_are_refused(stop: object) -> None:
    assert refused(stop=stop).param == "stop"


@pytest.mark.parametrize("token_ids", [[-1], ["7"], [1.0], [True], 7])
def test_stop_tokens_that_are_no_token_ids_are_refused(token_ids: object) -> None:
    assert refused(stop_token_ids=token_ids).param == "stop_token_ids"


@pytest.mark.parametrize("bias", [-100.0, 0, 100])
def test_a_bias_within_its_range_is_allowed(bias: float) -> None:
    assert SamplingParams(logit_bias={0: bias}).logit_bias == {0: bias}


@pytest.mark.parametrize(
    "bias",
    [{0: -100.1}, {0: 100.1}, {0: math.nan}, {0: "1"}, {-1: 0.0}, {"5": 1.0}, {1.5: 1.0}, [(1, 2)]],
)
def test_a_bias_that_is_out_of_range_or_malformed_is_refused(bias: object) -> None:
    assert refused(logit_bias=bias).param == "logit_bias"


def test_params_own_their_bias_so_that_the_caller_cannot_change_it_later() -> None:
    bias = {1: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert params.logit_bias == {1: 1.0}


def test_params_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().temperature = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.5},
        {"logprobs": 0},
        {"min_tokens": 1},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"grammar": Grammar(GrammarKind.REGEX, "a+", "grammar")},
    ],
    ids=lambda more: next(iter(more)),
)
def test_whatever_needs_more_than_the_largest_logit_gets_whole_rows(more: dict[str, Any]) -> None:
    assert SamplingParams(temperature=0.0, top_p=0.5, top_k=3, stop="x").argmax_only
    assert not SamplingParams(**{"temperature": 0.0, **more}).argmax_only
