"""Ledgers of both kinds, each empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ostinato.ledger.location import ledger_url
from ostinato.ledger.schema import METADATA
from ostinato.ledger.store import LedgerStore
from tests.postgres_server import find_programs, running_server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    pytest.importorskip("psycopg", reason="psycopg is missing: pip install 'ostinato[postgres]'")
    programs = find_programs()
    if programs is None:
        pytest.skip(  # ok: a machine may lack it; SQLite passes the same tests
            "no PostgreSQL on this machine: apt-get install postgresql"
        )
    with running_server(programs) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of an empty ledger."""
    setting = None if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    url = ledger_url(setting, tmp_path)
    assert url is not None
    yield url
    if request.param == "postgresql":
        store = LedgerStore(url)
        METADATA.drop_all(store.engine)
        store.close()


@pytest.fixture
def store(url: str) -> Iterator[LedgerStore]:
    """An open, empty ledger."""
    store = LedgerStore(url)
    store.open()
    yield store
    store.close()
