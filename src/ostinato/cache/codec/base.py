"""What a codec of sealed K/V blocks is, and where its bytes lie.

A block is *open* while somebody may write to it: its K/V is in fp16. Once it is full (or nobody will go on
with it) it is *sealed*: encoded into `KVCodec.block_bytes` bytes, and read in place from then on.

    [layer]  [K of head 0][K of head 1] … [V of head 0][V of head 1] …      one record each

    record   payload ‖ scales (‖ minima) ‖ zeros up to a multiple of 16 bytes  (fp16, fp32: the payload alone)

Numbers are little-endian. Arithmetic is float32; scales are rounded to fp16 *before* values are divided by
them, and quotients are rounded half to even, so that every implementation writes the same bytes. What is not
a number, or an infinity, is no value that a model may store; see `RecordCodec.encode`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Float32Array: TypeAlias = npt.NDArray[np.float32]
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]

RECORD_ALIGNMENT = 16
"""Records begin at multiples of this many bytes from the start of the block."""

KEY, VALUE = 0, 1
"""Order within a layer."""

FP16_MAX = 65504.0


def padded(num_bytes: int) -> int:
    """`num_bytes` rounded up to whole `RECORD_ALIGNMENT`."""
    return -(-num_bytes // RECORD_ALIGNMENT) * RECORD_ALIGNMENT


class RecordCodec(ABC):
    """How K, or V, of one head and one block becomes a record. Works on any number of records at once."""

    @abstractmethod
    def num_bytes(self, block_size: int, head_dim: int) -> int:
        """Bytes of a record, padding included.

        Raises:
            ValueError: this codec has no such record.
        """

    @abstractmethod
    def encode(self, values: Float32Array, num_tokens: int, records: Bytes) -> None:
        """Write records.

        Args:
            values: ``(…, block_size, head_dim)``, within ±`FP16_MAX` or NaN. A NaN spoils at most what shares
                a scale with it, and never another value silently.
            num_tokens: leading tokens that count, at least one. What lies behind them influences nothing.
            records: ``(…, num_bytes)``, zeros.
        """

    @abstractmethod
    def decode(self, records: Bytes, block_size: int, head_dim: int) -> Float32Array:
        """``(…, block_size, head_dim)``: the inverse. Tokens that did not count decode to something finite."""


class KVCodec:
    """A format of sealed blocks: one record codec for keys, one for values.

    Shapes are taken from the arrays: a block is ``(layers, 2, kv heads, block_size, head_dim)``.

    Args:
        name: as in ``--kv-dtype``.
        key: codec of K records.
        value: codec of V records.
    """

    def __init__(self, name: str, key: RecordCodec, value: RecordCodec) -> None:
        self.name = name
        self._parts = (key, value)

    def block_bytes(
        self, num_layers: int, num_kv_heads: int, block_size: int, head_dim: int
    ) -> int:
        """Bytes of a sealed block."""
        records = sum(codec.num_bytes(block_size, head_dim) for codec in self._parts)
        return num_layers * num_kv_heads * records

    def encode(self, block: FloatArray, num_tokens: int, out: Bytes) -> None:
        """Seal a block. Values beyond the range of fp16 become its largest.

        Args:
            block: ``(layers, 2, kv heads, block_size, head_dim)``.
            num_tokens: leading tokens of the block that hold something.
            out: ``(block_bytes,)``.

        Raises:
            ValueError: no such number of tokens, or `out` has another size.
        """
        if not 1 <= num_tokens <= block.shape[3]:
            raise ValueError(f"a block of {block.shape[3]} tokens cannot hold {num_tokens}")
        out[...] = 0
        for part, codec in enumerate(self._parts):
            values = np.clip(block[:, part].astype(np.float32), -FP16_MAX, FP16_MAX)
            codec.encode(values, num_tokens, self._records(out, part, block.shape))

    def decode(self, data: Bytes, out: FloatArray) -> None:
        """Open a block again.

        Args:
            data: ``(block_bytes,)``.
            out: ``(layers, 2, kv heads, block_size, head_dim)``; values are rounded to its element type.

        Raises:
            ValueError: `data` has another size than such a block.
        """
        for part, codec in enumerate(self._parts):
            values = codec.decode(self._records(data, part, out.shape), *out.shape[3:])
            # A scale that was rounded up may put the largest value a little beyond fp16.
            out[:, part] = np.clip(values, -FP16_MAX, FP16_MAX)

    def decode_heads(
        self,
        data: Bytes,
        block_ids: npt.NDArray[np.integer[Any]],
        layer_index: int,
        part: int,
        block_shape: Sequence[int],
    ) -> Float32Array:
        """K or V of one layer of some blocks, ``(n, kv heads, block_size, head_dim)``.

        Args:
            data: ``(num_blocks, block_bytes)``.
            block_ids: ``(n,)``, which blocks.
            layer_index: which layer.
            part: `KEY` or `VALUE`.
            block_shape: ``(layers, 2, kv heads, block_size, head_dim)``.
        """
        records = self._records(data, part, block_shape)[block_ids, layer_index]
        return self._parts[part].decode(records, *block_shape[3:])

    def _records(self, data: Bytes, part: int, block_shape: Sequence[int]) -> Bytes:
        """``(…, layers, kv heads, bytes of a record)``, a view of the ``(…, block_bytes)`` of blocks."""
        num_layers, _, num_kv_heads, block_size, head_dim = block_shape
        key, value = (codec.num_bytes(block_size, head_dim) for codec in self._parts)
        expected = num_layers * num_kv_heads * (key + value)
        if data.shape[-1] != expected:
            raise ValueError(
                f"a block of {self.name} K/V takes {expected} bytes, not {data.shape[-1]}"
            )
        layers = data.reshape(*data.shape[:-1], num_layers, expected // num_layers)
        keys_end = num_kv_heads * key
        if part == KEY:
            return layers[..., :keys_end].reshape(*layers.shape[:-1], num_kv_heads, key)
        return layers[..., keys_end:].reshape(*layers.shape[:-1], num_kv_heads, value)
