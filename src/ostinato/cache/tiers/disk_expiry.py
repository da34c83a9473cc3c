"""FolderExpiry: hard deadlines of K/V that nobody reads now, in the folders of other models and formats.

While one model is served, the disk tier reads that model's folder alone. What was promised to be erased from
another's is erased all the same: at start, and later at the second at which it is due.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from ostinato.cache.retention import ExpiryQueue
from ostinato.cache.tiers.disk_files import BlockFiles, PositionedIO, open_existing
from ostinato.cache.tiers.disk_folder import FormatFolder
from ostinato.cache.tiers.disk_index import DiskIndex, Drop, drop_slots, hard_deadlines, read_index
from ostinato.cache.tiers.failures import TierFailures


class FolderExpiry:
    """For who holds the lock of the folder in which they all lie: then nobody writes to them, and what was read
    of them once stays true.

    Args:
        io: how bytes are moved.
        failures: counts folders that cannot be read or written.
    """

    def __init__(self, io: PositionedIO, failures: TierFailures) -> None:
        self._io = io
        self._failures = failures
        self._folders: dict[str, FormatFolder] = {}
        self._deadlines: ExpiryQueue[tuple[str, int]] = ExpiryQueue()  # folder and slot

    def watch(self, folder: FormatFolder, now: float) -> None:
        """Erase what is due in `folder`, which is readable, and remember when the rest will be."""
        try:
            with self._opened(folder) as files:
                index = read_index(files, now)
                if Drop.EXPIRED in index.dropped.values():
                    reasons = (
                        Drop.EXPIRED,
                        Drop.ORPHANED,
                    )  # orphans may stand behind what has expired
                    gone = {slot for slot, why in index.dropped.items() if why in reasons}
                    self._erase(folder, files, gone)
        except FileNotFoundError:
            return  # a process died before it made them
        except OSError as error:
            self._failures.count_error(error)
            return
        self._folders[folder.path.name] = folder
        for slot, until in hard_deadlines(index).items():
            self._deadlines.schedule((folder.path.name, slot), until)

    def forget(self, folder: FormatFolder) -> None:
        """`folder` is deleted as a whole."""
        self._folders.pop(folder.path.name, None)

    def expire(self, now: float) -> None:
        """Erase what is due at `now`. Costs nothing while nothing is."""
        until = self._deadlines.next_deadline()
        if until is None or until > now:
            return
        due: defaultdict[str, set[int]] = defaultdict(set)
        for name, slot in self._deadlines.due(now):
            due[name].add(slot)
        for name, slots in due.items():
            folder = self._folders.get(name)
            if folder is None:
                continue
            try:
                with self._opened(folder) as files:
                    self._erase(folder, files, slots)
            except OSError as error:
                self._failures.count_error(error)

    @contextmanager
    def _opened(self, folder: FormatFolder) -> Iterator[BlockFiles]:
        files = BlockFiles(folder.path, folder.block_bytes, self._io, open_existing)
        try:
            yield files
        finally:
            files.close()

    def _erase(self, folder: FormatFolder, files: BlockFiles, slots: set[int]) -> None:
        drop_slots(files, DiskIndex(), slots)
        for path in folder.path.iterdir():  # this is no use, by which a folder would seem young
            os.utime(path, (folder.last_used, folder.last_used))
