"""Ways to run one sequence through a decoder that must all give the same logits."""

from __future__ import annotations

import numpy as np

from ostinato.cache.layout import KVDtype
from ostinato.models.decoder import Decoder
from ostinato.ops.base import Float32Array, Int32Array, OpsBackend
from tests.ops.paging import Piece, make_batch, scattered_tables

BLOCK_SIZE = 16


def run_in_chunks(
    decoder: Decoder, ops: OpsBackend, token_ids: Int32Array, lengths: list[int]
) -> Float32Array:
    """Logits of all positions, ``(T, vocab)``, computed in steps of the given lengths.

    K/V is float32 in blocks of 16 that are scattered over a pool twice as large as needed.
    """
    assert sum(lengths) == len(token_ids)
    num_blocks = 2 * -(-len(token_ids) // BLOCK_SIZE)
    kv = ops.allocate_kv(decoder.config.kv_spec(KVDtype.FP32, BLOCK_SIZE), num_blocks)
    rng = np.random.default_rng(0)
    (sequence,) = scattered_tables(rng, num_blocks, [len(token_ids)], BLOCK_SIZE)
    rows, start = [], 0
    for length in lengths:
        batch = make_batch([Piece(sequence, token_ids[start : start + length])])
        rows.append(decoder.forward(batch, kv))
        start += length
    return np.concatenate(rows)


def chunk_lengths(total: int, chunk: int) -> list[int]:
    """`total` in pieces of `chunk`, the last one shorter where it does not divide."""
    return [min(chunk, total - start) for start in range(0, total, chunk)]


def prefill_then_decode(total: int, num_decoded: int) -> list[int]:
    """One long chunk, then single tokens."""
    return [total - num_decoded] + [1] * num_decoded
