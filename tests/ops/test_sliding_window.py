"""Guards sliding-window attention: the window's edge, and that blocks outside of it are never read."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.cache.layout import KVCacheSpec, KVDtype
from tests.ops.backends import all_exact_backends, exact_backend, head_unit
from tests.ops.dense import dense_logits, random_decoder
from tests.ops.paging import PagedSequence, Piece, make_batch, scattered_tables

pytestmark = all_exact_backends

BLOCK_SIZE = 4
PROMPT, OUTPUT = 300, 6


@pytest.mark.parametrize("window", [1, 3, 4, 50, 64, 131])
@pytest.mark.parametrize("chunk", [1, 7, 300])
def test_blocks_that_left_the_window_are_not_read(backend: str, window: int, chunk: int) -> None:
    rng = np.random.default_rng(window)
    ops = exact_backend(backend)
    total = PROMPT + OUTPUT
    decoder = random_decoder(
        rng,
        num_layers=1,
        group=3,
        head_dim=head_unit(backend),
        max_position=total,
        sliding_window=window,
    )
    loaded = decoder.load(ops)
    num_blocks = -(-total // BLOCK_SIZE) + 1
    spec = KVCacheSpec(1, 2, decoder.shape.head_dim, KVDtype.FP32, BLOCK_SIZE)
    kv = ops.allocate_kv(spec, num_blocks)
    kv.array[...] = np.nan  # type: ignore[attr-defined]
    (sequence,) = scattered_tables(rng, num_blocks, [total], BLOCK_SIZE)
    tokens = rng.integers(0, decoder.vocab_size, total).astype(np.int32)
    rows = []
    start = 0
    while start < total:
        outside = max(0, start - window + 1) // BLOCK_SIZE
        kv.array[sequence.block_table[:outside]] = np.nan  # type: ignore[attr-defined]
        length = min(chunk, PROMPT - start) if start < PROMPT else 1
        rows.append(
            loaded.forward(make_batch([Piece(sequence, tokens[start : start + length])]), kv)
        )
        start += length
    expected = dense_logits(decoder, tokens, np.float32)
    np.testing.assert_allclose(np.concatenate(rows), expected, atol=3e-5)


@pytest.mark.parametrize("window", [1, 40, 100, 140, 200, 1000])
def test_requests_that_share_a_prefix_see_their_own_windows(backend: str, window: int) -> None:
    rng = np.random.default_rng(window)
    ops = exact_backend(backend)
    shared, tails = 160, [1, 30, 75, 130]
    decoder = random_decoder(
        rng,
        num_layers=1,
        group=3,
        head_dim=head_unit(backend),
        max_position=400,
        sliding_window=window,
    )
    loaded = decoder.load(ops)
    spec = KVCacheSpec(1, 2, decoder.shape.head_dim, KVDtype.FP32, 16)
    kv = ops.allocate_kv(spec, 60)
    kv.array[...] = np.nan  # type: ignore[attr-defined]
    prefix = rng.integers(0, 30, shared).astype(np.int32)
    order = rng.permutation(60).astype(np.int32)
    sequences, texts = [], []
    for index, tail in enumerate(tails):
        own = order[10 + 10 * index : 20 + 10 * index]
        sequence = PagedSequence(np.concatenate((order[:10], own)), 16, shared if index else 0)
        text = np.concatenate((prefix, rng.integers(0, 30, tail + 2))).astype(np.int32)
        loaded.forward(make_batch([Piece(sequence, text[sequence.num_computed : -2])]), kv)
        sequences.append(sequence)
        texts.append(text)
    pieces = [Piece(s, text[-2:]) for s, text in zip(sequences, texts, strict=True)]
    found = loaded.forward(make_batch(pieces), kv)
    expected = [dense_logits(decoder, text, np.float32)[-2:] for text in texts]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=3e-5)
