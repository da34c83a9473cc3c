"""Packing weights for the native kernels, and keeping what was costly to pack.

Matrices whose file format is one of the kernels' own (Q4_0, Q4_1, Q8_0, F16, F32) only change places, at the
speed of memory and without loss. Everything else goes through float32 and is rounded to int8 (or what was
asked for); that takes seconds for a large model, so the result is kept on disk and mapped at the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ostinato import _native
from ostinato.ops.base import WeightTensor

_log = logging.getLogger(__name__)

WeightDtype: TypeAlias = Literal["auto", "fp32", "fp16", "int8", "int4"]

PACK_VERSION = 1
"""Changes whenever the bytes of a packed matrix change meaning."""

_FLOATS = frozenset({"F32", "F16", "BF16"})
_RAW = {
    "int4": {"Q4_0"},
    "int4_minimum": {"Q4_0", "Q4_1"},
    "int8": {"Q8_0"},
    "fp16": {"F16"},
    "fp32": {"F16"},
}
"""Encodings that a packed format takes as they are."""

RowTargets: TypeAlias = Sequence[npt.NDArray[np.int32]]
"""For each tensor, the rows of the packed matrix that its rows become."""


class PackedWeights:
    """A folder of packed matrices of one model; without a folder nothing is kept.

    Damaged, foreign or half-written files are packed anew; a disk that cannot be written costs only time.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, matrix: Any, key: str) -> bool:
        """Fill `matrix` from the folder; False if it has to be packed."""
        if self._folder is None:
            return False
        try:
            stored = np.memmap(self._path(key), dtype=np.uint8, mode="r")
        except (OSError, ValueError):
            return False
        header, body = stored[:32], stored[32:]
        if body.nbytes != matrix.nbytes or header.tobytes() != _checksum(body):
            _log.warning("packed weights %s are damaged; packing again", self._path(key))
            return False
        # Copied out of the mapping: the kernels' own memory has huge pages, which a file's has not.
        matrix.set_bytes(body)
        return True

    def store(self, matrix: Any, key: str) -> None:
        """Keep `matrix`, visible only when it is complete."""
        if self._folder is None:
            return
        body = np.empty(matrix.nbytes, dtype=np.uint8)
        matrix.get_bytes(body)
        path = self._path(key)
        draft = path.with_suffix(f".{os.getpid()}-{id(matrix):x}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(_checksum(body))
                file.write(body.data)
            draft.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            _log.warning("packed weights are not kept: %s", error)
            self._folder = None

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{key}.packed"


def packed_format(tensors: Sequence[WeightTensor], wanted: WeightDtype) -> str:
    """The kernels' format for a matrix made of these tensors.

    ``auto`` loses nothing but what Q5 and K-quants lose in int8 (less than they have lost already).
    """
    encodings = {tensor.encoding for tensor in tensors}
    if wanted == "auto":
        if encodings <= {"Q4_0", "Q4_1"}:
            return "int4" if encodings == {"Q4_0"} else "int4_minimum"
        if encodings <= _FLOATS:
            return "fp16" if encodings == {"F16"} else "fp32"
        return "int8"
    if wanted == "int4":
        return "int4" if encodings == {"Q4_0"} else "int4_minimum"
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


def _checksum(body: Any) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()
