"""Calls and checks that several API tests share."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

CHAT = "/v1/chat/completions"


def refused(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def post_raw(client: TestClient, body: bytes, media_type: str = "application/json") -> Any:
    return client.post(CHAT, content=body, headers={"content-type": media_type})
