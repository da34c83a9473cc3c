"""Guards stored responses: another tenant's, kept too long, too many, lost by a restart, or read by others."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ostinato.api.openai_responses.continuation import Continuation
from ostinato.api.openai_responses.store import ResponseStore, StoredResponse
from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.errors import ConfigError

ALICE, BOB = TenantId("alice"), TenantId("bob")


def response(name: str, words: int = 1) -> StoredResponse:
    items = [{"id": "msg_1", "text": f"{np.random.default_rng(n).random()}"} for n in range(words)]
    return StoredResponse({"id": name, "output": []}, items, None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / "responses.sqlite3"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(file: Path, clock: ManualClock) -> Iterator[ResponseStore]:
    store = ResponseStore(file, clock, max_age=100.0, max_bytes=10_000)
    yield store
    store.close()


def put(store: ResponseStore, tenant: TenantId, stored: StoredResponse) -> None:
    asyncio.run(store.put(tenant, stored))


def get(store: ResponseStore, tenant: TenantId, name: str) -> StoredResponse | None:
    return asyncio.run(store.get(tenant, name))


def test_a_response_is_its_tenants_alone(store: ResponseStore) -> None:
    put(store, ALICE, response("one"))
    assert get(store, ALICE, "one") == response("one")
    assert get(store, BOB, "one") is None
    assert asyncio.run(store.delete(BOB, "one")) is False
    assert asyncio.run(store.delete(ALICE, "one")) is True
    assert get(store, ALICE, "one") is None


def test_what_is_too_old_is_not_found_and_gone_at_the_next_write(
    store: ResponseStore, clock: ManualClock, file: Path
) -> None:
    put(store, ALICE, response("old", 40))
    clock.advance(100)
    assert get(store, ALICE, "old") is None
    put(store, ALICE, response("new"))
    assert store._thread.submit(
        lambda: store._database.execute("SELECT count(*) FROM responses").fetchone()
    ).result() == (1,)


def test_the_oldest_go_when_there_is_too_much(store: ResponseStore, clock: ManualClock) -> None:
    for n in range(12):
        put(store, ALICE, response(f"r{n:02d}", 100))
        clock.advance(1)
    kept = [n for n in range(12) if get(store, ALICE, f"r{n:02d}")]
    assert 1 < len(kept) < 12
    assert kept == list(range(12 - len(kept), 12))


def test_a_restart_loses_nothing_and_the_file_is_its_owners_alone(
    store: ResponseStore, file: Path, clock: ManualClock
) -> None:
    left = Continuation(np.array([5, 6], np.int32), (1, None), 1, b"digest", is_cut_off=False)
    put(store, ALICE, StoredResponse({"id": "one"}, [], left))
    again = ResponseStore(file, clock)
    found = get(again, ALICE, "one")
    again.close()
    assert found is not None
    assert found.continuation is not None
    assert found.continuation.token_ids.tolist() == [5, 6]
    assert found.continuation.boundaries == (1, None)
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in file.parent.glob("responses*"))


def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    store = ResponseStore(tmp_path / "file" / "responses.sqlite3", ManualClock())
    with pytest.raises(ConfigError, match="responses cannot be kept"):
        store.open()


def test_a_full_disk_costs_the_stored_response_and_not_the_answer(
    store: ResponseStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, ALICE, response("one"))
    store._thread.submit(lambda: store._database.execute("PRAGMA query_only = ON")).result()
    put(store, ALICE, response("two"))
    assert "response two is not stored" in caplog.text
    assert get(store, ALICE, "one") is not None
