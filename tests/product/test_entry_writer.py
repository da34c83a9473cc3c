"""Guards the way to the file: nobody waits for it, a clean stop loses nothing, a failing disk loses nothing
that fits, and a book that is taken up again is the book that was left."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.product.entries import Entry, EntryBook, EntryKey
from ostinato.product.entry_file import EntryFile
from ostinato.product.entry_writer import EntryWriter
from ostinato.product.segments import TTLClass

KEYS = [EntryKey(bytes([number]) * 32) for number in range(6)]


def entry(key: EntryKey, until: float, ends_at: float | None = None) -> Entry:
    return Entry(key, 10, TTLClass.SHORT, 300.0, until, ends_at, TenantId("us"))


class FailingFile(EntryFile):
    """Fails as often as it is told to; `gate` holds writes up.

    Attributes:
        writing: set when a write waits.
    """

    def __init__(self, path: Path, bad_writes: int = 0) -> None:
        super().__init__(path)
        self.bad_writes = bad_writes
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.writing = threading.Event()

    def write(self, changes: Mapping[EntryKey, Entry | None], now: float) -> None:
        self.writing.set()
        self.gate.wait()
        if self.bad_writes:
            self.bad_writes -= 1
            raise sqlite3.OperationalError("disk I/O error")
        self.batches.append(len(changes))
        super().write(changes, now)


def writer_of(file: EntryFile, clock: ManualClock, max_pending: int = 100) -> EntryWriter:
    return EntryWriter(file, clock, max_pending=max_pending, gather_seconds=0.0, retry_seconds=0.0)


def left_in(path: Path, clock: ManualClock) -> list[Entry]:
    file = EntryFile(path)
    try:
        return sorted(file.load(clock.time()), key=lambda one: one.key)
    finally:
        file.close()


def test_a_clean_stop_writes_everything(tmp_path: Path) -> None:
    clock = ManualClock(0.0)
    writer = EntryWriter(EntryFile(tmp_path / "e"), clock, gather_seconds=3600.0)
    book = EntryBook(clock, journal=writer)
    for key in KEYS:
        book.put(entry(key, 300.0))
    book.forget(KEYS[0])
    writer.close()
    writer.close()
    assert writer.stats().lost == writer.stats().pending == 0
    assert left_in(tmp_path / "e", clock) == [entry(key, 300.0) for key in KEYS[1:]]


def test_what_changes_often_is_written_once(tmp_path: Path) -> None:
    clock = ManualClock(0.0)
    file = FailingFile(tmp_path / "e")
    file.gate.clear()
    writer = writer_of(file, clock)
    writer.put(entry(KEYS[0], 1.0))
    file.writing.wait()
    for until in range(2, 50):
        writer.put(entry(KEYS[1], float(until)))
    file.gate.set()
    writer.close()
    assert file.batches == [1, 1]
    assert left_in(tmp_path / "e", clock) == [entry(KEYS[0], 1.0), entry(KEYS[1], 49.0)]


def test_a_failing_disk_is_tried_again_and_a_later_change_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(0.0)
    file = FailingFile(tmp_path / "e", bad_writes=3)
    file.gate.clear()
    with caplog.at_level(logging.WARNING, "ostinato.product"):
        writer = writer_of(file, clock)
        writer.put(entry(KEYS[0], 1.0))
        file.writing.wait()
        writer.put(entry(KEYS[0], 2.0))
        writer.put(entry(KEYS[1], 2.0))
        writer.forget(KEYS[1])
        file.gate.set()
        while writer.stats().pending or file.bad_writes:
            pass
        writer.close()
    assert writer.stats().failures == 3
    assert writer.stats().lost == 0
    assert left_in(tmp_path / "e", clock) == [entry(KEYS[0], 2.0)]
    assert ["cannot be written" in message for message in caplog.messages] == [True, False]


def test_what_waits_is_bounded_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    clock = ManualClock(0.0)
    file = FailingFile(tmp_path / "e", bad_writes=1_000_000)
    writer = writer_of(file, clock, max_pending=2)
    for key in KEYS:
        writer.put(entry(key, 300.0))
    writer.close()
    stats = writer.stats()
    assert stats.written == stats.pending == 0
    assert stats.lost == len(KEYS)


class RestartMachine(RuleBasedStateMachine):
    """A book whose process stops and starts again is the same book as one that never stops."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(0.0)
        self.path = self.folder / f"{len(list(self.folder.iterdir()))}.sqlite3"
        self.lasting = EntryBook(self.clock, max_entries=4)
        self._start()

    def _start(self) -> None:
        self.writer = writer_of(EntryFile(self.path), self.clock)
        self.book = EntryBook(self.clock, max_entries=4, journal=self.writer, kept=self.writer.kept)

    @rule(
        key=st.sampled_from(KEYS),
        seconds=st.integers(1, 400),
        bound=st.none() | st.integers(1, 400),
    )
    def put(self, key: EntryKey, seconds: int, bound: int | None) -> None:
        now = self.clock.time()
        # Deadlines of their own, so that no tie decides who goes.
        until = now + seconds + key[0] / 16
        made = entry(key, until, None if bound is None else until + bound)
        self.book.put(made)
        self.lasting.put(made)

    @rule(key=st.sampled_from(KEYS))
    def refresh(self, key: EntryKey) -> None:
        for book in (self.book, self.lasting):
            book.refresh(key, self.clock.time() + key[0] / 16)

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key: EntryKey) -> None:
        for book in (self.book, self.lasting):
            book.forget(key)

    @rule(seconds=st.integers(1, 200))
    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.writer.close()
        self._start()

    @invariant()
    def they_agree(self) -> None:
        assert [self.book.find(key) for key in KEYS] == [self.lasting.find(key) for key in KEYS]

    def teardown(self) -> None:
        self.writer.close()


def test_a_book_that_is_taken_up_again_is_the_one_that_was_left(tmp_path: Path) -> None:
    machine = type("InFolder", (RestartMachine,), {"folder": tmp_path})
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=25))
