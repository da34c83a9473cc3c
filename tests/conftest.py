"""For every test: no Hypothesis deadline, since the machine may be busy; a real Redis for who asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.redis_server import RedisServer, find_program, running_server

settings.register_profile("ostinato", deadline=None)
settings.load_profile("ostinato")


@pytest.fixture(scope="session")
def redis_program() -> str:
    """Path of a Redis or Valkey server."""
    pytest.importorskip("redis", reason="the package `redis` is missing: pip install -e '.[dev]'")
    program = find_program()
    if program is None:
        pytest.skip(  # ok: a machine may lack it; CI installs it
            "no redis-server or valkey-server on the path: apt-get install redis-server"
        )
    return program


@pytest.fixture(scope="session")
def redis_server(
    redis_program: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """One server for the whole run; each test takes a `TierFormat` of its own, so that nothing is shared."""
    with running_server(redis_program, tmp_path_factory.mktemp("redis")) as server:
        yield server
