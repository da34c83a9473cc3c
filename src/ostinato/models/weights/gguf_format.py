"""A reader for GGUF headers (versions 2 and 3, little-endian).

Layout, all little-endian (specification: ggml, docs/gguf.md)::

    magic "GGUF" │ u32 version │ u64 tensors │ u64 key/values
    key/value × n : string key │ u32 type │ value          string = u64 length + UTF-8
    tensor    × n : string name │ u32 rank │ u64 dims, innermost first │ u32 type │ u64 offset
    padding to general.alignment (default 32), then the tensors' bytes

The `gguf` package reads this too, but builds one NumPy view for each token and each merge: 3 seconds for
49,000 tokens, 15 for 152,000. This reader takes a tenth of a second, and checks every length against the
file, so that a truncated or damaged file is an error with a place and not an endless loop.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.errors import ModelFormatError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_MAX_RANK = 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies.

    Attributes:
        name: name in the file.
        shape: outermost dimension first, as NumPy has it (the file stores the reverse).
        type_id: GGML type number.
        offset: from the start of the file, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything in front of the tensors' bytes.

    Attributes:
        metadata: the key/values; arrays are lists. ``{architecture}.vocab_size`` is always there: where the
            file leaves it out it comes from the embedding's rows.
        tensors: in the file's order.
    """

    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]


def read_header(path: Path) -> GgufHeader:
    """Parse the header of a GGUF file.

    Raises:
        ModelFormatError: not a GGUF file, an unknown version, or damaged; says where.
        OSError: the file cannot be read.
    """
    if path.stat().st_size == 0:
        raise ModelFormatError(f"{path} is empty: fetch the model again")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _HeaderParser(path, data).parse()


class _HeaderParser:
    """One pass over the bytes; `_position` only moves forward."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 0

    def parse(self) -> GgufHeader:
        if self._take(4) != MAGIC:
            raise ModelFormatError(
                f"{self._path} is not a GGUF file: it does not begin with 'GGUF'"
            )
        (version,) = self._unpack("I")
        if version not in VERSIONS:
            big_endian = version & 0xFFFF == 0 and version != 0
            what = "is big-endian" if big_endian else f"has GGUF version {version}"
            raise ModelFormatError(
                f"{self._path} {what}; versions 2 and 3, little-endian, can be read: convert it again"
            )
        num_tensors, num_pairs = self._unpack("QQ")
        metadata = dict(self._pair() for _ in range(num_pairs))
        placed = [self._tensor_info() for _ in range(num_tensors)]
        start = self._data_start(metadata)
        tensors = tuple(
            TensorInfo(info.name, info.shape, info.type_id, info.offset + start) for info in placed
        )
        if len({info.name for info in tensors}) != len(tensors):
            raise self._damaged("two tensors have the same name")
        return GgufHeader(_with_vocab_size(metadata, tensors), tensors)

    def _data_start(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, not a power of two")
        return -(-self._position // alignment) * alignment

    def _pair(self) -> tuple[str, Any]:
        key = self._string()
        (type_id,) = self._unpack("I")
        return key, self._value(type_id)

    def _value(self, type_id: int) -> Any:
        if type_id in _SCALARS:
            return self._unpack(_SCALARS[type_id])[0]
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            element_type, length = self._unpack("IQ")
            return self._array(element_type, length)
        raise self._damaged(f"there is no value type {type_id}")

    def _array(self, element_type: int, length: int) -> list[Any]:
        if length > len(self._data) - self._position:
            raise self._damaged(f"an array claims {length} elements")
        if element_type in _SCALARS:
            return list(self._unpack(f"{length}{_SCALARS[element_type]}"))
        if element_type == _STRING:
            return [self._string() for _ in range(length)]
        raise self._damaged(f"an array has elements of type {element_type}")

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        (rank,) = self._unpack("I")
        if rank > _MAX_RANK:
            raise self._damaged(f"tensor {name!r} claims {rank} dimensions")
        dims = self._unpack(f"{rank}Q")
        type_id, offset = self._unpack("IQ")
        return TensorInfo(name, tuple(reversed(dims)), type_id, offset)

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        raw = self._take(length)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._damaged("a string is not UTF-8") from error

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        layout = "<" + layout
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise self._damaged("the file ends in the middle of its header")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _damaged(self, what: str) -> ModelFormatError:
        return ModelFormatError(
            f"{self._path} is damaged near byte {self._position}: {what}. Fetch the model again"
        )


def _with_vocab_size(metadata: dict[str, Any], tensors: tuple[TensorInfo, ...]) -> dict[str, Any]:
    rows = next((info.shape[0] for info in tensors if info.name == "token_embd.weight"), None)
    key = f"{metadata.get('general.architecture')}.vocab_size"
    return metadata if rows is None else {key: rows, **metadata}
