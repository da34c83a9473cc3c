"""Packing weights for the native kernels, and keeping what was costly to pack.

Matrices whose codes fit the kernels' own (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16, F32) only change places, at the
speed of memory and without loss. Everything else goes through float32 and is rounded to int8 (or what was
asked for); that takes seconds for a large model, so the result is kept on disk and read at the next start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ostinato import _native
from ostinato.ops.base import WeightTensor
from ostinato.ops.packed_weights import PackedWeights

WeightDtype: TypeAlias = Literal["auto", "fp32", "fp16", "int8", "int4"]

PACK_VERSION = 2
"""Changes whenever the bytes of a packed matrix change meaning."""

_FLOATS = frozenset({"F32", "F16", "BF16"})
_RAW = {
    "int4": {"Q4_0"},
    "int4_minimum": {"Q4_0", "Q4_1"},
    "int8": {"Q4_0", "Q5_0", "Q8_0"},
    "int8_minimum": {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"},
    "fp16": {"F16"},
    "fp32": {"F16"},
}
"""Encodings that a packed format takes as they are."""

RowTargets: TypeAlias = Sequence[npt.NDArray[np.int32]]
"""For each tensor, the rows of the packed matrix that its rows become."""


def packed_format(tensors: Sequence[WeightTensor], wanted: WeightDtype) -> str:
    """The kernels' format for a matrix made of these tensors.

    ``auto`` loses nothing but what K-quants lose in int8 (less than they have lost already), with what shares a
    matrix with them.
    """
    encodings = {tensor.encoding for tensor in tensors}
    if wanted == "auto":
        if encodings <= {"Q4_0", "Q4_1"}:
            wanted = "int4"
        elif encodings <= _FLOATS:
            return "fp16" if encodings == {"F16"} else "fp32"
        else:
            wanted = "int8"
    if wanted == "int4":
        return "int4" if encodings == {"Q4_0"} else "int4_minimum"
    if wanted == "int8" and not encodings <= _RAW["int8"] and encodings <= _RAW["int8_minimum"]:
        return "int8_minimum"
    return wanted


def pack(
    tensors: Sequence[WeightTensor],
    cache: PackedWeights,
    wanted: WeightDtype,
    targets: RowTargets | None = None,
) -> Any:
    """One packed matrix of the rows of several tensors, by default one after the other."""
    if targets is None:
        targets = _stacked(tensors)
    form = packed_format(tensors, wanted)
    rows = 1 + max(int(target.max()) for target in targets)
    matrix = _native.PackedMatrix(form, rows, tensors[0].shape[1])
    if all(_is_cheap(tensor.encoding, form) for tensor in tensors):
        _fill(matrix, tensors, targets, form)
        return matrix
    key = _key(tensors, form)
    if not cache.load(matrix, key):
        _fill(matrix, tensors, targets, form)
        cache.store(matrix, key)
    return matrix


def _is_cheap(encoding: str, form: str) -> bool:
    """Whether packing takes no longer than reading the packed matrix would."""
    return encoding in _RAW[form] or (encoding in _FLOATS and form in ("fp32", "fp16"))


def _fill(matrix: Any, tensors: Sequence[WeightTensor], targets: RowTargets, form: str) -> None:
    for tensor, target in zip(tensors, targets, strict=True):
        if tensor.encoding in _RAW[form]:
            raw = np.ascontiguousarray(tensor.raw())
            matrix.put(tensor.encoding, raw.view(np.uint8).reshape(tensor.shape[0], -1), target)
        else:
            values = np.ascontiguousarray(tensor.to_float32(), dtype=np.float32)
            matrix.put("F32", values.view(np.uint8), target)


def _stacked(tensors: Sequence[WeightTensor]) -> RowTargets:
    ends = np.cumsum([0, *(tensor.shape[0] for tensor in tensors)])
    return [np.arange(a, b, dtype=np.int32) for a, b in pairwise(ends)]


def _key(tensors: Sequence[WeightTensor], form: str) -> str:
    """File name: what the matrix is made of and how. The folder stands for the model's content."""
    parts = [f"v{PACK_VERSION}", form, *(f"{t.name}:{t.encoding}:{t.shape}" for t in tensors)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
