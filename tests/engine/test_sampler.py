"""Guards the choice of tokens: order of the steps, reproducibility, distributions, penalties, faults.

A sampler that is subtly wrong still produces fluent text, so everything is checked against numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ostinato.engine.sampler import SampledToken, SamplerState, sample
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import NonFiniteLogitsError

Floats = npt.NDArray[np.float32]

LOGITS = np.array([1.0, 3.0, 2.0, -1.0, 0.5], dtype=np.float32)
NO_PROMPT = np.empty(0, dtype=np.int32)


def state_for(prompt: list[int] | None = None, index: int = 0, **params: Any) -> SamplerState:
    prompt_token_ids = np.array(prompt or [], dtype=np.int32)
    return SamplerState(SamplingParams(**params), prompt_token_ids, index)


def choose(row: Floats, state: SamplerState) -> int:
    """One token, recorded as the engine does."""
    [sampled] = sample(row[np.newaxis], [state])
    state.observe(sampled.token_id)
    return sampled.token_id


def run(row: Floats, steps: int, **params: Any) -> list[int]:
    state = state_for(**params)
    return [choose(row, state) for _ in range(steps)]


def softmax(row: Floats) -> npt.NDArray[np.float64]:
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def chi_square(tokens: list[int], expected: npt.NDArray[np.float64]) -> float:
    observed = np.bincount(tokens, minlength=expected.size)
    assert not observed[expected == 0].any()
    possible = expected > 0
    wanted = expected[possible] * len(tokens)
    return float(((observed[possible] - wanted) ** 2 / wanted).sum())


# 0.999 quantiles of the chi-square distribution by degrees of freedom.
CHI_SQUARE_LIMIT = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}
DRAWS = 4000


def test_temperature_zero_takes_the_largest_logit() -> None:
    assert run(LOGITS, 5, temperature=0.0) == [1] * 5


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert run(LOGITS, 5, temperature=1e-40) == [1] * 5


@pytest.mark.parametrize("params", [{}, {"logit_bias": {3: 0.0}}, {"frequency_penalty": 0.1}])
def test_equal_logits_go_to_the_lowest_id_when_greedy(params: dict[str, Any]) -> None:
    assert run(np.array([0, 7, 7, 7], dtype=np.float32), 1, temperature=0.0, **params) == [1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_every_temperature(temperature: float) -> None:
    tokens = run(LOGITS, DRAWS, temperature=temperature, seed=11)
    expected = softmax(LOGITS / np.float32(temperature))
    assert chi_square(tokens, expected) < CHI_SQUARE_LIMIT[4]


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_p": 0.85}, [1, 2]),
        ({"min_p": 0.13}, [0, 1, 2]),
        ({"top_k": 4, "min_p": 0.05, "top_p": 0.92}, [0, 1, 2]),
    ],
)
def test_draws_follow_the_renormalised_softmax_of_what_is_kept(
    params: dict[str, Any], kept: list[int]
) -> None:
    # softmax(LOGITS) is about 0.084, 0.622, 0.229, 0.011, 0.051 and 0.053
    expected = np.zeros(LOGITS.size)
    expected[kept] = softmax(LOGITS)[kept]
    expected /= expected.sum()
    tokens = run(LOGITS, DRAWS, seed=5, **params)
    assert chi_square(tokens, expected) < CHI_SQUARE_LIMIT[len(kept) - 1]


def test_unseeded_draws_follow_the_softmax_of_many_equal_tokens() -> None:
    tokens = run(np.zeros(1000, dtype=np.float32), 500)
    assert len(set(tokens)) > 250  # about 394 of 1000 are expected


def test_top_k_one_is_greedy_even_when_hot() -> None:
    assert run(LOGITS, 50, top_k=1, temperature=100.0, seed=0) == [1] * 50


@pytest.mark.parametrize("top_k", [0, -1, 5, 10**9, 2**31, 2**63, 10**40])
def test_top_k_that_keeps_all_changes_nothing(top_k: int) -> None:
    assert run(LOGITS, 200, top_k=top_k, seed=3) == run(LOGITS, 200, seed=3)


def test_top_k_keeps_exactly_k_of_equal_tokens_lowest_ids_first() -> None:
    assert set(run(np.zeros(10, dtype=np.float32), 200, top_k=3, seed=2)) == {0, 1, 2}


def test_top_p_counts_the_probability_left_after_top_k() -> None:
    # Four tokens of 1/4. After top_k=2 the two left have 1/2 each: the first alone reaches 0.5.
    row = np.zeros(4, dtype=np.float32)
    assert set(run(row, 200, top_k=2, top_p=0.5, seed=1)) == {0}
    assert set(run(row, 200, top_p=0.5, seed=1)) == {0, 1}


def test_top_p_sees_the_distribution_after_temperature() -> None:
    assert set(run(LOGITS, 300, top_p=0.6, temperature=1.0, seed=1)) == {1}
    assert set(run(LOGITS, 300, top_p=0.6, temperature=3.0, seed=1)) == {0, 1, 2}


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    row = np.zeros(500, dtype=np.float32)
    assert run(row, 20, seed=7) == run(row, 20, seed=7)
    assert run(row, 20, seed=7) != run(row, 20, seed=8)


def test_the_stream_of_a_seed_never_changes_between_releases() -> None:
    # With 1000 equal tokens these are the first digits of the uniform numbers that
    # Generator(PCG64(SeedSequence(42).spawn(1)[0])).random() gives with NumPy 2.4.
    assert run(np.zeros(1000, dtype=np.float32), 5, seed=42) == [916, 910, 876, 309, 954]


def test_each_of_n_answers_has_its_own_stream() -> None:
    row = np.zeros(500, dtype=np.float32)
    states = [state_for(seed=7, index=index) for index in range(4)]
    answers = [tuple(choose(row, state) for _ in range(10)) for state in states]
    assert len(set(answers)) == 4
    assert list(answers[0]) == run(row, 10, seed=7)


def test_sequences_without_a_seed_differ() -> None:
    row = np.zeros(5000, dtype=np.float32)
    assert run(row, 10) != run(row, 10)


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**64 - 1, np.int64(-5)])
def test_every_allowed_seed_is_usable(seed: int) -> None:
    assert run(LOGITS, 10, seed=seed) == run(LOGITS, 10, seed=seed)


@settings(deadline=None)
@given(
    logits=hnp.arrays(
        np.float32,
        st.tuples(st.integers(2, 6), st.integers(2, 40)),
        elements=st.floats(-20, 20, width=32),
    ),
    data=st.data(),
)
def test_a_row_is_sampled_the_same_alone_and_in_any_batch(logits: Floats, data: Any) -> None:
    choices = st.fixed_dictionaries(
        {
            "temperature": st.sampled_from([0.0, 0.7, 1.5]),
            "top_k": st.sampled_from([0, 1, 3]),
            "top_p": st.sampled_from([0.5, 1.0]),
            "min_p": st.sampled_from([0.0, 0.2]),
            "repetition_penalty": st.sampled_from([1.0, 1.3]),
            "logprobs": st.sampled_from([None, 2]),
            "seed": st.integers(0, 3),
        }
    )
    params = [data.draw(choices) for _ in logits]
    together = sample(logits, [state_for([0, 1], **p) for p in params])
    for row, p, in_batch in zip(logits, params, together, strict=True):
        [alone] = sample(row[np.newaxis].copy(), [state_for([0, 1], **p)])
        assert alone == in_batch


def test_greedy_rows_draw_nothing_and_leave_their_neighbours_streams_alone() -> None:
    row = np.zeros(300, dtype=np.float32)
    sampled, greedy = state_for(seed=9), state_for(temperature=0.0)
    tokens = []
    for _ in range(10):
        tokens.append(sample(np.stack([row, row]), [greedy, sampled])[1].token_id)
        sampled.observe(tokens[-1])
    assert tokens == run(row, 10, seed=9)


def test_logit_bias_is_added() -> None:
    assert run(LOGITS, 1, temperature=0.0, logit_bias={3: 100.0, 1: -5.0}) == [3]
    assert run(LOGITS, 1, temperature=0.0, logit_bias={1: -1.5}) == [2]


def test_a_bias_of_minus_100_bans_a_token() -> None:
    assert 1 not in run(LOGITS, 300, seed=4, logit_bias={1: -100.0})


def test_min_tokens_puts_off_every_token_that_would_end_the_answer() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=3, stop_token_ids=(2,))
    state = SamplerState(params, NO_PROMPT, stop_token_ids={1})
    assert [choose(LOGITS, state) for _ in range(5)] == [0, 0, 0, 1, 1]


def test_min_tokens_holds_for_sampled_tokens_too() -> None:
    params = SamplingParams(min_tokens=200, stop_token_ids=(1,), seed=0, temperature=2.0)
    state = SamplerState(params, NO_PROMPT)
    assert 1 not in [choose(LOGITS, state) for _ in range(200)]
    assert 1 in [choose(LOGITS, state) for _ in range(50)]


def test_a_bias_cannot_undo_min_tokens() -> None:
    params = SamplingParams(
        temperature=0.0, min_tokens=1, stop_token_ids=(1,), logit_bias={1: 100.0}
    )
    assert choose(LOGITS, SamplerState(params, NO_PROMPT)) == 2


def test_min_tokens_yields_when_every_token_would_end_the_answer() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=4, stop_token_ids=tuple(range(5)))
    assert choose(LOGITS, SamplerState(params, NO_PROMPT)) == 1


def test_min_tokens_ignores_end_tokens_that_the_model_has_no_logits_for() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=1)
    assert choose(LOGITS, SamplerState(params, NO_PROMPT, stop_token_ids={1, 99})) == 2


def adjusted(prompt: list[int], output: list[int], **params: Any) -> list[float]:
    state = state_for(prompt, **params)
    for token in output:
        state.observe(token)
    result: list[float] = state.adjusted(LOGITS).tolist()
    return result


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_once() -> None:
    # 0 and 3 are in the prompt, 1 twice in the output.
    assert adjusted([0, 3, 0], [1, 1], repetition_penalty=2.0) == [0.5, 1.5, 2.0, -2.0, 0.5]


def test_presence_penalty_counts_output_tokens_once_and_the_prompt_not() -> None:
    assert adjusted([0], [1, 1, 2], presence_penalty=0.5) == [1.0, 2.5, 1.5, -1.0, 0.5]


def test_frequency_penalty_counts_every_output_token() -> None:
    assert adjusted([0], [1, 1, 2], frequency_penalty=0.5) == [1.0, 2.0, 1.5, -1.0, 0.5]


def test_negative_penalties_reward() -> None:
    got = adjusted([], [0], presence_penalty=-1.0, frequency_penalty=-0.5)
    assert got == [2.5, 3.0, 2.0, -1.0, 0.5]


@settings(deadline=None)
@given(
    prompt=st.lists(st.integers(0, 199), max_size=150),
    output=st.lists(st.integers(0, 199), max_size=300),
    repetition=st.sampled_from([1.0, 0.5, 1.3]),
    presence=st.sampled_from([0.0, -0.5, 0.75]),
    frequency=st.sampled_from([0.0, -0.25, 0.5]),
    bias=st.dictionaries(st.integers(0, 199), st.sampled_from([-3.0, 0.0, 2.5]), max_size=5),
)
def test_penalties_equal_their_formulas_token_by_token(
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    row = np.linspace(-4, 4, 200, dtype=np.float32)
    state = state_for(
        prompt,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    for token in output:
        state.observe(token)
    for token, got in enumerate(state.adjusted(row).tolist()):
        x = float(row[token]) + bias.get(token, 0.0)
        if token in prompt or token in output:
            x = x / repetition if x > 0 else x * repetition
        x -= frequency * output.count(token)
        x -= presence * (token in output)
        assert got == pytest.approx(x, abs=1e-4)


def test_the_caller_s_logits_are_never_changed() -> None:
    logits = np.stack([LOGITS] * 3)
    logits.flags.writeable = False
    params = {"repetition_penalty": 2.0, "logit_bias": {1: 3.0}, "min_tokens": 2}
    states = [state_for([1], **params), state_for(seed=1, top_p=0.5), state_for(temperature=0.0)]
    sample(logits, states)
    np.testing.assert_array_equal(logits, np.stack([LOGITS] * 3))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_are_refused_and_the_rows_named(bad: float, temperature: float) -> None:
    logits = np.stack([LOGITS] * 3)
    logits[2, 4] = bad
    logits[0, 0] = bad
    with pytest.raises(NonFiniteLogitsError, match=r"rows \[0, 2\]") as caught:
        sample(logits, [state_for(temperature=temperature)] * 3)
    assert caught.value.rows == (0, 2)


def test_a_refused_batch_has_drawn_nothing() -> None:
    row = np.zeros(500, dtype=np.float32)
    broken = np.full(500, np.nan, dtype=np.float32)
    state = state_for(seed=7)
    with pytest.raises(NonFiniteLogitsError):
        sample(np.stack([row, broken]), [state, state_for()])
    assert [choose(row, state) for _ in range(5)] == run(row, 5, seed=7)


def test_a_row_that_is_sampled_again_before_its_token_is_taken_gives_the_same_token() -> None:
    row = np.zeros(500, dtype=np.float32)
    state = state_for(seed=7)
    first = sample(row[np.newaxis], [state])
    assert sample(row[np.newaxis], [state]) == first
    assert [choose(row, state) for _ in range(5)] == run(row, 5, seed=7)


def test_extreme_but_finite_values_still_give_a_token() -> None:
    row = np.array([1e30, -1e30, 1e30, 0.0], dtype=np.float32)
    params = {"temperature": 1e-4, "repetition_penalty": 0.01, "logprobs": 4, "seed": 0}
    [sampled] = sample(row[np.newaxis], [state_for([1, 2], **params)])
    assert sampled.token_id == 2
    assert sampled.logprob == pytest.approx(math.log(0.5))


def test_rows_and_states_must_match() -> None:
    with pytest.raises(ValueError, match="2 sequences"):
        sample(LOGITS[np.newaxis], [state_for(), state_for()])


def test_an_empty_batch_is_empty() -> None:
    assert sample(np.empty((0, 10), dtype=np.float32), []) == []


def test_a_vocabulary_of_one_token_works() -> None:
    assert run(np.zeros(1, dtype=np.float32), 3, seed=0, top_p=0.1, min_p=1.0) == [0, 0, 0]


def test_no_logprobs_unless_asked_for() -> None:
    [sampled] = sample(LOGITS[np.newaxis], [state_for(temperature=0.0)])
    assert sampled == SampledToken(token_id=1, logprob=None, top=())


def test_logprobs_are_the_log_softmax_of_the_unmodified_logits() -> None:
    params = {"logprobs": 3, "temperature": 0.3, "top_k": 1, "logit_bias": {3: 100.0}}
    [sampled] = sample(LOGITS[np.newaxis], [state_for([1], repetition_penalty=1.5, **params)])
    expected = np.log(softmax(LOGITS))
    assert sampled.token_id == 3
    assert sampled.logprob == pytest.approx(expected[3], abs=1e-6)
    assert [token for token, _ in sampled.top] == [1, 2, 0]
    assert [logprob for _, logprob in sampled.top] == pytest.approx(expected[[1, 2, 0]], abs=1e-6)


def test_zero_logprobs_reports_the_chosen_token_alone() -> None:
    [sampled] = sample(LOGITS[np.newaxis], [state_for(temperature=0.0, logprobs=0)])
    assert sampled.logprob == pytest.approx(math.log(softmax(LOGITS)[1]), abs=1e-6)
    assert sampled.top == ()


def test_top_logprobs_of_equal_tokens_list_the_lowest_ids() -> None:
    row = np.array([0, 1, 1, 1, 1], dtype=np.float32)
    [sampled] = sample(row[np.newaxis], [state_for(temperature=0.0, logprobs=2)])
    assert [token for token, _ in sampled.top] == [1, 2]


def test_more_logprobs_than_tokens_gives_all_tokens() -> None:
    [sampled] = sample(LOGITS[np.newaxis], [state_for(temperature=0.0, logprobs=20)])
    assert [token for token, _ in sampled.top] == [1, 2, 0, 4, 3]
    assert sum(math.exp(logprob) for _, logprob in sampled.top) == pytest.approx(1.0)
