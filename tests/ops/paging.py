"""Batches over scattered blocks, built the way a scheduler would but without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ostinato.ops.base import BatchMetadata, Int32Array


@dataclass
class PagedSequence:
    """A sequence whose tokens lie in given blocks.

    Attributes:
        block_table: ids of its blocks in token order.
        block_size: tokens a block.
        num_computed: tokens whose K/V is stored.
    """

    block_table: Int32Array
    block_size: int
    num_computed: int = 0

    def slots(self, positions: Int32Array) -> np.ndarray:
        blocks = self.block_table[positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size


@dataclass(frozen=True)
class Piece:
    """What one request contributes to a step. By default the logits of all its tokens are wanted."""

    sequence: PagedSequence
    token_ids: Sequence[int] | Int32Array
    wanted: Sequence[int] | None = field(default=None)


def make_batch(pieces: Sequence[Piece]) -> BatchMetadata:
    """One step over the next tokens of each sequence; advances `num_computed`."""
    lengths = [len(piece.token_ids) for piece in pieces]
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    width = max(len(piece.sequence.block_table) for piece in pieces)
    tables = np.zeros((len(pieces), width), dtype=np.int32)
    positions, slots, wanted = [], [], []
    for row, (piece, start) in enumerate(zip(pieces, starts, strict=False)):
        sequence, length = piece.sequence, len(piece.token_ids)
        tables[row, : len(sequence.block_table)] = sequence.block_table
        own = np.arange(sequence.num_computed, sequence.num_computed + length, dtype=np.int32)
        positions.append(own)
        slots.append(sequence.slots(own))
        chosen = range(length) if piece.wanted is None else piece.wanted
        wanted += [int(start) + index for index in chosen]
        sequence.num_computed += length
    return BatchMetadata(
        token_ids=np.concatenate([np.asarray(p.token_ids, dtype=np.int32) for p in pieces]),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        query_start=starts,
        seq_lens=np.array([p.sequence.num_computed for p in pieces], dtype=np.int32),
        block_tables=tables,
        logits_indices=np.array(wanted, dtype=np.int32),
    )


def scattered_tables(
    rng: np.random.Generator, num_blocks: int, lengths: Sequence[int], block_size: int
) -> list[PagedSequence]:
    """A sequence of disjoint, shuffled blocks for each length."""
    order = rng.permutation(num_blocks).astype(np.int32)
    sequences, taken = [], 0
    for length in lengths:
        needed = -(-length // block_size)
        sequences.append(PagedSequence(order[taken : taken + needed], block_size))
        taken += needed
    assert taken <= num_blocks
    return sequences
