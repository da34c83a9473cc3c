"""Guards the native selection of the largest logits, and their log-sum."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.backends import all_isas, cpu_backend


@all_isas
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 4),
    vocab=st.integers(1, 700),
    scale=st.sampled_from([0.5, 1.0, 3.0]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_top_k_is_the_head_of_a_stable_sort(
    isa: str, seed: int, rows: int, vocab: int, scale: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, vocab))
    logits = np.random.default_rng(seed).integers(-40, 40, (rows, vocab)).astype(np.float32) / 4
    ids = np.zeros((rows, k), np.int32)
    values, sums = np.zeros((rows, k), np.float32), np.zeros(rows, np.float32)
    cpu_backend(isa)._runtime.top_k(logits, scale, ids, values, sums)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, order, 1))
    wide = logits.astype(np.float64) * scale
    largest = wide.max(1, keepdims=True)
    np.testing.assert_allclose(
        sums, np.log(np.exp(wide - largest).sum(1)) + largest[:, 0], atol=1e-4
    )
