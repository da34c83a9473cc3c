"""Guards the way to the database: nobody waits for it, nothing is lost that need not be, what is lost is
counted, and memory has a bound."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest

from ostinato.errors import LedgerError
from ostinato.ledger.record import LedgerRecord
from ostinato.ledger.writer import LedgerStats, LedgerWriter
from tests.ledger.samples import record


class FakeStore:
    """Fails as often as it is told to, then keeps what it gets.

    Attributes:
        gate: writes wait for it.
        writing: set when a write waits.
    """

    def __init__(self, *, bad_opens: int = 0, bad_writes: int = 0, refused: int = 0) -> None:
        self.bad_opens, self.bad_writes, self.refused = bad_opens, bad_writes, refused
        self.batches: list[list[LedgerRecord]] = []
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
