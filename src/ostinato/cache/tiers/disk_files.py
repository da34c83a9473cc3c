"""BlockFiles: the two files of one (model, K/V format), as slots of bytes and of records.

    blocks    slot i's content at i × block_bytes
    index     slot i's `BlockRecord` at i × 256; zeros where the slot is empty

Both are written in place. A record is the commit of its slot: it is written after the content and cleared
before the slot is used again, and it holds the content's checksum. So whoever is killed between the two leaves
an empty slot, and a machine that loses power leaves at worst a record whose content does not match: a miss.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ostinato.cache.tiers.record import EMPTY, RECORD_BYTES

BLOCKS_NAME = "blocks"
INDEX_NAME = "index"

_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)


class PositionedIO:
    """The operating system's calls; replaced in tests by one that fails."""

    def pwrite(self, descriptor: int, data: memoryview | bytes, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def preadv(self, descriptor: int, out: memoryview, offset: int) -> int:
        return os.preadv(descriptor, [out], offset)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def free_space(self, path: Path) -> tuple[int, int]:
        """``(bytes free for us, bytes in all)`` of the file system that holds `path`."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


Opener = Callable[[Path], tuple[int, bool]]
"""Opens a file: ``(descriptor, whether it can be written)``. Raises OSError."""


def open_or_make(path: Path) -> tuple[int, bool]:
    """An `Opener` that makes the file if it is not there."""
    return _open(path, os.O_CREAT)


def open_existing(path: Path) -> tuple[int, bool]:
    """An `Opener` of what is there."""
    return _open(path, 0)


def open_to_read(path: Path) -> tuple[int, bool]:
    """An `Opener` that leaves no trace."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _open(path: Path, flags: int) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_RDWR | flags | os.O_CLOEXEC, 0o600), True
    except OSError as error:
        if error.errno not in _READ_ONLY_ERRORS:
            raise
        return open_to_read(path)


class BlockFiles:
    """Open files of one folder. Reads and writes of different slots may run at once.

    Args:
        folder: exists.
        block_bytes: content of a slot.
        io: how bytes are moved.
        opener: how they are opened.

    Raises:
        OSError: if they cannot be.
    """

    def __init__(
        self, folder: Path, block_bytes: int, io: PositionedIO, opener: Opener = open_or_make
    ) -> None:
        self.folder = folder
        self.block_bytes = block_bytes
        self._io = io
        self._blocks, self.writable = opener(folder / BLOCKS_NAME)
        try:
            self._index, index_writable = opener(folder / INDEX_NAME)
        except OSError:
            os.close(self._blocks)
            raise
        self.writable = self.writable and index_writable

    def close(self) -> None:
        """Idempotent."""
        for name in ("_blocks", "_index"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                os.close(descriptor)
                setattr(self, name, -1)

    @property
    def is_there(self) -> bool:
        """Whether the files can still be found by their names, or somebody has deleted them."""
        return os.fstat(self._blocks).st_nlink > 0 and os.fstat(self._index).st_nlink > 0

    def sync(self) -> None:
        """Wait until the device has everything."""
        self._io.sync(self._blocks)
        self._io.sync(self._index)

    # ------------------------------------------------------------------ content

    def write_block(self, slot: int, data: memoryview) -> None:
        """Raises OSError; then the slot's content is undefined and its record must stay empty."""
        self._write(self._blocks, data.cast("B"), slot * self.block_bytes)

    def read_block(self, slot: int, out: memoryview) -> int:
        """Fill `out` from the slot's beginning.

        Returns:
            Bytes read: fewer than asked for only at the end of the file.
        """
        out = out.cast("B")
        done = 0
        while done < len(out):
            count = self._io.preadv(self._blocks, out[done:], slot * self.block_bytes + done)
            if not count:
                break
            done += count
        return done

    def will_read(self, slot: int) -> None:
        """Let the system fetch the slot's content while others are read."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                offset = slot * self.block_bytes
                os.posix_fadvise(self._blocks, offset, self.block_bytes, os.POSIX_FADV_WILLNEED)

    def wipe_block(self, slot: int) -> None:
        """Make the slot's content unreadable, and give its space back where the system can."""
        offset, size = slot * self.block_bytes, self.block_bytes
        if offset >= os.fstat(self._blocks).st_size:
            return
        if not _punch_hole(self._blocks, offset, size):
            self._write(self._blocks, memoryview(bytes(size)), offset)

    # ------------------------------------------------------------------ records

    def write_record(self, slot: int, record: bytes) -> None:
        """Commit the slot."""
        self._write(self._index, record, slot * RECORD_BYTES)

    def clear_record(self, slot: int) -> None:
        """Empty the slot."""
        if slot * RECORD_BYTES < os.fstat(self._index).st_size:
            self._write(self._index, EMPTY, slot * RECORD_BYTES)

    def records(self) -> Iterator[tuple[int, bytes]]:
        """``(slot, record's bytes)`` of every slot that is not empty; a cut last record is shorter."""
        data = (self.folder / INDEX_NAME).read_bytes()
        for start in range(0, len(data), RECORD_BYTES):
            record = data[start : start + RECORD_BYTES]
            if record.strip(b"\0"):
                yield start // RECORD_BYTES, record

    @property
    def num_complete_slots(self) -> int:
        """Slots whose content lies within the file in full."""
        return os.fstat(self._blocks).st_size // self.block_bytes

    def truncate(self, num_slots: int) -> None:
        """Cut off everything from slot `num_slots` on."""
        for descriptor, width in ((self._index, RECORD_BYTES), (self._blocks, self.block_bytes)):
            if os.fstat(descriptor).st_size > num_slots * width:
                os.ftruncate(descriptor, num_slots * width)

    def _write(self, descriptor: int, data: memoryview | bytes, offset: int) -> None:
        if not self.writable:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.folder))
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += self._io.pwrite(descriptor, view[done:], offset + done)


def _punch_hole(descriptor: int, offset: int, size: int) -> bool:
    """Give a range of a file back to the file system; False where that is not possible."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.fallocate(
        ctypes.c_int(descriptor),
        ctypes.c_int(_PUNCH_HOLE),
        ctypes.c_int64(offset),
        ctypes.c_int64(size),
    )
    return bool(result == 0)
