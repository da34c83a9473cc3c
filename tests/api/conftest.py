"""A client for an application over the fake backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.clock import ManualClock
from tests.api.fake import FakeBackend


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(backend: FakeBackend, clock: ManualClock) -> Iterator[TestClient]:
    with TestClient(create_app(backend, clock=clock), raise_server_exceptions=False) as client:
        yield client
