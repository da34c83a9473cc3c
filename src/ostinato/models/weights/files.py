"""Writing files so that nobody sees half of one, and remembering what a file's content hashes to."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then rename over it; readers see the old file or the new one.

    Raises:
        OSError: the folder cannot be written, or the disk is full; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class DigestMemo:
    """SHA-256 of files, computed once: about a second a gigabyte, too slow for every start.

    An entry holds while the file's size, modification time and inode stay as they were. The memo is a JSON
    file; a damaged one counts as empty, and one that cannot be written costs time, not correctness.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / "digests.json"

    def sha256(self, path: Path) -> bytes:
        """SHA-256 of the content of `path`.

        Raises:
            OSError: `path` cannot be read.
        """
        resolved = path.resolve()
        status = resolved.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        entry = self._entries().get(str(resolved))
        if isinstance(entry, dict) and entry.get("stamp") == stamp and "sha256" in entry:
            return bytes.fromhex(entry["sha256"])
        with resolved.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        self._remember(str(resolved), {"stamp": stamp, "sha256": digest.hex()})
        return digest

    def _entries(self) -> dict[str, Any]:
        try:
            entries = json.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}

    def _remember(self, key: str, entry: dict[str, Any]) -> None:
        # Read again: another process may have added its own file meanwhile.
        entries = {**self._entries(), key: entry}
        try:
            write_atomically(self._path, json.dumps(entries, indent=1).encode())
        except OSError as error:
            _log.warning("cannot remember file digests in %s: %s", self._path, error)
