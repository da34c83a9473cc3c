"""Guards attention over quantised K/V: any mix of open and sealed blocks is read as what it decodes to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.codec import codec_named
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.quantised_storage import SEALED, BlockWrites, QuantisedKVStorage
from ostinato.errors import CacheIntegrityError
from ostinato.ops.reference import ReferenceBackend
from tests.ops.dense import dense_logits, random_decoder
from tests.ops.paging import PagedSequence, Piece, make_batch, scattered_tables

QUANTISED = [dtype for dtype in KVDtype if dtype.is_quantised]
OPS = ReferenceBackend()
LOGIT_TOLERANCE = {KVDtype.INT8: 0.1, KVDtype.FP8: 0.4, KVDtype.INT4: 1.5}
"""Logits of the random decoders have a deviation of one; a block that is misread moves them by that."""


def quantised(
    spec: KVCacheSpec, num_blocks: int, max_open: int | None = None
) -> QuantisedKVStorage:
    kv = OPS.allocate_kv(spec, num_blocks, max_open)
    assert isinstance(kv, QuantisedKVStorage)
    kv.open[...] = np.nan
    return kv


def all_decoded(kv: QuantisedKVStorage) -> np.ndarray:
    """``(blocks, layers, 2, kv heads, block_size, head_dim)`` float32, block by block through the codec."""
    spec = kv.spec
    found = np.empty((kv.num_blocks, *spec.block_shape), dtype=np.float32)
    for block_id, slot in enumerate(kv.open_slot):
        if slot == SEALED:
            codec_named(spec.dtype.value).decode(kv.sealed[block_id], found[block_id])
        else:
            found[block_id] = kv.open[slot]
    return found


def naive_attention(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, window: int | None
) -> np.ndarray:
    """``(q, heads, head_dim)`` in float64; query i is at position ``s - q + i``."""
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads, seq_len, _ = keys.shape
    context = np.empty(query.shape)
    for row in range(num_queries):
        end = seq_len - num_queries + row + 1
        start = 0 if window is None else max(0, end - window)
        for head in range(num_heads):
            seen = slice(start, end)
            kv_head = head * num_kv_heads // num_heads
            scores = keys[kv_head, seen].astype(float) @ query[row, head] * head_dim**-0.5
            weights = np.exp(scores - scores.max())
            context[row, head] = weights @ values[kv_head, seen].astype(float) / weights.sum()
    return context


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(QUANTISED),
    block_size=st.sampled_from([1, 4, 16]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    window=st.sampled_from([None, 1, 5, 16]),
    seal_share=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_attention_equals_attention_over_the_decoded_blocks(
    seed: int,
    dtype: KVDtype,
    block_size: int,
    lengths: list[int],
    window: int | None,
    seal_share: float,
) -> None:
    rng = np.random.default_rng(seed)
    decoder = random_decoder(rng, num_kv_heads=2, group=3, sliding_window=window)
    layer = OPS.load_layer(decoder.shape, decoder.layers[0])
    num_blocks = 2 + sum(-(-length // block_size) for length in lengths)
    kv = quantised(KVCacheSpec(2, 2, decoder.shape.head_dim, dtype, block_size), num_blocks)
    sequences = scattered_tables(rng, num_blocks, lengths, block_size)
    batch = make_batch([Piece(one, [0] * n) for one, n in zip(sequences, lengths, strict=True)])
    writes = BlockWrites.of_slots(batch.slot_mapping, block_size)
    kv.open_for_write(writes)
    block_ids, offsets = np.divmod(batch.slot_mapping, block_size)
    heads = (batch.num_tokens, 2, decoder.shape.head_dim)
    key, value = rng.standard_normal((2, *heads)).astype(np.float32)
    kv.write(block_ids, offsets, 1, key, value)
    kv.write(block_ids, offsets, 0, value, key)
    kv.seal(writes.block_ids[rng.random(len(writes.block_ids)) < seal_share])
    query = rng.standard_normal((batch.num_tokens, 6, decoder.shape.head_dim)).astype(np.float32)
    found = OPS.attention(query, layer, 1, batch, kv)
    pages = all_decoded(kv)[:, 1]
    for index, (sequence, length) in enumerate(zip(sequences, lengths, strict=True)):
        rows = slice(*batch.query_start[index : index + 2])
        keys, values = (
            np.concatenate(pages[sequence.block_table, part], axis=1)[:, :length] for part in (0, 1)
        )
        expected = naive_attention(query[rows], keys, values, window)
        np.testing.assert_allclose(found[rows], expected, atol=1e-5)


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("chunk", [1, 5, 16])
def test_a_decoder_over_sealed_blocks_is_near_the_dense_one(dtype: KVDtype, chunk: int) -> None:
    rng = np.random.default_rng(3)
    decoder = random_decoder(rng)
    loaded = decoder.load(OPS)
    tokens = rng.integers(0, decoder.vocab_size, 50).astype(np.int32)
    kv = quantised(KVCacheSpec(2, 2, decoder.shape.head_dim, dtype, 4), 16, max_open=5)
    sequence = PagedSequence(rng.permutation(16)[:13].astype(np.int32), 4)
    rows = []
    for start in range(0, 50, chunk):
        batch = make_batch([Piece(sequence, tokens[start : start + chunk])])
        writes = BlockWrites.of_slots(batch.slot_mapping, 4)
        kv.open_for_write(writes)
        rows.append(loaded.forward(batch, kv))
        kv.seal(writes.filled(4))
    expected = dense_logits(decoder, tokens, np.float16)
    error = np.abs(np.concatenate(rows) - expected)
    assert error[: chunk if chunk > 4 else 4].max() < 2e-2  # nothing was sealed yet
    assert 1e-4 < error.max() < LOGIT_TOLERANCE[dtype]


def test_a_step_whose_blocks_were_not_opened_is_refused() -> None:
    rng = np.random.default_rng(4)
    decoder = random_decoder(rng)
    kv = quantised(KVCacheSpec(2, 2, decoder.shape.head_dim, KVDtype.INT8, 4), 2)
    batch = make_batch([Piece(PagedSequence(np.array([1], dtype=np.int32), 4), [1, 2])])
    with pytest.raises(CacheIntegrityError, match="sealed blocks"):
        decoder.load(OPS).forward(batch, kv)
