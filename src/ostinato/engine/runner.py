"""ModelRunner: turns a step's plan into arrays and runs the model on them.

Over quantised K/V a `SealingModelRunner` also opens the blocks that a step writes to, and seals those that it
filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ostinato.cache.quantised_storage import BlockWrites, QuantisedKVStorage
from ostinato.cache.storage import KVStorage
from ostinato.engine.scheduler import ScheduledRequest
from ostinato.ops.base import BatchMetadata, Float32Array, Int32Array


class Model(Protocol):
    """What the runner needs of `models.decoder.Decoder`."""

    def forward(self, batch: BatchMetadata, kv: KVStorage) -> Float32Array:
        """``(L, vocab)`` logits of the tokens in ``batch.logits_indices``."""
        ...


class ModelRunner:
    """Owner of the model and of the K/V memory.

    Args:
        model: computes logits and writes K/V.
        kv: the memory behind the block ids.
    """

    def __init__(self, model: Model, kv: KVStorage) -> None:
        self._model = model
        self._kv = kv

    def run(self, scheduled: Sequence[ScheduledRequest]) -> Float32Array:
        """Compute a step.

        Returns:
            ``(L, vocab)`` float32: one row for each request that `wants_logits`, in order.
        """
        return self.forward(build_batch(scheduled, self._kv.spec.block_size))

    def forward(self, batch: BatchMetadata) -> Float32Array:
        """Compute a batch that was built elsewhere; ``(L, vocab)`` float32."""
        return self._model.forward(batch, self._kv)


class SealingModelRunner(ModelRunner):
    """A `ModelRunner` over quantised K/V.

    If a step fails, what it wrote stays open: computing it again finds it so.
    """

    def __init__(self, model: Model, kv: QuantisedKVStorage) -> None:
        super().__init__(model, kv)
        self._quantised = kv

    def forward(self, batch: BatchMetadata) -> Float32Array:
        block_size = self._quantised.spec.block_size
        writes = BlockWrites.of_slots(batch.slot_mapping, block_size)
        self._quantised.open_for_write(writes)
        logits = super().forward(batch)
        self._quantised.seal(writes.filled(block_size))
        return logits


def build_runner(model: Model, kv: KVStorage) -> ModelRunner:
    """The runner that `kv` needs."""
    if isinstance(kv, QuantisedKVStorage):
        return SealingModelRunner(model, kv)
    return ModelRunner(model, kv)


def build_batch(scheduled: Sequence[ScheduledRequest], block_size: int) -> BatchMetadata:
    """Arrays for one step. Block tables are read afresh: publishing may have swapped blocks since the last."""
    counts = np.array([part.num_tokens for part in scheduled], dtype=np.int32)
    starts = np.array([part.start for part in scheduled], dtype=np.int32)
    query_start = np.zeros(len(scheduled) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    owner = np.repeat(np.arange(len(scheduled), dtype=np.int32), counts)
    offset = np.arange(query_start[-1], dtype=np.int32) - query_start[owner]
    positions = (starts[owner] + offset).astype(np.int32)
    block_tables = _block_tables(scheduled, block_size)
    block_ids = block_tables[owner, positions // block_size].astype(np.int64)
    wanted = np.array([part.wants_logits for part in scheduled], dtype=np.bool_)
    return BatchMetadata(
        token_ids=np.concatenate(
            [part.request.token_ids[part.start : part.end] for part in scheduled]
        ),
        positions=positions,
        slot_mapping=block_ids * block_size + positions % block_size,
        query_start=query_start,
        seq_lens=starts + counts,
        block_tables=block_tables,
        logits_indices=query_start[1:][wanted] - np.int32(1),
        argmax_only=np.array(
            [part.request.argmax_only for part in scheduled if part.wants_logits], dtype=np.bool_
        ),
    )


def _block_tables(scheduled: Sequence[ScheduledRequest], block_size: int) -> Int32Array:
    """``(B, max_blocks)``, as wide as this step's tokens need; unused entries are 0."""
    widths = [-(-part.end // block_size) for part in scheduled]
    tables = np.zeros((len(scheduled), max(widths)), dtype=np.int32)
    for row, (part, width) in enumerate(zip(scheduled, widths, strict=True)):
        tables[row, :width] = part.request.block_table.block_ids[:width]
    return tables
