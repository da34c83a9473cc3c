"""The folder of the disk tier: one lock, and a folder for each (model, K/V format) that was ever served.

    ROOT/
      lock                 held by the one process that uses ROOT; its pid as text
      <digest>/            16 hex digits over model, K/V format and format version
        manifest.json      what the digest stands for
        index, blocks      see `disk_files`
      .removed-…/          being deleted

Blocks of other models and formats stay until the bound needs their room; then the folder that was used least
recently goes, as a whole. Whatever else lies in ROOT, which may be any folder that a user names, is somebody
else's: it is not listed, not counted and never deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ostinato.cache.tiers.disk_files import BLOCKS_NAME, INDEX_NAME
from ostinato.cache.tiers.record import FORMAT_VERSION
from ostinato.errors import ConfigError

LOCK_NAME = "lock"
MANIFEST_NAME = "manifest.json"
LOCK_TRIES, LOCK_PAUSE_SECONDS = 11, 0.05
_REMOVED_PREFIX = ".removed-"
_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class TierFormat:
    """Blocks of which model, in which format.

    Attributes:
        model: name, for people.
        digest: differs whenever blocks would not be interchangeable: over the model and the K/V format.
        block_bytes: content of a block.
        details: geometry and the like, for people: written to the manifest.
    """

    model: str
    digest: bytes
    block_bytes: int
    details: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """16 hex digits; also differs between format versions."""
        parts = b"ostinato-tier" + FORMAT_VERSION.to_bytes(4, "little") + self.digest
        return hashlib.sha256(parts).hexdigest()[:16]

    def manifest(self) -> dict[str, str | int]:
        """What the folder's manifest says."""
        return {
            "format_version": FORMAT_VERSION,
            "model": self.model,
            "block_bytes": self.block_bytes,
            **self.details,
            "digest": self.digest.hex(),
        }


@dataclass(frozen=True, slots=True)
class FormatFolder:
    """One digest folder as it lies there.

    Attributes:
        path: of the folder.
        manifest: its content, or None if it is missing or damaged.
        num_bytes: length of its files.
        last_used: seconds since the Unix epoch.
    """

    path: Path
    manifest: Mapping[str, str | int] | None
    num_bytes: int
    last_used: float

    @property
    def readable(self) -> bool:
        """Whether this version can read its blocks."""
        return (
            self.manifest is not None
            and self.manifest.get("format_version") == FORMAT_VERSION
            and _is_size(self.manifest.get("block_bytes"))
        )

    @property
    def block_bytes(self) -> int:
        """Content of a block. Only for a readable folder."""
        assert self.manifest is not None
        return int(self.manifest["block_bytes"])


class FolderLock:
    """One process at a time. The system releases it when the process dies, however it dies.

    Args:
        root: the folder. Made if it is missing, for its owner alone, since K/V gives prompts away.

    Raises:
        ConfigError: if another process holds it, naming that; or the folder can be neither made nor read.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / LOCK_NAME
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = self._open()
        except OSError as error:
            raise ConfigError(
                f"the K/V cache folder {root} can be neither made nor opened ({error.strerror}): name a "
                "folder that may be written, or switch the disk tier off"
            ) from error
        try:
            self._lock()
        except OSError as error:
            os.close(self._descriptor)
            raise ConfigError(
                f"the K/V cache folder {root} is in use by {lock_holder(root) or 'another process'}: "
                "stop that, or name another folder"
            ) from error
        with contextlib.suppress(OSError):  # a read-only folder keeps its text
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def _lock(self) -> None:
        """Who only asks who holds it (`lock_holder`) has it for a moment: try for as long as that may take."""
        for _ in range(LOCK_TRIES - 1):
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            threading.Event().wait(LOCK_PAUSE_SECONDS)
        return fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def released(self) -> bool:
        return self._descriptor < 0

    def release(self) -> None:
        """Idempotent. The file stays: unlinking it would let two processes lock two files of one name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_holder(root: Path) -> str | None:
    """``process 4711 on host name`` if somebody holds the lock of `root`, else None. Takes nothing."""
    try:
        descriptor = os.open(root / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        words = os.pread(descriptor, 300, 0).decode(errors="replace").split()
        if len(words) != 2:
            return "another process"
        return f"process {words[0]} on {words[1]}"
    else:
        return None
    finally:
        os.close(descriptor)


def format_folders(root: Path) -> list[FormatFolder]:
    """The digest folders in `root`, most recently used first."""
    found = []
    for path in root.iterdir() if root.is_dir() else ():
        if _is_ours(path, path.name):
            sizes = [_stat(path / name) for name in (INDEX_NAME, BLOCKS_NAME)]
            last_used = max(time for _, time in sizes)
            found.append(FormatFolder(path, _manifest(path), sum(s for s, _ in sizes), last_used))
    return sorted(found, key=lambda folder: folder.last_used, reverse=True)


def _is_ours(path: Path, digest: str) -> bool:
    """Whether `path` can only be a folder that was made here, for `digest`."""
    return _DIGEST.fullmatch(digest) is not None and path.is_dir() and not path.is_symlink()


def _is_size(value: object) -> bool:
    """Whether a manifest's `block_bytes` can be one."""
    return type(value) is int and 0 < value < 2**31


def _stat(path: Path) -> tuple[int, float]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0.0
    return status.st_size, status.st_mtime


def _manifest(path: Path) -> Mapping[str, str | int] | None:
    try:
        content = json.loads((path / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def make_format_folder(root: Path, kind: TierFormat) -> Path:
    """The folder of `kind` with its manifest.

    Raises:
        OSError: if it is not there and cannot be made.
    """
    path = root / kind.name
    path.mkdir(mode=0o700, exist_ok=True)
    if _manifest(path) != kind.manifest():
        draft = path / (MANIFEST_NAME + ".new")
        with contextlib.suppress(OSError):  # what cannot be written now may be there from before
            draft.write_text(json.dumps(kind.manifest(), indent=2) + "\n", encoding="utf-8")
            draft.replace(path / MANIFEST_NAME)
    return path


def set_aside(path: Path) -> Path:
    """Take a digest folder out of sight at once; `delete_set_aside` deletes it.

    Raises:
        OSError: if it cannot be renamed.
    """
    return path.rename(path.with_name(_REMOVED_PREFIX + path.name))


def delete_set_aside(root: Path) -> None:
    """Delete what `set_aside` has left, in this or an earlier process."""
    for path in root.glob(_REMOVED_PREFIX + "*"):
        if _is_ours(path, path.name.removeprefix(_REMOVED_PREFIX)):
            shutil.rmtree(path, ignore_errors=True)
