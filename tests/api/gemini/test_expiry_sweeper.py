"""Guards the thread that erases expired cache objects: it begins at once, survives a file that fails, and fills
no log."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

import pytest

from ostinato.api.gemini.cache_store import CacheStore
from ostinato.api.gemini.cached_contents import CachedContents, ExpirySweeper, NewContent
from ostinato.api.gemini.wire import PrefixFields
from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from tests.api.gemini.conftest import Records


class Failing(CachedContents):
    """Whose file fails in the first three sweeps and in the fifth.

    Attributes:
        swept: released by every sweep.
    """

    def __init__(self) -> None:
        self.swept = threading.Semaphore(0)
        self._count = 0

    def sweep(self) -> int:
        self._count += 1
        self.swept.release()
        if self._count in (1, 2, 3, 5):
            raise sqlite3.OperationalError(f"disk is full, {self._count}")
        return 0


def test_the_sweeper_erases_at_its_start_what_expired_while_no_server_ran(tmp_path: Path) -> None:
    clock, records = ManualClock(), Records()
    store = CacheStore(tmp_path / "c.sqlite3")
    CachedContents(store, clock, records, "local").add(
        NewContent(TenantId("a"), "tiny", None, PrefixFields()), 3, clock.time() + 10
    )
    store.close()
    clock.advance(1000)
    store = CacheStore(tmp_path / "c.sqlite3")
    sweeper = ExpirySweeper(CachedContents(store, clock, records, "local"))
    sweeper.start()
    sweeper.stop()
    store.close()
    [record] = records.all
    assert (record.storage_token_seconds, record.tenant) == (30, "a")


def test_a_file_that_fails_is_tried_again_and_told_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    contents = Failing()
    sweeper = ExpirySweeper(contents, seconds=0.001)
    with caplog.at_level(logging.WARNING, "ostinato.api"):
        sweeper.start()
        for _ in range(8):
            assert contents.swept.acquire(timeout=10)
        sweeper.stop()
    fails = "expired cache objects cannot be erased, and are tried again: disk is full, "
    works = "expired cache objects are erased again"
    assert [entry.message for entry in caplog.records] == [fails + "1", works, fails + "5", works]
