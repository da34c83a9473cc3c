"""Guards what surrounds a request: bodies that are not JSON, too large or not declared; unknown routes; ids."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from ostinato.api.middleware import MAX_BODY_BYTES
from tests.api.fake import MODEL
from tests.api.http import CHAT, post_raw, refused

HELLO = [{"role": "user", "content": "hello"}]


def test_a_body_that_is_not_json_is_told_where_it_breaks(client: TestClient) -> None:
    error = refused(post_raw(client, b'{"model": }'), 400)
    assert error["code"] == "invalid_json"
    assert "not valid JSON" in error["message"]
    assert "character 10" in error["message"]


@pytest.mark.parametrize("body", [b"", b"[]", b"5", b'"text"', b"null"])
def test_a_body_that_is_no_object_is_refused(client: TestClient, body: bytes) -> None:
    assert "the body must be" in refused(post_raw(client, body), 400)["message"]


@pytest.mark.parametrize("body", [b"\xff\xfe{}", b"[" * 200_000])
def test_a_body_that_cannot_be_parsed_is_refused(client: TestClient, body: bytes) -> None:
    refused(post_raw(client, body), 400)


def test_a_body_that_does_not_say_it_is_json_is_refused(client: TestClient) -> None:
    body = json.dumps({"model": MODEL, "messages": HELLO}).encode()
    error = refused(post_raw(client, body, "text/plain"), 415)
    assert "application/json, not text/plain" in error["message"]


def test_an_unknown_route_and_a_wrong_method_have_the_same_shape(client: TestClient) -> None:
    error = refused(client.get("/v2/nothing"), 404)
    assert "GET /v2/nothing" in error["message"]
    response = client.get(CHAT)
    error = refused(response, 405)
    assert error["code"] == "method_not_allowed"
    assert "does not take GET, only POST" in error["message"]
    assert response.headers["allow"] == "POST"


def test_a_line_break_in_a_path_changes_no_dialect(client: TestClient) -> None:
    response = client.get("/v1beta/cachedContents/%0Ax")
    assert response.status_code == 403
    assert response.json()["error"]["status"] == "PERMISSION_DENIED"


def test_a_body_above_the_bound_is_refused_by_its_declared_length(client: TestClient) -> None:
    error = refused(post_raw(client, b"x" * (MAX_BODY_BYTES + 1)), 413)
    assert error["code"] == "request_too_large"
    assert str(MAX_BODY_BYTES) in error["message"]


def test_a_body_above_the_bound_is_refused_while_it_arrives(client: TestClient) -> None:
    chunk = b"x" * (MAX_BODY_BYTES // 4 + 1)
    response = client.post(
        CHAT, content=(chunk for _ in range(4)), headers={"content-type": "application/json"}
    )
    assert refused(response, 413)["code"] == "request_too_large"


def test_a_plain_request_id_of_the_client_is_kept_and_another_is_replaced(
    client: TestClient,
) -> None:
    kept = client.get("/health", headers={"x-request-id": "trace-1.a"})
    assert kept.headers["x-request-id"] == "trace-1.a"
    for strange in ("two words", "x" * 129, ""):
        replaced = client.get("/health", headers={"x-request-id": strange})
        assert replaced.headers["x-request-id"].startswith("req_")
    ids = {client.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
