"""Guards that the backend's kernels choose what NumPy chooses: another token is another distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.engine.sampler import SampledToken, SamplerState, _choose, sample
from ostinato.engine.sampling_params import SamplingParams
from ostinato.ops.base import Float32Array
from ostinato.ops.sampling import SamplingKernels

pytest.importorskip("ostinato._native", reason="the native extension is not built here")

PROMPT = np.array([1, 2, 3], dtype=np.int32)
NEAR = 1e-5
"""How far a bound or a uniform number may be off before rounding does not explain another token."""


@pytest.fixture(scope="module")
def kernels() -> SamplingKernels:
    from ostinato.ops.cpu import CpuBackend

    return CpuBackend(threads=2).sampling()


class FixedUniform(SamplerState):
    """Takes a given number instead of its stream's next."""

    uniform = 0.5

    def next_uniform(self) -> float:
        return self.uniform


def state(uniform: float = 0.5, **params: Any) -> FixedUniform:
    made = FixedUniform(SamplingParams(**params), PROMPT)
    made.uniform = min(max(uniform, 0.0), 1.0 - 2.0**-53)
    return made


def explained(row: Float32Array, uniform: float, params: dict[str, Any]) -> set[int]:
    """What NumPy chooses, with every number moved by as much as rounding may move it."""
    top_p, min_p = params.get("top_p", 1.0), params.get("min_p", 0.0)
    found = set()
    for u in (uniform - NEAR, uniform, uniform + NEAR):
        for p in {top_p, max(top_p - NEAR, NEAR), min(top_p + NEAR, 1.0)}:
            for m in {min_p, min_p * (1 - NEAR), min(min_p * (1 + NEAR), 1.0)}:
                moved = state(u, **{**params, "top_p": p, "min_p": m})
                found.add(_choose(moved.adjusted(row), moved))
    return found


@given(
    seed=st.integers(0, 2**31),
    vocab=st.sampled_from([1, 15, 16, 17, 1023, 1025, 5000]),
    step=st.sampled_from([0.0, 1.0]),
    fault=st.sampled_from([None, None, math.nan, math.inf, -math.inf, 1e30, -1e30]),
    limit=st.sampled_from([2.0, 1e9, 1e30]),
)
@settings(max_examples=100, deadline=None)
def test_the_largest_of_a_row_is_the_one_that_numpy_finds(
    kernels: SamplingKernels, seed: int, vocab: int, step: float, fault: float | None, limit: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((3, vocab)).astype(np.float32)
    if step:
        logits = np.round(logits / step) * step  # ties
    if fault is not None:
        logits[1, rng.integers(vocab)] = fault
    ids, within = kernels.find_largest(logits, limit)
    wanted = np.all(np.abs(logits) <= np.float32(limit), axis=1)
    np.testing.assert_array_equal(within, wanted)
    np.testing.assert_array_equal(ids[wanted], np.argmax(logits, axis=1)[wanted])


@given(
    seed=st.integers(0, 2**31),
    vocab=st.sampled_from([1, 2, 63, 64, 65, 300, 2000]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
    step=st.sampled_from([0.0, 0.5]),
    temperature=st.sampled_from([1e-4, 0.3, 0.7, 1.0, 5.0, 100.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 256, 257, 1999, 5000]),
    top_p=st.sampled_from([1.0, 1.0, 0.999_999_9, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.9, 1.0]),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_a_row_gives_the_token_that_numpy_draws(
    kernels: SamplingKernels,
    seed: int,
    vocab: int,
    spread: float,
    step: float,
    uniforms: list[float],
    **params: Any,
) -> None:
    rng = np.random.default_rng(seed)
    logits = (spread * rng.standard_normal((len(uniforms), vocab))).astype(np.float32)
    if step:
        logits = np.round(logits / np.float32(step)) * np.float32(step)  # ties
    chosen = sample(logits, [state(u, **params) for u in uniforms], kernels)
    for row, uniform, token in zip(logits, uniforms, chosen, strict=True):
        assert token.token_id in explained(row, uniform, params)


def test_tokens_that_cannot_be_are_never_drawn(kernels: SamplingKernels) -> None:
    row = np.full(1000, -1e4, dtype=np.float32)
    row[[3, 700]] = 5.0
    for top_p in (1.0, 0.999):
        uniforms = np.linspace(0, 1, 50, endpoint=False)
        states = [state(u, top_p=top_p) for u in uniforms]
        chosen = [token.token_id for token in sample(np.tile(row, (50, 1)), states, kernels)]
        assert chosen == [3] * 25 + [700] * 25


def test_penalties_biases_and_minimum_lengths_reach_the_kernels(kernels: SamplingKernels) -> None:
    logits = np.tile(np.linspace(0, 3, 40, dtype=np.float32), (4, 1))
    logits.flags.writeable = False
    kinds: list[dict[str, Any]] = [
        {"logit_bias": {7: 100.0}},
        {"repetition_penalty": 1.5, "top_p": 0.9},
        {"min_tokens": 2, "stop_token_ids": [39], "top_k": 1},
        {},
    ]
    states = [state(0.99, **params) for params in kinds]
    chosen = [token.token_id for token in sample(logits, states, kernels)]
    assert chosen == [token.token_id for token in sample(logits, states)]
    assert (chosen[0], chosen[2]) == (7, 38)


def test_greedy_and_drawn_rows_of_one_batch_keep_their_places(kernels: SamplingKernels) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((6, 500)).astype(np.float32)
    states = [state(0.3 * at % 1, temperature=at % 2, top_k=3) for at in range(6)]
    assert sample(logits, states, kernels) == sample(logits, states)


@pytest.mark.parametrize("wanted", [0, 1, 5, 20])
def test_log_probabilities_are_those_of_numpy(kernels: SamplingKernels, wanted: int) -> None:
    rng = np.random.default_rng(1)
    logits = np.round(4 * rng.standard_normal((3, 700)), 1).astype(np.float32)
    states = [state(temperature=0.0, logprobs=wanted), state(), state(0.9, logprobs=2)]
    ours, theirs = sample(logits, states, kernels), sample(logits, states)
    assert ours[1] == theirs[1] == SampledToken(theirs[1].token_id)
    for one, other in ((ours[0], theirs[0]), (ours[2], theirs[2])):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token for token, _ in one.top] == [token for token, _ in other.top]
        assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=1e-5)
    assert len(ours[0].top) == wanted


def test_more_log_probabilities_than_tokens_are_all_there_are(kernels: SamplingKernels) -> None:
    [token] = sample(np.zeros((1, 3), dtype=np.float32), [state(logprobs=5)], kernels)
    assert [found for found, _ in token.top] == [0, 1, 2]
