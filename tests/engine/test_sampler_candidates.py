"""Guards the selections that avoid a full sort: each must equal the textbook form on a sorted vocabulary.

The arrays are made of few distinct values, so that ties at the boundary, the hard case, are the rule.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ostinato.engine.candidates import draw, nucleus, ranked, top_indices
from ostinato.engine.sampler import SamplerState, sample
from ostinato.engine.sampling_params import SamplingParams

Floats = npt.NDArray[np.float32]


def values(max_size: int = 300) -> st.SearchStrategy[Floats]:
    tied = st.sampled_from([-np.inf, -5.0, -0.0, 0.0, 0.5, 1.0, 3.0])
    spread = st.floats(-30, 30, width=32)
    sizes = st.integers(1, max_size)
    return st.one_of(
        hnp.arrays(np.float32, sizes, elements=tied),
        hnp.arrays(np.float32, sizes, elements=spread),
    )


def sorted_ids(row: Floats) -> list[int]:
    """The oracle's order: larger first, then lower id."""
    return sorted(range(row.size), key=lambda i: (-float(row[i]), i))


def textbook_nucleus(row: Floats, weights: Floats, top_p: float) -> set[int]:
    wanted = top_p * float(np.sum(weights, dtype=np.float64))
    kept, held = set(), 0.0
    for token in sorted_ids(row):
        kept.add(token)
        held += float(weights[token])
        if held >= wanted:
            break
    return kept


def weights_of(row: Floats) -> Floats:
    return np.exp(row - row.max())


@settings(deadline=None)
@given(row=values(), k=st.integers(1, 320))
def test_top_indices_equal_the_first_k_of_a_full_sort(row: Floats, k: int) -> None:
    assert top_indices(row, k).tolist() == sorted(sorted_ids(row)[:k])


@settings(deadline=None)
@given(row=values(), k=st.integers(1, 320))
def test_ranked_equals_the_first_k_of_a_full_sort_in_order(row: Floats, k: int) -> None:
    assert ranked(row, k).tolist() == sorted_ids(row)[:k]


@settings(deadline=None)
@given(
    row=values(2000).filter(lambda row: bool(np.isfinite(row).any())),
    top_p=st.floats(0, 1, exclude_min=True, exclude_max=True),
)
@example(row=np.zeros(2000, dtype=np.float32), top_p=0.5)
@example(row=np.zeros(2000, dtype=np.float32), top_p=1 - 2**-53)
@example(row=np.arange(2000, dtype=np.float32), top_p=5e-324)
def test_the_nucleus_equals_the_textbook_one(row: Floats, top_p: float) -> None:
    weights = weights_of(row)
    got = nucleus(row, weights, top_p)
    assert set(got.tolist()) == textbook_nucleus(row, weights, top_p)
    assert got.tolist() == sorted(got.tolist())


@pytest.mark.parametrize("k", [1, 20, 128, 3000, 20_000])
@pytest.mark.parametrize("levels", [3, 40, 10**6])
def test_top_indices_are_exact_on_a_whole_vocabulary(k: int, levels: int) -> None:
    generator = np.random.Generator(np.random.PCG64(k))
    row = generator.integers(0, levels, 49_152 + 7).astype(np.float32)
    order = np.lexsort((np.arange(row.size), -row))[:k]
    np.testing.assert_array_equal(top_indices(row, k), np.sort(order))
    np.testing.assert_array_equal(ranked(row, k), order)


@pytest.mark.parametrize("place", [0, 1, 49_151, 49_158])
def test_top_indices_find_a_lone_maximum_anywhere(place: int) -> None:
    row = np.zeros(49_159, dtype=np.float32)
    row[place] = 1.0
    assert top_indices(row, 1).tolist() == [place]
    assert ranked(row, 3).tolist()[0] == place


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99, 0.99999])
@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
def test_the_nucleus_is_exact_on_a_whole_vocabulary(top_p: float, spread: float) -> None:
    normal = np.random.Generator(np.random.PCG64(0)).standard_normal(49_152)
    row = (normal * spread).astype(np.float32)
    weights = weights_of(row)
    got = nucleus(row, weights, top_p)
    assert set(got.tolist()) == textbook_nucleus(row, weights, top_p)


@settings(deadline=None)
@given(
    row=values().filter(lambda row: bool(np.isfinite(row).all())),
    top_k=st.integers(0, 320),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    seed=st.integers(0, 100),
)
def test_only_tokens_that_pass_min_p_then_top_k_then_top_p_are_drawn(
    row: Floats, top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    params = SamplingParams(
        top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature, seed=seed
    )
    scaled = (row - row.max()) / np.float32(temperature)
    weights = np.exp(scaled)
    allowed = [i for i in sorted_ids(row) if weights[i] >= np.float32(min_p)]
    allowed = sorted(allowed[: top_k or None])
    in_nucleus = textbook_nucleus(scaled[allowed], weights[allowed], top_p)
    kept = np.array([i for place, i in enumerate(allowed) if place in in_nucleus])

    state = SamplerState(params, np.empty(0, dtype=np.int32))
    twin = SamplerState(params, np.empty(0, dtype=np.int32))
    for _ in range(5):
        token = sample(row[np.newaxis], [state])[0].token_id
        assert token == int(kept[draw(weights[kept], twin.next_uniform())])
        state.observe(token)
        twin.observe(token)


@settings(deadline=None)
@given(
    weights=hnp.arrays(
        np.float32, st.integers(1, 1000), elements=st.sampled_from([0.0, 1e-30, 0.25, 1.0])
    ).filter(lambda weights: bool(weights.any())),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_draw_inverts_the_cumulative_distribution_and_skips_zeros(
    weights: Floats, uniform: float
) -> None:
    position = draw(weights, uniform)
    before = math.fsum(weights[:position].tolist()) / math.fsum(weights.tolist())
    through = math.fsum(weights[: position + 1].tolist()) / math.fsum(weights.tolist())
    assert weights[position] > 0
    assert before - 1e-12 <= uniform <= through + 1e-12


@pytest.mark.parametrize(
    "weights", [[1.0, 0.0], [0.3, 0.3, 0.1, 0.0, 0.0], [0.7], [0.1] * 777 + [0.0] * 600]
)
def test_the_largest_uniform_number_falls_on_the_last_possible_token(weights: list[float]) -> None:
    largest = (2**53 - 1) * 2.0**-53
    position = draw(np.array(weights, dtype=np.float32), largest)
    assert position == max(i for i, weight in enumerate(weights) if weight)
