"""Logits of every position from Ostinato's own decoder, teacher-forced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ostinato.cache.layout import KVDtype
from ostinato.models.loader import LoadedModel, load_model
from ostinato.ops.base import BatchMetadata, OpsBackend
from ostinato.ops.select import KernelOptions, select_backend

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run the model.

    Attributes:
        title: for the table.
        options: of the native kernels.
        kv_dtype: of stored K/V.
    """

    title: str
    options: KernelOptions
    kv_dtype: KVDtype


REFERENCE = Variant(
    "float32 weights, activations and K/V",
    KernelOptions(weight_dtype="fp32", activation_dtype="fp32"),
    KVDtype.FP32,
)
"""The file's dequantised weights and no rounding anywhere: what all others are measured from."""

VARIANTS = (
    Variant("Ostinato, float32 activations", KernelOptions(activation_dtype="fp32"), KVDtype.FP16),
    Variant("Ostinato, int8 activations", KernelOptions(activation_dtype="int8"), KVDtype.FP16),
)


class OstinatoLogits:
    """One variant, loaded."""

    def __init__(self, variant: Variant, path: Path, data_dir: Path) -> None:
        self.title = variant.title
        self._kv_dtype = variant.kv_dtype
        self._ops: OpsBackend = select_backend("cpu", variant.options)
        self.model: LoadedModel = load_model(path, self._ops, data_dir)

    def window(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """``(T, vocab)`` of a text that begins at position 0, computed in one step."""
        count = len(token_ids)
        blocks = -(-count // _BLOCK_SIZE)
        kv = self._ops.allocate_kv(self.model.config.kv_spec(self._kv_dtype, _BLOCK_SIZE), blocks)
        positions = np.arange(count, dtype=np.int32)
        batch = BatchMetadata(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=positions.astype(np.int64),
            query_start=np.array([0, count], dtype=np.int32),
            seq_lens=np.array([count], dtype=np.int32),
            block_tables=np.arange(blocks, dtype=np.int32)[None],
            logits_indices=positions,
        )
        return self.model.decoder.forward(batch, kv)
