"""Guards the two ways in which Gemini's clients send their key, and that a key in a URL is in no log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.tenants import key_ring
from ostinato.cli.server import hide_keys
from ostinato.clock import ManualClock
from tests.api.fake import FakeBackend
from tests.api.gemini.test_generate import HELLO, refused

KEY = "sk-acme-0123456789abcdef"
COUNT = "/v1/models/tiny:countTokens"


@pytest.fixture
def locked() -> Iterator[TestClient]:
    clock = ManualClock()
    keys = key_ring(None, f"acme={KEY}", clock)
    with TestClient(create_app(FakeBackend(), clock=clock, keys=keys)) as client:
        yield client


def test_a_key_is_taken_from_geminis_header_and_from_its_urls(locked: TestClient) -> None:
    body = {"contents": HELLO}
    assert locked.post(COUNT, json=body, headers={"x-goog-api-key": KEY}).status_code == 200
    assert locked.post(f"{COUNT}?key={KEY}", json=body).status_code == 200
    assert locked.get(f"/v1/models?key={KEY}").json()["models"]
    other = locked.post(f"{COUNT}?key=other", json=body, headers={"x-goog-api-key": KEY})
    refused(other, 401, "UNAUTHENTICATED")


def test_a_stranger_is_refused_in_geminis_shape(locked: TestClient) -> None:
    refused(locked.post(COUNT, json={"contents": HELLO}), 401, "UNAUTHENTICATED")
    refused(locked.get("/v1beta/cachedContents"), 401, "UNAUTHENTICATED")


def test_no_other_dialect_takes_a_key_from_the_url(locked: TestClient) -> None:
    response = locked.post(f"/v1/chat/completions?key={KEY}", json={})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("path", "logged"),
    [
        (f"/v1/models?key={KEY}", "/v1/models?key=***"),
        (f"/v1/x?alt=sse&key={KEY}&a=b", "/v1/x?alt=sse&key=***&a=b"),
        ("/v1/models?monkey=1", "/v1/models?monkey=1"),
    ],
)
def test_the_access_log_has_no_key(path: str, logged: str) -> None:
    arguments = ("127.0.0.1:1", "GET", path, "1.1", 200)
    record = logging.LogRecord(
        "uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', arguments, None
    )
    assert hide_keys(record)
    assert record.getMessage() == f'127.0.0.1:1 - "GET {logged} HTTP/1.1" 200'
