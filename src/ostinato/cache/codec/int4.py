"""int4 as KIVI has it (Liu et al. 2024, arXiv 2402.02750): keys per channel, values per token.

Some channels of keys are large in all tokens, so a scale for each channel keeps them from drowning the rest;
values have no such channels. Both are asymmetric: ``x = q · scale + minimum`` with q in 0 … 15.

    payload   [block_size][head_dim / 2]: byte c has channel c in its low half, c + head_dim / 2 in its high one
    K         payload ‖ scale float16 [head_dim]   ‖ minimum float16 [head_dim]     over the block's tokens
    V         payload ‖ scale float16 [block_size] ‖ minimum float16 [block_size]   over the head's channels

A group whose values are all equal has scale 0 and decodes to its minimum.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ostinato.cache.codec.base import Bytes, Float32Array, RecordCodec, padded
from ostinato.cache.codec.per_token import divide

_MAX = 15.0


class Int4(RecordCodec):
    """What keys and values share: the payload and the arithmetic."""

    @staticmethod
    @abstractmethod
    def _num_groups(block_size: int, head_dim: int) -> int:
        """Scales of a record."""

    @staticmethod
    @abstractmethod
    def _group_axis() -> int:
        """The axis of ``(…, block_size, head_dim)`` along which values share a scale."""

    def num_bytes(self, block_size: int, head_dim: int) -> int:
        if head_dim % 2:
            raise ValueError(f"int4 K/V needs an even head_dim, not {head_dim}")
        return padded(block_size * head_dim // 2 + 4 * self._num_groups(block_size, head_dim))

    def encode(self, values: Float32Array, num_tokens: int, records: Bytes) -> None:
        *_, block_size, head_dim = values.shape
        counted = values[..., :num_tokens, :]
        axis = self._group_axis()
        lowest = counted.min(axis=axis)
        scales = ((counted.max(axis=axis) - lowest) / np.float32(_MAX)).astype("<f2")
        minima = lowest.astype("<f2")
        payload, stored_scales, stored_minima = self._split(records, block_size, head_dim)
        # Keys have as many groups as channels, values as many as tokens: those that count come first.
        stored_scales[..., : scales.shape[-1]] = scales
        stored_minima[..., : minima.shape[-1]] = minima
        above = counted - np.expand_dims(minima.astype(np.float32), axis)
        quotients = divide(above, np.expand_dims(scales.astype(np.float32), axis))
        codes = np.nan_to_num(np.clip(np.rint(quotients), 0, _MAX)).astype(np.uint8)
        half = head_dim // 2
        payload[..., :num_tokens, :] = codes[..., :half] | (codes[..., half:] << 4)

    def decode(self, records: Bytes, block_size: int, head_dim: int) -> Float32Array:
        payload, scales, minima = self._split(records, block_size, head_dim)
        axis = self._group_axis()
        codes = np.concatenate((payload & 0x0F, payload >> 4), axis=-1).astype(np.float32)
        codes *= np.expand_dims(scales.astype(np.float32), axis)
        codes += np.expand_dims(minima.astype(np.float32), axis)
        return codes

    def _split(
        self, records: Bytes, block_size: int, head_dim: int
    ) -> tuple[
        Bytes,
        np.ndarray[tuple[int, ...], np.dtype[np.float16]],
        np.ndarray[tuple[int, ...], np.dtype[np.float16]],
    ]:
        """Views of payload ``(…, block_size, head_dim / 2)``, scales and minima ``(…, groups)``."""
        end = block_size * head_dim // 2
        size = 2 * self._num_groups(block_size, head_dim)
        payload = records[..., :end].reshape(*records.shape[:-1], block_size, head_dim // 2)
        scales = records[..., end : end + size].view("<f2")
        minima = records[..., end + size : end + 2 * size].view("<f2")
        return payload, scales, minima


class Int4PerChannel(Int4):
    """Of keys."""

    @staticmethod
    def _num_groups(block_size: int, head_dim: int) -> int:
        return head_dim

    @staticmethod
    def _group_axis() -> int:
        return -2


class Int4PerToken(Int4):
    """Of values."""

    @staticmethod
    def _num_groups(block_size: int, head_dim: int) -> int:
        return block_size

    @staticmethod
    def _group_axis() -> int:
        return -1
