"""EntryWriter: the journal of an `EntryBook`, written to an `EntryFile` from a thread of its own.

    put, forget ──► pending, by key (bounded) ──► thread "ostinato-entries": gather ─► one transaction
                         ▲                                                      │ error
                         └────────── what has not changed since, tried again ◄──┘

Of a key only the last change counts, so a prefix that is read a hundred times in a moment is written once. A
killed process loses what it gathered: a quarter of a second, and the time that one transaction takes.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from dataclasses import dataclass

from ostinato.clock import Clock
from ostinato.product.entries import MAX_ENTRIES, Entry, EntryKey
from ostinato.product.entry_file import EntryFile

logger = logging.getLogger("ostinato.product")

THREAD_NAME = "ostinato-entries"
GATHER_SECONDS = 0.25
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5.0
"""Most that a stop spends on writing what is left."""


@dataclass(frozen=True, slots=True)
class EntryWriterStats:
    """Counted since the start.

    Attributes:
        kept: entries that an earlier process had left.
        written: changes that are in the file.
        lost: changes that never will be: beyond the bound, or unwritten when the server stopped.
        failures: attempts to write that failed; their changes were tried again.
        damaged: files and rows that had to be dropped.
        pending: changes that wait.
    """

    kept: int
    written: int
    lost: int
    failures: int
    damaged: int
    pending: int


class EntryWriter:
    """See the module's docstring. An `EntryJournal`; closes the file in the end.

    Args:
        file: open; the writer's from here on.
        clock: of deadlines.
        max_pending: changes that wait, at most.
        gather_seconds: how long the first change of a batch waits for others.
        retry_seconds: pause after a failure.

    Attributes:
        kept: what the file held that has not expired.

    Raises:
        sqlite3.Error: the file cannot be read.
    """

    def __init__(
        self,
        file: EntryFile,
        clock: Clock,
        *,
        max_pending: int = MAX_ENTRIES,
        gather_seconds: float = GATHER_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._file = file
        self._clock = clock
        self._max_pending = max_pending
        self._gather_seconds = gather_seconds
        self._retry_seconds = retry_seconds
        self._pending: dict[EntryKey, Entry | None] = {}
        self._changed = threading.Condition()  # guards what is pending and counted
        self._stopping = threading.Event()
        self._written = self._lost = self._failures = 0
        self._is_failing = False
        self.kept = file.load(clock.time())
        self._num_kept = len(self.kept)
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """See `EntryJournal`."""
        self._note(entry.key, entry)

    def forget(self, key: EntryKey) -> None:
        """See `EntryJournal`."""
        self._note(key, None)

    def _note(self, key: EntryKey, entry: Entry | None) -> None:
        with self._changed:
            self._pending[key] = entry
            if len(self._pending) > self._max_pending:
                del self._pending[next(iter(self._pending))]
                self._lost += 1
            self._changed.notify()

    def stats(self) -> EntryWriterStats:
        """A snapshot. From any thread."""
        with self._changed:
            return EntryWriterStats(
                kept=self._num_kept,
                written=self._written,
                lost=self._lost,
                failures=self._failures,
                damaged=self._file.damaged,
                pending=len(self._pending),
            )

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what is left, then stop; give up after `timeout` seconds. For when nobody changes anything any
        more. Idempotent."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        self._thread.join(timeout)
        with self._changed:
            left = len(self._pending)
            self._lost += left
            self._pending.clear()
        if left:
            logger.warning("%d changes of prompt-cache entries could not be written", left)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._stopping.wait(self._gather_seconds)
                is_last = self._stopping.is_set()
                if not self._write() and (is_last or self._stopping.wait(self._retry_seconds)):
                    self._write()  # a stop gives it one more chance
                    return
        finally:
            self._file.close()

    def _wait(self) -> bool:
        """Until something has changed; False when nothing has and nothing will."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._stopping.is_set())
            return bool(self._pending)

    def _write(self) -> bool:
        with self._changed:
            batch, self._pending = self._pending, {}
        try:
            self._file.write(batch, self._clock.time())
        except (sqlite3.Error, OSError) as error:
            self._note_failure(batch, error)
            return False
        with self._changed:
            self._written += len(batch)
        if self._is_failing:
            self._is_failing = False
            logger.warning("entries of the prompt cache are written again")
        return True

    def _note_failure(self, batch: dict[EntryKey, Entry | None], error: Exception) -> None:
        with self._changed:
            self._failures += 1
            self._pending = batch | self._pending  # a later change of a key counts
            while len(self._pending) > self._max_pending:
                del self._pending[next(iter(self._pending))]
                self._lost += 1
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "entries of the prompt cache cannot be written (%s); they are kept in memory and tried again",
                error,
            )
