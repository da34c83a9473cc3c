"""int8 and fp8: one scale for each token and head, the same for keys and values.

    record    payload [block_size][head_dim], one byte each ‖ scale float16 [block_size]
    int8      x = q · scale,  scale = absmax / 127,  q in −127 … 127
    fp8       x = e · scale,  scale = absmax / 448,  e in E4M3 (Micikevicius et al. 2022, arXiv 2209.05433):
              1 sign, 4 exponent, 3 mantissa bits, no infinity, largest 448

A token whose values are all zero has scale 0.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from ostinato.cache.codec.base import Bytes, Float32Array, RecordCodec, padded

_INT8_MAX = 127.0
_E4M3_MAX = 448.0
_E4M3_MAX_CODE = 0x7E
_E4M3_BIAS = 7
_E4M3_SMALLEST_NORMAL = 2.0**-6
_E4M3_SUBNORMAL_STEP = 2.0**-9


class PerToken(RecordCodec):
    """What int8 and fp8 share: the scales.

    Args:
        largest: the largest number that a payload byte can say.
    """

    def __init__(self, largest: float) -> None:
        self._largest = np.float32(largest)

    @abstractmethod
    def _to_bytes(self, quotients: Float32Array) -> Bytes:
        """The nearest payload bytes, half to even; beyond ±`largest` the largest. NaN becomes anything."""

    @abstractmethod
    def _from_bytes(self, payload: Bytes) -> Float32Array:
        """What the bytes say."""

    def num_bytes(self, block_size: int, head_dim: int) -> int:
        return padded(block_size * head_dim + 2 * block_size)

    def encode(self, values: Float32Array, num_tokens: int, records: Bytes) -> None:
        *_, block_size, head_dim = values.shape
        counted = values[..., :num_tokens, :]
        scales = (np.abs(counted).max(axis=-1) / self._largest).astype("<f2")
        payload, stored = self._split(records, block_size, head_dim)
        stored[..., :num_tokens] = scales
        quotients = divide(counted, scales[..., None].astype(np.float32))
        payload[..., :num_tokens, :] = self._to_bytes(quotients)

    def decode(self, records: Bytes, block_size: int, head_dim: int) -> Float32Array:
        payload, scales = self._split(records, block_size, head_dim)
        values: Float32Array = self._from_bytes(payload) * scales[..., None].astype(np.float32)
        return values

    @staticmethod
    def _split(
        records: Bytes, block_size: int, head_dim: int
    ) -> tuple[Bytes, np.ndarray[tuple[int, ...], np.dtype[np.float16]]]:
        """Views of the payload, ``(…, block_size, head_dim)``, and of the scales, ``(…, block_size)``."""
        end = block_size * head_dim
        payload = records[..., :end].reshape(*records.shape[:-1], block_size, head_dim)
        return payload, records[..., end : end + 2 * block_size].view("<f2")


class Int8PerToken(PerToken):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__(_INT8_MAX)

    def _to_bytes(self, quotients: Float32Array) -> Bytes:
        rounded = np.clip(np.rint(quotients), -_INT8_MAX, _INT8_MAX)
        payload: Bytes = np.nan_to_num(rounded).astype(np.int8).view(np.uint8)
        return payload

    def _from_bytes(self, payload: Bytes) -> Float32Array:
        return payload.view(np.int8).astype(np.float32)


class Fp8PerToken(PerToken):
    """See the module's docstring."""

    def __init__(self) -> None:
        super().__init__(_E4M3_MAX)

    def _to_bytes(self, quotients: Float32Array) -> Bytes:
        return encode_e4m3(quotients)

    def _from_bytes(self, payload: Bytes) -> Float32Array:
        return _E4M3_VALUES[payload]


def divide(values: Float32Array, scales: Float32Array) -> Float32Array:
    """``values / scales``, and 0 where the scale is 0."""
    quotients = np.zeros(np.broadcast_shapes(values.shape, scales.shape), dtype=np.float32)
    return np.divide(values, scales, out=quotients, where=scales != 0)


def encode_e4m3(values: Float32Array) -> Bytes:
    """The nearest E4M3 numbers, half to even; beyond ±448, and for NaN, the largest of that sign."""
    magnitude = np.abs(values)
    # Float32 has 23 mantissa bits, E4M3 three: rounding up may carry into the exponent, as it should.
    bits = magnitude.view(np.int32)
    rounded = (bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20
    codes = np.minimum(rounded - ((127 - _E4M3_BIAS) << 3), _E4M3_MAX_CODE)
    small = magnitude < _E4M3_SMALLEST_NORMAL
    codes[small] = np.rint(magnitude[small] / np.float32(_E4M3_SUBNORMAL_STEP))
    codes |= np.signbit(values).astype(np.int32) << 7
    payload: Bytes = codes.astype(np.uint8)
    return payload


def _e4m3_values() -> Float32Array:
    """``(256,)``: the number that each byte says. The two NaN codes, which are never written, say 480."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 0xF, codes & 0x7
    normal = np.ldexp(1.0 + mantissa / 8, exponent - _E4M3_BIAS)
    magnitude = np.where(exponent > 0, normal, mantissa * _E4M3_SUBNORMAL_STEP)
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)


_E4M3_VALUES = _e4m3_values()
