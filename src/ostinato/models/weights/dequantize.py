"""Quantised rows to float32.

The `gguf` package knows every type, and is the reference here; it works in groups of 16 rows with many
temporaries, about 14 ns an element. The types of the default model, and their siblings, are unpacked below
in cache-sized pieces straight into the result, several times faster. Both give the same bits.

Blocks of 32 elements (specification: ggml, ggml-common.h); d, m are float16, q one byte an element or
two elements a byte, the low halves first::

    Q8_0   d q[32]         x = d·q, q signed
    Q4_0   d q[16]         x = d·(q − 8)
    Q4_1   d m q[16]       x = d·q + m
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.ops.base import Float32Array

BLOCK = 32
"""Elements a block of all three types."""

PIECE = 8192
"""Blocks at a time: 1 MiB of results."""

_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", (BLOCK,))])
_Q4_0 = np.dtype([("d", "<f2"), ("q", "V16")])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "V16")])

_Unpack = Callable[[npt.NDArray[Any], Float32Array], None]


def dequantize(stored: npt.NDArray[np.uint8], type_id: int, shape: tuple[int, ...]) -> Float32Array:
    """Decode stored rows.

    Args:
        stored: ``(rows, bytes a row)``, contiguous.
        type_id: GGML type number.
        shape: of the result.

    Raises:
        NotImplementedError: the `gguf` package cannot decode the type.  # ok: its error, translated in gguf.py
    """
    if type_id not in _UNPACKERS:
        # Imported here: a start with a model that does not need it is faster without.
        from gguf import GGMLQuantizationType
        from gguf import dequantize as dequantize_any

        values: Float32Array = dequantize_any(stored, GGMLQuantizationType(type_id))
        return values.reshape(shape)
    layout, unpack = _UNPACKERS[type_id]
    result = np.empty((prod(shape) // BLOCK, BLOCK), dtype=np.float32)
    blocks = stored.reshape(-1).view(layout)
    for start in range(0, len(result), PIECE):
        unpack(blocks[start : start + PIECE], result[start : start + PIECE])
    return result.reshape(shape)


def _unpack_q8_0(blocks: npt.NDArray[Any], result: Float32Array) -> None:
    result[...] = blocks["q"]
    result *= _column(blocks, "d")


def _unpack_q4_0(blocks: npt.NDArray[Any], result: Float32Array) -> None:
    result[...] = _split_halves(blocks)
    result -= np.float32(8)
    result *= _column(blocks, "d")


def _unpack_q4_1(blocks: npt.NDArray[Any], result: Float32Array) -> None:
    result[...] = _split_halves(blocks)
    result *= _column(blocks, "d")
    result += _column(blocks, "m")


def _split_halves(blocks: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The 4-bit elements of each block, ``(blocks, 32)``.

    The 16 bytes of a block move as one item, so that NumPy runs one long loop instead of many short ones.
    """
    packed = np.ascontiguousarray(blocks["q"]).view(np.uint8)
    halves = np.empty((len(blocks), 2), dtype="V16")
    halves[:, 0] = (packed & np.uint8(0x0F)).view("V16")
    halves[:, 1] = (packed >> np.uint8(4)).view("V16")
    return halves.view(np.uint8)


def _column(blocks: npt.NDArray[Any], name: str) -> Float32Array:
    column: Float32Array = blocks[name].astype(np.float32)[:, None]
    return column


_UNPACKERS: dict[int, tuple[np.dtype[Any], _Unpack]] = {
    2: (_Q4_0, _unpack_q4_0),
    3: (_Q4_1, _unpack_q4_1),
    8: (_Q8_0, _unpack_q8_0),
}
