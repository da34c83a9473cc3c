"""Looks at and mends the disk tier's folder while no server runs: what ``ostinato cache`` does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ostinato.cache.tiers.checksum import checksum
from ostinato.cache.tiers.disk_files import (
    BlockFiles,
    Opener,
    PositionedIO,
    open_or_make,
    open_to_read,
)
from ostinato.cache.tiers.disk_folder import (
    FolderLock,
    FormatFolder,
    delete_set_aside,
    format_folders,
    set_aside,
)
from ostinato.cache.tiers.disk_index import (
    DiskIndex,
    Drop,
    compact,
    descendants,
    drop_slots,
    oldest_beyond,
    read_index,
)
from ostinato.cache.tiers.record import RECORD_BYTES
from ostinato.cache.types import TenantId


@dataclass(frozen=True, slots=True)
class FolderContent:
    """What one digest folder holds.

    Attributes:
        folder: where, and its manifest.
        num_blocks: live blocks; 0 where this version cannot read the folder.
        num_bytes: what they take, records included.
        tenants: live blocks by tenant.
        num_retained: blocks with a promise that still holds.
        newest: when the youngest block was stored, in seconds since the Unix epoch; 0 if there is none.
        dropped: records that do not count, by reason.
        error: why it cannot be read, or None.
    """

    folder: FormatFolder
    num_blocks: int = 0
    num_bytes: int = 0
    tenants: Counter[TenantId] = field(default_factory=Counter)
    num_retained: int = 0
    newest: float = 0.0
    dropped: Counter[Drop] = field(default_factory=Counter)
    error: str | None = None


@contextmanager
def _opened(
    folder: FormatFolder, now: float, opener: Opener = open_or_make
) -> Iterator[tuple[BlockFiles, DiskIndex]]:
    files = BlockFiles(folder.path, folder.block_bytes, PositionedIO(), opener)
    try:
        yield files, read_index(files, now)
    finally:
        files.close()


def list_contents(root: Path, now: float) -> list[FolderContent]:
    """All digest folders of `root`, most recently used first. Takes no lock: a server may run meanwhile. Writes
    nothing.

    Raises:
        OSError: if `root` cannot be read.
    """
    return [_content_of(folder, now) for folder in format_folders(root)]


def _content_of(folder: FormatFolder, now: float) -> FolderContent:
    if not folder.readable:
        return FolderContent(folder)
    try:
        return _read_content(folder, now)
    except FileNotFoundError:  # it is just being made or deleted
        return FolderContent(folder)
    except OSError as error:
        return FolderContent(folder, error=f"{error.filename or folder.path}: {error.strerror}")


def _read_content(folder: FormatFolder, now: float) -> FolderContent:
    with _opened(folder, now, open_to_read) as (files, index):
        live = index.live.values()
        return FolderContent(
            folder,
            len(live),
            len(live) * (files.block_bytes + RECORD_BYTES),
            Counter(record.identity.tenant for record in live),
            sum(r.retention is not None and r.retention.holds(now) for r in live),
            max((record.stored_at for record in live), default=0.0),
            index.counts(),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What reading every block of one folder has shown.

    Attributes:
        folder: which.
        num_sound: blocks that match their checksum.
        damaged: slots of live blocks that do not, or cannot be read.
        lost: `damaged` and the blocks behind them.
        dropped: records that did not count in the first place, by reason.
        repaired: whether all that was taken out.
    """

    folder: FormatFolder
    num_sound: int
    damaged: frozenset[int]
    lost: frozenset[int]
    dropped: Counter[Drop]
    repaired: bool = False

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong, or nothing is wrong any more."""
        return self.repaired or not (self.damaged or self.dropped)


def verify(
    folder: FormatFolder, now: float, progress: Callable[[int], None] = lambda num_bytes: None
) -> Verdict:
    """Read every live block. For who holds the lock: a block that is just being written looks damaged."""
    with _opened(folder, now) as (files, index):
        return _verify(folder, files, index, progress)


def repair(
    folder: FormatFolder, now: float, progress: Callable[[int], None] = lambda num_bytes: None
) -> Verdict:
    """`verify`, and take out what is damaged, what stands behind it, and records that do not count.

    Raises:
        OSError: if that cannot be written.
    """
    with _opened(folder, now) as (files, index):
        found = _verify(folder, files, index, progress)
        drop_slots(files, index, set(found.lost) | set(index.dropped))
        return Verdict(folder, found.num_sound, found.damaged, found.lost, found.dropped, True)


def _verify(
    folder: FormatFolder, files: BlockFiles, index: DiskIndex, progress: Callable[[int], None]
) -> Verdict:
    content = memoryview(bytearray(files.block_bytes))
    damaged = set()
    for slot in sorted(index.live):
        record = index.live[slot]
        try:
            whole = files.read_block(slot, content) == len(content)
        except OSError:
            whole = False
        if not whole or checksum(content, record.checksum_kind) != record.checksum:
            damaged.add(slot)
        progress(files.block_bytes)
    lost = descendants(index, damaged)
    num_sound = len(index.live) - len(damaged)
    return Verdict(folder, num_sound, frozenset(damaged), frozenset(lost), index.counts())


def prune(root: Path, max_bytes: int | None, now: float) -> None:
    """Take out what does not count, cut the files to what is live, and shrink all to `max_bytes`.

    Folders of other versions, and those whose manifest is damaged, go in any case. Then what was used least
    recently: whole folders, then blocks of the last one, tails before heads. For who holds the lock.

    Args:
        root: folder of the disk tier.
        max_bytes: for all folders together; None only tidies.
        now: seconds since the Unix epoch.

    Raises:
        OSError: if that cannot be written.
    """
    delete_set_aside(root)
    folders = sorted(
        format_folders(root), key=lambda folder: (not folder.readable, -folder.last_used)
    )
    room = max_bytes
    for folder in folders:
        left = _prune_folder(folder, room, now)
        if left == 0 and (room is not None or not folder.readable):
            set_aside(folder.path)
        room = None if room is None else max(0, room - left)
    delete_set_aside(root)


def _prune_folder(folder: FormatFolder, room: int | None, now: float) -> int:
    """Bytes that stay in `folder`."""
    if not folder.readable:
        return 0
    with _opened(folder, now) as (files, index):
        slot_bytes = files.block_bytes + RECORD_BYTES
        drop_slots(files, index, set(index.dropped))
        if room is not None:
            drop_slots(files, index, oldest_beyond(index, room // slot_bytes, now))
        compact(files, index)
        # Tidying is no use: it must not make a folder look recently used.
        for path in folder.path.iterdir():
            os.utime(path, (folder.last_used, folder.last_used))
        return len(index.live) * slot_bytes


def clear(root: Path, name: str | None = None) -> int:
    """Delete the digest folder `name`, or all. For who holds the lock.

    Returns:
        Folders deleted.

    Raises:
        OSError: if one cannot be.
    """
    chosen = [f for f in format_folders(root) if name is None or f.path.name == name]
    for folder in chosen:
        set_aside(folder.path)
    delete_set_aside(root)
    return len(chosen)


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the lock of `root`, so that no server starts meanwhile.

    Raises:
        ConfigError: if a server holds it, naming its process.
    """
    lock = FolderLock(root)
    try:
        yield
    finally:
        lock.release()
