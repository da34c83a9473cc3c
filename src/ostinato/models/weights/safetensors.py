"""A folder of safetensors files, one or many, as a `WeightFile`.

A file is ``u64 header length │ JSON header │ data``; the header gives each tensor's type, shape and byte
range in the data. The files are mapped here directly, because NumPy has no bfloat16 for the `safetensors`
package to return.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.weights.base import ELEMENT_TYPES, bf16_to_float32, missing_tensor
from ostinato.models.weights.files import DigestMemo
from ostinato.ops.base import Float32Array

SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
CONFIG_FILE = "config.json"

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsTensor:
    """A tensor in a mapped file; implements `ops.base.WeightTensor`.

    Attributes:
        name: name in the file.
        shape: logical shape.
        encoding: ``F32``, ``F16`` or ``BF16``.
    """

    name: str
    shape: tuple[int, ...]
    encoding: str
    _elements: npt.NDArray[np.generic]

    def raw(self) -> npt.NDArray[np.generic]:
        """A read-only view of the elements; BF16 as uint16 bit patterns."""
        return self._elements

    def to_float32(self) -> Float32Array:
        """The values, exactly; a view of the file where it holds float32."""
        if self.encoding == "BF16":
            return bf16_to_float32(self._elements.astype(np.uint16, copy=False))
        return self._elements.astype(np.float32, copy=False)


class SafetensorsFolder:
    """All safetensors files of one model. Implements `WeightFile`.

    Attributes:
        path: the folder.
        files: the weight files, in the order in which they are hashed.
    """

    def __init__(self, path: Path, data_dir: Path) -> None:
        """Read the headers and map the files.

        Raises:
            ModelFormatError: files are missing, damaged or truncated.
            OSError: a file cannot be read.
        """
        self.path = path
        self._digests = DigestMemo(data_dir)
        self.files = tuple(path / name for name in _file_names(path))
        self._tensors: dict[str, tuple[str, tuple[int, ...], npt.NDArray[np.uint8]]] = {}
        for file in self.files:
            self._tensors.update(_map_file(file))

    @property
    def nbytes(self) -> int:
        return sum(stored.nbytes for _, _, stored in self._tensors.values())

    def __contains__(self, hf_name: str) -> bool:
        return hf_name in self._tensors

    def tensor(self, hf_name: str) -> SafetensorsTensor:
        """The tensor of that name.

        Raises:
            ModelFormatError: if there is none.
            UnsupportedModelError: if its type is not F32, F16 or BF16.
        """
        if hf_name not in self._tensors:
            raise missing_tensor(self.path, hf_name, self._tensors)
        encoding, shape, stored = self._tensors[hf_name]
        element = ELEMENT_TYPES.get(encoding)
        if element is None:
            raise UnsupportedModelError(
                f"{self.path}: tensor {hf_name!r} is stored as {encoding}; F32, F16 and BF16 can be read. "
                "Fetch an unquantised version of the model, or a GGUF file"
            )
        return SafetensorsTensor(hf_name, shape, encoding, stored.view(element).reshape(shape))

    def digest(self) -> bytes:
        """SHA-256 over the configuration and the SHA-256 of every weight file, names not included."""
        whole = hashlib.sha256(b"ostinato safetensors 1\0")
        whole.update(hashlib.sha256((self.path / CONFIG_FILE).read_bytes()).digest())
        for file in self.files:
            whole.update(self._digests.sha256(file))
        return whole.digest()


def _file_names(folder: Path) -> list[str]:
    index_file = folder / SHARD_INDEX
    if not index_file.is_file():
        if (folder / SINGLE_FILE).is_file():
            return [SINGLE_FILE]
        raise ModelFormatError(f"{folder} has neither {SINGLE_FILE} nor {SHARD_INDEX}")
    try:
        weight_map = json.loads(index_file.read_bytes())["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFormatError(
            f"{index_file} is damaged: {error!r}. Fetch the model again"
        ) from error
    for name in names:
        if Path(name).name != name:
            raise ModelFormatError(f"{index_file} points outside its folder: {name!r}")
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelFormatError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files, the first being "
            f"{missing[0]}: fetch the model again"
        )
    return names


def _map_file(file: Path) -> dict[str, tuple[str, tuple[int, ...], npt.NDArray[np.uint8]]]:
    header, data_start = _read_header(file)
    mapped = np.memmap(file, dtype=np.uint8, mode="r")
    num_data_bytes = mapped.shape[0] - data_start
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        encoding, shape, begin, end = _entry(file, name, entry)
        if end > num_data_bytes:
            raise ModelFormatError(
                f"{file} is truncated: tensor {name!r} should end at byte {data_start + end}, the file "
                f"has {mapped.shape[0]}. Fetch the model again"
            )
        tensors[name] = (encoding, shape, mapped[data_start + begin : data_start + end])
    return tensors


def _read_header(file: Path) -> tuple[dict[str, Any], int]:
    """The JSON header and where the data begins."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        (length,) = struct.unpack("<Q", prefix) if len(prefix) == 8 else (0,)
        if not 2 <= length <= min(_MAX_HEADER_BYTES, file.stat().st_size - 8):
            raise ModelFormatError(
                f"{file} is damaged: its header length is {length}. Fetch the model again"
            )
        text = stream.read(length)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ModelFormatError(
            f"{file} is damaged: its header is not JSON. Fetch the model again"
        ) from error
    if not isinstance(header, dict):
        raise ModelFormatError(f"{file} is damaged: its header is not a JSON object")
    return header, 8 + int(length)


def _entry(file: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape and byte range of one header entry, checked against each other."""
    try:
        encoding = str(entry["dtype"])
        shape = tuple(int(dimension) for dimension in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(
            f"{file} is damaged: its entry for {name!r} cannot be read. Fetch the model again"
        ) from error
    element = ELEMENT_TYPES.get(encoding)
    fits = element is None or end - begin == prod(shape) * element.itemsize
    if not fits or not 0 <= begin <= end or any(dimension < 0 for dimension in shape):
        raise ModelFormatError(
            f"{file} is damaged: {name!r} of shape {shape} and type {encoding} cannot lie in bytes "
            f"{begin} to {end}. Fetch the model again"
        )
    return encoding, shape, begin, end
