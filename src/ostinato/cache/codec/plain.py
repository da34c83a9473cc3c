"""fp16 and fp32: a record is the elements themselves, ``[block_size][head_dim]``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ostinato.cache.codec.base import Bytes, Float32Array, RecordCodec


class Plain(RecordCodec):
    """No quantisation.

    Args:
        dtype: element type.
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype).newbyteorder("<")

    def num_bytes(self, block_size: int, head_dim: int) -> int:
        return block_size * head_dim * self._dtype.itemsize

    def encode(self, values: Float32Array, num_tokens: int, records: Bytes) -> None:
        target = records.view(self._dtype).reshape(values.shape)
        target[..., :num_tokens, :] = values[..., :num_tokens, :]

    def decode(self, records: Bytes, block_size: int, head_dim: int) -> Float32Array:
        shape = (*records.shape[:-1], block_size, head_dim)
        return records.view(self._dtype).reshape(shape).astype(np.float32)
