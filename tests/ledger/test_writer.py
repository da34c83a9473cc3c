"""Guards the way to the database: nobody waits for it, nothing is lost that need not be, what is lost is
counted, and memory has a bound."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from ostinato.clock import ManualClock
from ostinato.errors import LedgerError
from ostinato.ledger.record import LedgerRecord
from ostinato.ledger.writer import PRUNE_SECONDS, PRUNED_AT_ONCE, LedgerStats, LedgerWriter
from tests.ledger.samples import record


class FakeStore:
    """Fails as often as it is told to, then keeps what it gets.

    Attributes:
        old: records that are there and too old.
        bad_prunes: how often deleting them fails.
        pruned: the moments before which records were to be deleted.
        gate: writes wait for it.
        writing: set when a write waits.
    """

    def __init__(self, *, bad_opens: int = 0, bad_writes: int = 0, refused: int = 0) -> None:
        self.bad_opens, self.bad_writes, self.refused = bad_opens, bad_writes, refused
        self.batches: list[list[LedgerRecord]] = []
        self.old = 0
        self.bad_prunes = 0
        self.pruned: list[float] = []
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        self.writing = threading.Event()

    def open(self) -> None:
        if self.bad_opens:
            self.bad_opens -= 1
            raise LedgerError("cannot be opened")

    def write(self, records: Sequence[LedgerRecord]) -> int:
        self.writing.set()
        self.gate.wait()
        if self.bad_writes:
            self.bad_writes -= 1
            raise LedgerError("is locked")
        self.batches.append(list(records))
        return len(records) - self.refused

    def prune_before(self, moment: float, at_most: int) -> int:
        self.pruned.append(moment)
        if self.bad_prunes:
            self.bad_prunes -= 1
            raise LedgerError("is locked")
        deleted = min(self.old, at_most)
        self.old -= deleted
        return deleted

    def close(self) -> None:
        self.closed = True

    @property
    def stored(self) -> list[LedgerRecord]:
        return [one for batch in self.batches for one in batch]


def writer_of(store: FakeStore, max_pending: int = 50_000) -> LedgerWriter:
    return LedgerWriter(
        lambda: store, max_pending=max_pending, gather_seconds=0.0, retry_seconds=0.0
    )


def test_a_clean_stop_writes_everything_in_order() -> None:
    store = FakeStore()
    writer = writer_of(store)
    writer.start()
    records = [record(number) for number in range(2500)]
    for one in records:
        writer.put(one)
    writer.close()
    assert store.stored == records
    assert store.closed
    assert max(len(batch) for batch in store.batches) <= 1000
    assert writer.stats() == LedgerStats(written=2500, lost=0, failures=0, pending=0)


def test_what_comes_before_the_start_is_written_too() -> None:
    store = FakeStore()
    writer = writer_of(store)
    writer.put(record(1))
    writer.start()
    writer.close()
    assert len(store.stored) == 1


def test_records_of_many_threads_arrive_once_each() -> None:
    store = FakeStore()
    writer = writer_of(store)
    writer.start()

    def put(first: int) -> None:
        for number in range(first, first + 200):
            writer.put(record(number))

    threads = [threading.Thread(target=put, args=(1000 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert len({one.record_id for one in store.stored}) == len(store.stored) == 1600


def test_a_database_that_fails_is_tried_again_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FakeStore(bad_opens=3, bad_writes=4)
    writer = writer_of(store)
    with caplog.at_level(logging.WARNING, "ostinato.ledger"):
        for number in range(10):
            writer.put(record(number))
        writer.start()
        store_has_all = threading.Event()
        while len(store.stored) < 10:
            store_has_all.wait(0.001)
        writer.close()
    assert writer.stats() == LedgerStats(written=10, lost=0, failures=7, pending=0)
    assert [entry.message for entry in caplog.records] == [
        "cannot be opened; records are kept in memory and tried again",
        "the ledger is written again",
    ]


def test_a_store_that_cannot_be_made_for_any_reason_is_tried_again_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FakeStore()
    errors: list[Exception] = [TypeError("a bug"), ImportError("no driver"), OSError("no folder")]

    def make() -> FakeStore:
        if errors:
            raise errors.pop()
        return store

    writer = LedgerWriter(make, gather_seconds=0.0, retry_seconds=0.0)
    with caplog.at_level(logging.WARNING, "ostinato.ledger"):
        writer.put(record(1))
        writer.start()
        assert store.writing.wait(30)
        writer.close()
    assert writer.stats() == LedgerStats(written=1, lost=0, failures=3, pending=0)
    assert [entry.message for entry in caplog.records] == [
        "no folder; records are kept in memory and tried again",
        "the ledger is written again",
    ]


def test_put_returns_while_the_database_hangs_and_beyond_the_bound_records_are_counted_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FakeStore()
    store.gate.clear()
    writer = writer_of(store, max_pending=5)
    writer.start()
    writer.put(record(0))
    assert store.writing.wait(30)
    for number in range(1, 20):
        writer.put(record(number))
    assert writer.stats() == LedgerStats(written=0, lost=15, failures=0, pending=5)
    store.gate.set()
    writer.close()
    assert [one.request_id for one in store.stored] == [f"req_{number}" for number in range(5)]
    assert writer.stats() == LedgerStats(written=5, lost=15, failures=0, pending=0)
    assert len(caplog.records) == 1


def test_a_stop_does_not_wait_for_ever_for_a_database_that_hangs() -> None:
    store = FakeStore()
    store.gate.clear()
    writer = writer_of(store)
    writer.start()
    writer.put(record(1))
    assert store.writing.wait(30)
    writer.close(timeout=0.01)
    assert writer.stats().lost == 1
    store.gate.set()


def test_a_stop_gives_up_after_one_more_attempt_on_a_database_that_refuses() -> None:
    store = FakeStore(bad_writes=10**9)
    writer = writer_of(store)
    writer.start()
    writer.put(record(1))
    writer.close()
    assert writer.stats().lost == 1
    assert store.closed


def test_a_stop_ends_the_attempts_to_open() -> None:
    store = FakeStore(bad_opens=10**9)
    writer = writer_of(store)
    writer.start()
    writer.put(record(1))
    writer.close()
    assert writer.stats().lost == 1
    assert store.stored == []


def test_refused_records_are_lost_and_not_tried_again() -> None:
    store = FakeStore(refused=1)
    writer = writer_of(store)
    writer.put(record(1))
    writer.put(record(2))
    writer.start()
    writer.close()
    assert writer.stats() == LedgerStats(written=1, lost=1, failures=0, pending=0)


def test_a_bug_costs_one_batch_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(FakeStore):
        def write(self, records: Sequence[LedgerRecord]) -> int:
            if not self.batches:
                self.batches.append([])
                raise ZeroDivisionError
            return super().write(records)

    store = Buggy()
    writer = writer_of(store)
    writer.start()
    writer.put(record(1))
    while writer.stats().pending:
        threading.Event().wait(0.001)
    writer.put(record(2))
    writer.close()
    assert writer.stats() == LedgerStats(written=1, lost=1, failures=0, pending=0)
    assert "ZeroDivisionError" in caplog.text


def test_closing_what_was_never_started_does_nothing() -> None:
    writer_of(FakeStore()).close()


def keeping(store: FakeStore, clock: ManualClock) -> LedgerWriter:
    return LedgerWriter(
        lambda: store, gather_seconds=0.0, retry_seconds=0.0, keep_seconds=1000.0, clock=clock
    )


def test_what_is_too_old_is_deleted_at_the_start_part_by_part_and_then_now_and_then() -> None:
    store, clock = FakeStore(), ManualClock(5000.0)
    store.old = 2 * PRUNED_AT_ONCE + 7
    writer = keeping(store, clock)
    writer.start()
    while store.old:
        pass
    for number in range(5):
        writer.put(record(number))
        while len(store.stored) <= number:
            pass
    assert store.pruned == [4000.0] * 3
    clock.advance(PRUNE_SECONDS)
    store.old = 3
    writer.put(record(9))
    while store.old:
        pass
    writer.close()
    assert store.pruned == [4000.0] * 3 + [4000.0 + PRUNE_SECONDS]
    assert writer.stats().deleted == 2 * PRUNED_AT_ONCE + 10
    assert len(store.stored) == 6


def test_records_are_written_while_there_is_much_to_delete() -> None:
    store, clock = FakeStore(), ManualClock(5000.0)
    store.old = 10**9
    writer = keeping(store, clock)
    writer.start()
    writer.put(record(1))
    while not store.stored:
        pass
    assert store.old
    writer.close()
    assert writer.stats().written == 1


def test_what_cannot_be_deleted_holds_nobody_up_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, clock = FakeStore(), ManualClock(5000.0)
    store.old, store.bad_prunes = 1, 2
    writer = keeping(store, clock)
    with caplog.at_level(logging.WARNING, "ostinato.ledger"):
        writer.start()
        for number in range(3):
            writer.put(record(number))
            while len(store.stored) <= number:
                pass
            clock.advance(PRUNE_SECONDS)
        writer.put(record(3))
        while store.old:
            pass
        writer.close()
    assert len(store.stored) == 4
    assert [entry.message for entry in caplog.records] == [
        "is locked; old records stay until that works"
    ]


def test_by_default_nothing_is_ever_deleted() -> None:
    store = FakeStore()
    store.old = 1
    writer = writer_of(store)
    writer.start()
    writer.put(record(1))
    writer.close()
    assert store.pruned == []
