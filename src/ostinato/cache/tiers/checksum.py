"""Checksums of blocks on their way to disk and to a remote server.

CRC-32C with the CPU's instruction where the compiled module is there (about 25 GB/s), else zlib's CRC-32 (1 to
3 GB/s). Each stored block names its kind, so an installation without the compiled module takes what it cannot
check for a block of a foreign version.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Any

import numpy as np


def _compiled_module() -> Any:
    try:
        from ostinato import _native
    except ImportError:
        return None
    return _native


_native = _compiled_module()


class ChecksumKind(IntEnum):
    """How a checksum was computed; the number is stored."""

    CRC32C = 1
    CRC32 = 2


PREFERRED = ChecksumKind.CRC32 if _native is None else ChecksumKind.CRC32C
"""What new blocks get."""


def can_check(kind: int) -> bool:
    """Whether `checksum` can compute `kind` here."""
    return kind == ChecksumKind.CRC32 or (kind == ChecksumKind.CRC32C and _native is not None)


def checksum(data: memoryview | bytes, kind: int = PREFERRED) -> int:
    """32 bits over `data`, computed without the interpreter's lock.

    Raises:
        ValueError: if `can_check` denies `kind`.
    """
    if not can_check(kind):
        raise ValueError(f"checksums of kind {kind} cannot be computed here")
    if kind == ChecksumKind.CRC32:
        return zlib.crc32(data)
    value: int = _native.crc32c(np.frombuffer(data, dtype=np.uint8))
    return value
