"""Guards entries across processes: every field comes back, lives never grow, whatever lies in the file is right
or is dropped and counted, and nobody shares it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.types import TenantId
from ostinato.product.entries import Entry, EntryKey
from ostinato.product.entry_file import EntryFile, EntryFileInUseError
from ostinato.product.segments import TTLClass

NOW = 1_796_040_000.0
"""2026-11-30 12:00 UTC."""


def entry(number: int, seconds: float = 300.0, **more: object) -> Entry:
    key = EntryKey(number.to_bytes(32, "big"))
    made = Entry(key, 10 + number, TTLClass.SHORT, 300.0, NOW + seconds, None, TenantId("us"))
    return replace(made, **more)  # type: ignore[arg-type]


def changes(*entries: Entry) -> dict[EntryKey, Entry | None]:
    return {one.key: one for one in entries}


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Callable[[], EntryFile]]:
    """Closes the file, if it is open, and opens it as the next process does."""
    opened: list[EntryFile] = []

    def again() -> EntryFile:
        while opened:
            opened.pop().close()
        opened.append(EntryFile(tmp_path / "data" / "entries"))
        return opened[-1]

    yield again
    while opened:
        opened.pop().close()


def by_key(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda one: one.key)


def test_every_field_comes_back(reopen: Callable[[], EntryFile]) -> None:
    entries = [
        entry(1),
        entry(2, 3600.5, ttl_class=TTLClass.LONG, ttl=3600.0, tenant=TenantId("ünï")),
        entry(3, ends_at=NOW + 3600, ttl=600),
    ]
    reopen().write(changes(*entries), NOW)
    file = reopen()
    assert by_key(file.load(NOW)) == entries
    assert file.damaged == 0


def test_the_last_change_of_a_key_counts_and_what_is_gone_stays_gone(
    reopen: Callable[[], EntryFile],
) -> None:
    file = reopen()
    file.write(changes(entry(1), entry(2), entry(3)), NOW)
    file.write({entry(2).key: None, **changes(entry(3, 600.0))}, NOW)
    assert by_key(reopen().load(NOW)) == [entry(1), entry(3, 600.0)]


def test_what_expires_while_no_server_runs_is_not_loaded_and_is_erased_by_the_next_write(
    reopen: Callable[[], EntryFile], tmp_path: Path
) -> None:
    reopen().write(changes(entry(1, 300.0), entry(2, 600.0)), NOW)
    file = reopen()
    assert file.load(NOW + 300.0) == [entry(2, 600.0)]
    file.write(changes(entry(3, 900.0)), NOW + 300.0)
    file.close()
    database = sqlite3.connect(tmp_path / "data" / "entries")
    held = database.execute("SELECT key FROM entries ORDER BY key").fetchall()
    database.close()
    assert held == [(entry(2).key,), (entry(3).key,)]


def test_of_too_many_those_that_last_longest_are_loaded(reopen: Callable[[], EntryFile]) -> None:
    reopen().write(changes(*(entry(number, 100.0 * number) for number in range(1, 6))), NOW)
    assert by_key(reopen().load(NOW, most=2)) == [entry(4, 400.0), entry(5, 500.0)]


@given(
    left=st.floats(0.5, 1e5),
    bound=st.none() | st.floats(0.5, 1e5),
    moved=st.floats(-1e6, 1e6),
)
@settings(max_examples=25)
def test_however_the_machine_s_clock_was_set_nothing_lives_longer_than_was_left(
    tmp_path_factory: pytest.TempPathFactory, left: float, bound: float | None, moved: float
) -> None:
    path = tmp_path_factory.mktemp("clock") / "entries"
    ends_at = None if bound is None else NOW + bound
    file = EntryFile(path)
    file.write(changes(entry(1, left, ends_at=ends_at)), NOW)
    file.close()
    file = EntryFile(path)
    loaded = file.load(NOW + moved)
    file.close()
    for one in loaded:
        assert 0 < one.expires_at - (NOW + moved) <= left + 1e-3
        if bound is not None:
            assert one.ends_at is not None
            assert one.ends_at - (NOW + moved) <= bound + 1e-3
    assert bool(loaded) == (moved < left)


def test_it_is_its_owner_s_alone(reopen: Callable[[], EntryFile], tmp_path: Path) -> None:
    reopen().write(changes(entry(1)), NOW)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()} == {0o600}


def test_two_processes_never_share_it(reopen: Callable[[], EntryFile], tmp_path: Path) -> None:
    reopen()
    with pytest.raises(EntryFileInUseError):
        EntryFile(tmp_path / "data" / "entries")


@pytest.mark.parametrize(
    "content", [b"not a database, " * 300, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_damaged_file_is_begun_anew_counted_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "entries"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "ostinato.product"):
        file = EntryFile(path)
        assert file.load(NOW) == []
    assert file.damaged == 1
    assert [str(path) in message for message in caplog.messages] == [True]
    file.write(changes(entry(1)), NOW)
    file.close()
    file = EntryFile(path)
    assert file.load(NOW) == [entry(1)]
    file.close()


def test_a_file_of_another_format_is_begun_anew(
    reopen: Callable[[], EntryFile], tmp_path: Path
) -> None:
    reopen().close()
    with sqlite3.connect(tmp_path / "data" / "entries") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    file = reopen()
    assert file.load(NOW) == []
    assert file.damaged == 1


def test_a_page_that_is_found_damaged_in_use_costs_the_entries_and_not_the_file(
    reopen: Callable[[], EntryFile], tmp_path: Path
) -> None:
    reopen().write(changes(*(entry(number) for number in range(500))), NOW)
    reopen().close()
    path = tmp_path / "data" / "entries"
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    file = reopen()
    assert file.load(NOW) == []
    assert file.damaged == 1
    file.write(changes(entry(1)), NOW)
    assert reopen().load(NOW) == [entry(1)]


@pytest.mark.parametrize(
    "damage",
    [
        "expires_at = expires_at + 1e6",
        "ttl_class = 'ever'",
        "tenant = 'them'",
        "num_tokens = num_tokens + 1",
        "saved_at = NULL",
        "checksum = NULL",
    ],
)
def test_a_row_that_does_not_match_its_checksum_is_dropped_alone(
    reopen: Callable[[], EntryFile], tmp_path: Path, damage: str
) -> None:
    file = reopen()
    file.write(changes(entry(1), entry(2)), NOW)
    file.close()
    database = sqlite3.connect(tmp_path / "data" / "entries")
    with database:
        database.execute(f"UPDATE entries SET {damage} WHERE key = ?", (entry(1).key,))
    database.close()
    file = reopen()
    assert file.load(NOW) == [entry(2)]
    assert file.damaged == 1
