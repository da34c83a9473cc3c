"""Packed matrices on disk, and how they go again.

    ROOT/
      <32 hex digits>/     one model's content; locked (shared) by processes that use it, touched at each start
        *.packed           a matrix: 32 bytes of checksum, then its bytes

A model that was changed or fetched again gets another folder, and nobody would ever read the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.clock import Clock, SystemClock

_log = logging.getLogger(__name__)

UNUSED_SECONDS = 30 * 24 * 3600.0
"""A folder that no process used for so long is deleted when another model is packed."""


class PackedWeights:
    """The packed matrices of one model; without a folder nothing is kept.

    Damaged, foreign or half-written files are packed anew; a disk that cannot be written costs only time.

    Args:
        folder: of this model. Folders of others lie beside it; those that nobody used for `UNUSED_SECONDS` are
            deleted as soon as something is stored here.
        clock: for the time of use.
    """

    def __init__(self, folder: Path | None, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._is_marked = False
        self._has_stored = False
        if folder is not None:
            self._mark_used(folder)

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
            self._after_store(self._folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            _log.warning("packed weights are not kept: %s", error)
            self._folder = None

    def _after_store(self, folder: Path) -> None:
        with self._lock:
            if self._has_stored:
                return
            self._has_stored = True
            self._mark_used(folder)
            drop_unused(folder.parent, self._clock.time() - UNUSED_SECONDS)

    def _mark_used(self, folder: Path) -> None:
        """Note the time, and hold the folder against other processes as long as this object lives."""
        if self._is_marked:
            return
        with contextlib.suppress(OSError):  # it is not there yet, or another user's
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._is_marked = True
            now = self._clock.time()
            os.utime(folder, (now, now))

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{key}.packed"


def drop_unused(root: Path, before: float) -> None:
    """Delete the models' folders in `root` that were last used before this time and are not in use now."""
    for folder in root.iterdir():
        if re.fullmatch("[0-9a-f]{32}", folder.name) and folder.stat().st_mtime < before:
            _drop_unless_in_use(folder)


def _drop_unless_in_use(folder: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
            _log.info("packed weights %s were not used any more and are deleted", folder)
        finally:
            os.close(descriptor)


def _checksum(body: Any) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()
