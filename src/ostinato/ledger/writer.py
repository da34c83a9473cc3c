"""LedgerWriter: takes records from whoever has one and writes them from a thread of its own.

    put ──► queue (bounded) ──► thread "ostinato-ledger": gather for a moment ─► store.write ─► written
                                                              ▲                      │ LedgerError
                                                              └── wait, try again ◄──┘

Nobody waits for the database and nobody gets its errors: what cannot be written is kept and tried again, up to
a bound; what is beyond it is counted as lost. The log says once that writing fails, and once that it works
again. Between batches the thread deletes what is older than records are to be kept.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ostinato.clock import Clock, SystemClock
from ostinato.errors import LedgerError
from ostinato.ledger.record import LedgerRecord

logger = logging.getLogger("ostinato.ledger")

THREAD_NAME = "ostinato-ledger"
GATHER_SECONDS = 0.25
"""How long the first record of a batch waits for others. All that a killed process can lose, but for the time
that one batch takes to be written."""
BATCH_RECORDS = 1000
MAX_PENDING = 50_000
"""Records that wait, at most; some 50 MB."""
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5.0
"""Most that a stop spends on writing what is left."""
PRUNE_SECONDS = 600.0
"""Between two looks for records that are too old."""
PRUNED_AT_ONCE = 5000
"""Records; then it is the turn of those that wait to be written."""


class RecordStore(Protocol):
    """What the writer needs of `store.LedgerStore`; see there."""

    def open(self) -> None: ...

    def write(self, records: Sequence[LedgerRecord]) -> int: ...

    def prune_before(self, moment: float, at_most: int) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """Counted since the start.

    Attributes:
        written: records in the database.
        lost: records that never will be: beyond the bound, refused, or unwritten when the server stopped.
        failures: attempts to open or write that failed; their records were tried again.
        pending: records that wait.
        deleted: records that were older than they are to be kept.
    """

    written: int
    lost: int
    failures: int
    pending: int
    deleted: int = 0


class LedgerWriter:
    """See the module's docstring.

    Args:
        make_store: called in the thread, since importing a database takes a while.
        max_pending: see `MAX_PENDING`.
        gather_seconds: see `GATHER_SECONDS`.
        retry_seconds: pause after a failure.
        keep_seconds: what is older is deleted; None: nothing ever is.
        clock: of ages.
    """

    def __init__(
        self,
        make_store: Callable[[], RecordStore],
        *,
        max_pending: int = MAX_PENDING,
        gather_seconds: float = GATHER_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        keep_seconds: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._make_store = make_store
        self._max_pending = max_pending
        self._gather_seconds = gather_seconds
        self._retry_seconds = retry_seconds
        self._keep_seconds = keep_seconds
        self._clock = clock or SystemClock()
        self._prune_at = self._clock.monotonic()
        self._queue: queue.SimpleQueue[LedgerRecord | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pending = self._written = self._lost = self._failures = self._deleted = 0
        self._is_failing = self._cannot_prune = False

    def start(self) -> None:
        """Start the thread; it opens the store at once."""
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def put(self, record: LedgerRecord) -> None:
        """Have a record written. From any thread; returns at once, whatever the database does."""
        with self._lock:
            is_full = self._pending >= self._max_pending
            is_first = is_full and self._lost == 0
            if is_full:
                self._lost += 1
            else:
                self._pending += 1
        if not is_full:
            self._queue.put(record)
        elif is_first:
            logger.error("%d records wait for the ledger; more are lost", self._max_pending)

    def stats(self) -> LedgerStats:
        """A snapshot. From any thread."""
        with self._lock:
            return LedgerStats(
                self._written, self._lost, self._failures, self._pending, self._deleted
            )

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Write what is left, then stop; give up after `timeout` seconds. For when nobody puts any more."""
        if self._thread is None:
            return
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout)
        with self._lock:
            left, self._pending = self._pending, 0
            self._lost += left
        self._thread = None
        if left:
            logger.error("%d records could not be written to the ledger and are lost", left)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        store = self._open()
        if store is None:
            return
        try:
            while (batch := self._next_batch()) is not None:
                if batch and not self._write(store, batch):
                    return
                self._prune(store)
        finally:
            store.close()

    def _open(self) -> RecordStore | None:
        """Try until it works; None if told to stop before it did."""
        while True:
            try:
                store = self._make_store()
                store.open()
            except (
                Exception
            ) as error:  # whatever it is: without this thread all records would be lost
                self._note_failure(error)
            else:
                return store
            if self._stopping.wait(self._retry_seconds):
                return None

    def _next_batch(self) -> list[LedgerRecord] | None:
        """Wait for a record, then for more of them.

        Returns:
            The records; none of them when something is to be deleted before one comes; None when all is written
            and nothing comes any more.
        """
        try:
            first = self._queue.get(timeout=self._seconds_to_prune())
        except queue.Empty:
            return []
        if first is None:
            return None
        if self._queue.qsize() < BATCH_RECORDS:
            self._stopping.wait(self._gather_seconds)
        batch = [first]
        while len(batch) < BATCH_RECORDS:
            try:
                record = self._queue.get_nowait()
            except queue.Empty:
                break
            if record is None:
                self._queue.put(None)  # for the next call
                break
            batch.append(record)
        return batch

    def _write(self, store: RecordStore, batch: Sequence[LedgerRecord]) -> bool:
        """Try until it works; False if told to stop and the last attempt failed."""
        while True:
            last_attempt = self._stopping.is_set()
            try:
                stored = store.write(batch)
            except LedgerError as error:
                self._note_failure(error)
            except Exception:  # a bug of ours must not end the thread
                logger.exception("%d records cannot be written and are lost", len(batch))
                self._count(0, len(batch))
                return True
            else:
                self._note_success(stored, len(batch) - stored)
                return True
            if last_attempt:
                return False
            self._stopping.wait(self._retry_seconds)

    def _seconds_to_prune(self) -> float | None:
        """None: never."""
        if self._keep_seconds is None:
            return None
        return max(0.0, self._prune_at - self._clock.monotonic())

    def _prune(self, store: RecordStore) -> None:
        """Delete some of what is too old, if it is time to look. What cannot be deleted now is next time."""
        if self._keep_seconds is None or self._seconds_to_prune():
            return
        deleted = 0
        try:
            deleted = store.prune_before(self._clock.time() - self._keep_seconds, PRUNED_AT_ONCE)
        except LedgerError as error:
            if not self._cannot_prune:
                logger.warning("%s; old records stay until that works", error)
            self._cannot_prune = True
        else:
            self._cannot_prune = False
        with self._lock:
            self._deleted += deleted
        if deleted < PRUNED_AT_ONCE:
            self._prune_at = self._clock.monotonic() + PRUNE_SECONDS

    def _note_failure(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
        if not self._is_failing:
            self._is_failing = True
            logger.error("%s; records are kept in memory and tried again", error)

    def _count(self, stored: int, refused: int) -> None:
        with self._lock:
            self._written += stored
            self._lost += refused
            self._pending -= stored + refused

    def _note_success(self, stored: int, refused: int) -> None:
        self._count(stored, refused)
        if self._is_failing:
            self._is_failing = False
            logger.warning("the ledger is written again")
