"""Guards the pieces of the NumPy backend that the contract's tests reach only by luck."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.storage import HostKVStorage, NullKVStorage
from ostinato.errors import ConfigError
from ostinato.ops import reference
from ostinato.ops.reference import ReferenceBackend, causal_attention, gather, rms_norm, silu
from tests.ops.dense import random_decoder


def naive_attention(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Row by row in float64."""
    num_queries, num_heads, _ = query.shape
    group, seq_len = num_heads // len(keys), keys.shape[1]
    context = np.empty(query.shape)
    for row in range(num_queries):
        visible = seq_len - num_queries + row + 1
        for head in range(num_heads):
            seen = keys[head // group, :visible].astype(np.float64)
            scores = seen @ query[row, head].astype(np.float64)
            weights = np.exp(scores - scores.max())
            context[row, head] = weights @ values[head // group, :visible] / weights.sum()
    return context


@pytest.mark.parametrize("budget", [1, 1000, 1 << 21])
@pytest.mark.parametrize(("num_queries", "seq_len"), [(1, 1), (1, 90), (90, 90), (129, 150)])
def test_attention_is_the_same_in_tiles_of_any_size(
    monkeypatch: pytest.MonkeyPatch, budget: int, num_queries: int, seq_len: int
) -> None:
    monkeypatch.setattr(reference, "SCORE_BUDGET", budget)
    rng = np.random.default_rng(seq_len)
    query = rng.normal(size=(num_queries, 6, 8)).astype(np.float32)
    keys, values = rng.normal(size=(2, 2, seq_len, 8)).astype(np.float32)
    found = causal_attention(query, keys, values)
    np.testing.assert_allclose(found, naive_attention(query, keys, values), atol=1e-5)


def test_scores_far_from_zero_do_not_overflow() -> None:
    query = np.full((2, 1, 4), 300.0, dtype=np.float32)
    keys = np.array([[[300.0] * 4, [-300.0] * 4]], dtype=np.float32)
    values = np.array([[[1.0] * 4, [2.0] * 4]], dtype=np.float32)
    np.testing.assert_array_equal(causal_attention(query, keys, values), np.ones((2, 1, 4)))


def test_gathering_follows_the_block_table_and_stops_at_the_length() -> None:
    kv = HostKVStorage(KVCacheSpec(2, 3, 2, KVDtype.FP16, 4), 5)
    kv.array[...] = np.nan
    for position in range(6):
        block, offset = [4, 1][position // 4], position % 4
        kv.array[block, 1, 0, :, offset] = position + 10 * np.arange(3)[:, None]
    found = gather(kv, 1, 0, np.array([4, 1, 0], dtype=np.int32), 6)
    assert found.dtype == np.float32
    expected = np.arange(6)[None, :, None] + 10 * np.arange(3)[:, None, None]
    np.testing.assert_array_equal(found, np.broadcast_to(expected, (3, 6, 2)))


def test_silu_is_right_and_silent_at_the_ends_of_float32() -> None:
    values = np.array([-3e38, -200.0, -1.0, 0.0, 1.0, 200.0], dtype=np.float32)
    expected = [0.0, 0.0, -0.2689414, 0.0, 0.7310586, 200.0]
    np.testing.assert_allclose(silu(values), expected, atol=1e-6)


def test_rms_norm_keeps_float32_and_survives_zeros() -> None:
    normed = rms_norm(np.zeros((1, 4), np.float32), np.ones(4, np.float32), 1e-5)
    assert normed.dtype == np.float32
    np.testing.assert_array_equal(normed, np.zeros((1, 4)))


def test_a_tied_output_matrix_is_held_once() -> None:
    decoder = random_decoder(np.random.default_rng(0), tied=True)
    head = ReferenceBackend().load_head(decoder.shape, decoder.head)
    assert head.output is head.embedding


def test_foreign_k_v_memory_is_refused() -> None:
    kv = NullKVStorage(KVCacheSpec(1, 1, 2, KVDtype.FP32, 4), 2)
    with pytest.raises(ConfigError, match="K/V in host memory, not NullKVStorage"):
        reference.host_memory(kv)
