"""Guards against deleting what is to be kept, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.ledger.location import file_of, ledger_url
from ostinato.ledger.pruning import RecordSpan, span_of
from ostinato.ledger.query import UsageFilter, usage_by
from ostinato.ledger.store import LedgerStore
from tests.ledger.samples import NOON, record

RECORDS = [record(number, tenant="alpha" if number % 3 else "beta") for number in range(10)]


def left(store: LedgerStore) -> int:
    with store.reading() as connection:
        [group] = usage_by(connection, [])
    return group.requests


def test_only_what_is_older_goes_and_nothing_twice(store: LedgerStore) -> None:
    store.write(RECORDS)
    which = UsageFilter(until=NOON + 5)
    with store.reading() as connection:
        assert span_of(connection, which) == RecordSpan(5, 2, NOON, NOON + 4)
    assert store.prune(which) == 5
    assert store.prune(which) == 0
    with store.reading() as connection:
        assert span_of(connection, which) == RecordSpan(0, 0, None, None)
        assert span_of(connection, UsageFilter()) == RecordSpan(5, 2, NOON + 5, NOON + 9)


def test_a_part_at_a_time_is_all_in_the_end(store: LedgerStore) -> None:
    store.write(RECORDS)
    assert [store.prune_before(NOON + 5, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert left(store) == 5


def test_one_tenant_s_records_go_alone(store: LedgerStore) -> None:
    store.write(RECORDS)
    assert store.prune(UsageFilter(tenant="beta")) == 4
    assert left(store) == 6


def test_a_file_becomes_smaller_and_stays_a_ledger(store: LedgerStore, url: str) -> None:
    store.write([record(number) for number in range(2000)])
    assert store.give_room_back()
    file = file_of(url)
    before = file.stat().st_size if file else 0
    store.prune(UsageFilter())
    assert store.give_room_back()
    assert file is None or file.stat().st_size < before / 4
    store.write(RECORDS)
    assert left(store) == 10


def test_a_file_that_somebody_writes_to_keeps_its_size(tmp_path: Path) -> None:
    url = ledger_url(None, tmp_path)
    assert url is not None
    store, other = LedgerStore(url), LedgerStore(url)
    store.open()
    with other._writing():
        assert not store.give_room_back()
    other.close()
    store.close()


@pytest.mark.parametrize("at_most", [1, 100])
def test_a_server_that_writes_meanwhile_loses_nothing(
    store: LedgerStore, url: str, at_most: int
) -> None:
    store.write(RECORDS)
    server = LedgerStore(url)
    server.open()
    deleted = store.prune_before(NOON + 5, at_most)
    server.write([record(100)])
    deleted += store.prune_before(NOON + 5, 100)
    assert deleted == 5
    assert left(server) == 6
    server.close()
