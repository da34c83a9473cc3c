"""Guards what is stored: each record once, exactly as given, by several servers at once, across versions; and
that a database that is locked, full or gone is told apart from a record that cannot be stored."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, func, select, text

from ostinato.cache.types import Tier
from ostinato.errors import LedgerError
from ostinato.ledger.location import ledger_url
from ostinato.ledger.record import TokenRecord
from ostinato.ledger.schema import REQUESTS, VERSION
from ostinato.ledger.store import LedgerStore
from tests.ledger.samples import NOON, record


def count(store: LedgerStore) -> int:
    with store.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(REQUESTS)).scalar_one())


def sqlite_url(folder: Path) -> str:
    url = ledger_url(None, folder)
    assert url is not None
    return url


def test_a_record_is_stored_as_it_is(store: LedgerStore) -> None:
    tokens = TokenRecord(
        input=1000,
        cached_by_tier={Tier.DEVICE: 1, Tier.RAM: 2, Tier.DISK: 4, Tier.REMOTE: 8},
        read=15,
        write_short=20,
        write_long=30,
        output=7,
        reasoning=3,
    )
    full = record(
        5,
        response_id="resp",
        template_id="t",
        template_version="2",
        prompt_cache_key="k",
        retention="24h",
        answers=3,
        tokens=tokens,
        storage_token_seconds=10**15,
        error="x",
    )
    assert store.write([full]) == 1
    with store.reading() as connection:
        row = dict(connection.execute(select(REQUESTS)).mappings().one())
    assert row == {
        "record_id": full.record_id,
        "time_us": round((NOON + 5) * 1_000_000),
        "request_id": "req_5",
        "response_id": "resp",
        "tenant": "default",
        "model": "tiny",
        "dialect": "openai_chat",
        "template_id": "t",
        "template_version": "2",
        "prompt_cache_key": "k",
        "retention": "24h",
        "house_rules": "local",
        "answer_cache": "none",
        "answers": 3,
        "input_tokens": 1000,
        "cached_tokens": 15,
        "cached_device_tokens": 1,
        "cached_ram_tokens": 2,
        "cached_disk_tokens": 4,
        "cached_remote_tokens": 8,
        "cache_read_tokens": 15,
        "cache_write_short_tokens": 20,
        "cache_write_long_tokens": 30,
        "output_tokens": 7,
        "reasoning_tokens": 3,
        "total_tokens": 1007,
        "storage_token_seconds": 10**15,
        "ttft_s": 0.25,
        "e2e_s": 1.5,
        "status": 200,
        "finish_reason": "stop",
        "error": "x",
    }


def test_unknown_tokens_are_null_and_not_zero(store: LedgerStore) -> None:
    store.write([record(1, tokens=None), record(2)])
    with store.reading() as connection:
        rows = connection.execute(select(REQUESTS).order_by(REQUESTS.c.time_us)).mappings().all()
    counters = [name for name in rows[0] if name.endswith("_tokens")]
    assert len(counters) == 12
    assert all(rows[0][name] is None for name in counters)
    assert rows[1]["input_tokens"] == 102


def test_what_is_written_again_after_a_doubtful_attempt_is_stored_once(store: LedgerStore) -> None:
    store.write([record(1), record(2)])
    store.write([record(2), record(3)])
    assert count(store) == 3


def test_one_record_that_cannot_be_stored_does_not_take_the_others_with_it(
    store: LedgerStore,
) -> None:
    too_large = replace(record(2), storage_token_seconds=2**70)
    assert store.write([record(1), too_large, record(3)]) == 2
    assert count(store) == 2


def test_opening_twice_changes_nothing(url: str) -> None:
    for _ in range(2):
        store = LedgerStore(url)
        store.open()
        store.write([record(1)])
        assert count(store) == 1
        store.close()


def test_two_servers_open_and_write_one_ledger_at_the_same_time(url: str) -> None:
    start = threading.Barrier(2)
    failures: list[Exception] = []

    def serve(first: int) -> None:
        store = LedgerStore(url)
        try:
            start.wait()
            store.open()
            for number in range(first, first + 50):
                store.write([record(number)])
        except Exception as error:
            failures.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=serve, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store = LedgerStore(url)
    assert count(store) == 100
    store.close()


def test_an_older_ledger_is_brought_up_to_date_and_keeps_its_records(url: str) -> None:
    old = LedgerStore(url)
    old.open()
    old.write([record(1)])
    old.close()

    def add_region(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE ostinato_requests ADD COLUMN region VARCHAR"))

    def name_regions(connection: Connection) -> None:
        connection.execute(text("UPDATE ostinato_requests SET region = 'here'"))

    for _ in range(2):  # the second time there is nothing left to do
        store = LedgerStore(url)
        store.open([add_region, name_regions])
        store.close()
    with store.reading() as connection:
        assert connection.execute(select(VERSION.c.version)).scalar_one() == 3
        assert connection.execute(text("SELECT region FROM ostinato_requests")).scalars().all() == [
            "here"
        ]
    store.write([record(2)])  # a server that knows nothing of the column goes on
    assert count(store) == 2
    store.close()


def test_a_step_that_fails_leaves_the_old_version_whole(url: str) -> None:
    old = LedgerStore(url)
    old.open()
    old.close()

    def half(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE ostinato_requests ADD COLUMN half VARCHAR"))
        connection.execute(text("SELECT nothing FROM nowhere"))

    store = LedgerStore(url)
    with pytest.raises(LedgerError, match="cannot be opened"):
        store.open([half])
    store.open()
    store.write([record(1)])
    with store.reading() as connection:
        assert connection.execute(select(VERSION.c.version)).scalar_one() == 1
        [row] = connection.execute(text("SELECT * FROM ostinato_requests")).mappings()
    assert "half" not in row
    store.close()


def test_a_newer_ledger_is_refused_and_says_what_to_do(store: LedgerStore, url: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(VERSION.update().values(version=9))
    store.close()
    late = LedgerStore(url)
    with pytest.raises(LedgerError, match=r"version 9.*upgrade Ostinato"):
        late.open()
    late.close()


def test_a_locked_file_is_an_error_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.ledger.store.LOCK_SECONDS", 0.01)
    store = LedgerStore(sqlite_url(tmp_path))
    store.open()
    holder = sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked"):
        store.write([record(1)])
    assert count(store) == 0  # reading goes on
    holder.execute("ROLLBACK")
    holder.close()
    assert store.write([record(1)]) == 1
    store.close()


def test_a_full_disk_is_an_error_that_passes(tmp_path: Path) -> None:
    store = LedgerStore(sqlite_url(tmp_path))

    def bound(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 12")

    event.listen(store.engine, "connect", bound)
    store.open()
    many = [record(number) for number in range(500)]
    with pytest.raises(LedgerError, match="full"):
        store.write(many)
    assert count(store) == 0
    event.remove(store.engine, "connect", bound)
    store.close()
    assert store.write(many) == 500
    store.close()


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite3").write_bytes(b"not a database" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        LedgerStore(sqlite_url(tmp_path)).open()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened"):
        LedgerStore(sqlite_url(tmp_path / "file")).open()


def test_only_its_owner_reads_the_file_and_those_beside_it(tmp_path: Path) -> None:
    store = LedgerStore(sqlite_url(tmp_path / "new"))
    store.open()
    store.write([record(1)])
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    assert set(modes) == {"ledger.sqlite3", "ledger.sqlite3-wal", "ledger.sqlite3-shm"}
    assert set(modes.values()) == {0o600}
    store.close()


def test_a_server_that_is_not_there_is_an_error_without_the_password() -> None:
    pytest.importorskip("psycopg", reason="psycopg is missing: pip install 'ostinato[postgres]'")
    url = ledger_url("postgresql://u:hunter2@127.0.0.1:1/db", Path())
    assert url is not None
    with pytest.raises(LedgerError, match="cannot be opened") as error:
        LedgerStore(url).open()
    assert "hunter2" not in str(error.value)
