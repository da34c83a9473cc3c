"""Guards what operators and SDKs look at: /, /health, /metrics, /v1/models, the OpenAPI page."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from ostinato.clock import ManualClock
from tests.api.fake import MODEL, FakeBackend


def test_the_root_points_to_the_docs(client: TestClient) -> None:
    root = client.get("/").json()
    assert root["name"] == "ostinato"
    assert root["docs"] == "/docs"
    assert client.get(root["docs"]).status_code == 200


def test_health_tells_model_backend_limits_and_uptime(
    client: TestClient, clock: ManualClock
) -> None:
    clock.advance(2.5)
    assert client.get("/health").json() == {
        "status": "ok",
        "model": MODEL,
        "backend": "fake",
        "uptime_seconds": 2.5,
        "limits": {
            "max_model_len": 2048,
            "pool_tokens": 1600,
            "num_blocks": 100,
            "block_size": 16,
            "min_cacheable_tokens": 1,
            "kv_bytes_per_token": 512,
            "max_num_seqs": 2,
            "max_waiting": 3,
        },
    }


def test_health_is_a_503_when_the_engine_is_gone(client: TestClient, backend: FakeBackend) -> None:
    backend.alive = False
    response = client.get("/health")
    assert response.status_code == 503
    assert response.json()["status"] == "stopped"


def test_models_are_listed_and_found_by_name(client: TestClient) -> None:
    model = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tests",
        "max_model_len": 2048,
    }
    assert client.get("/v1/models").json() == {"object": "list", "data": [model]}
    assert client.get(f"/v1/models/{MODEL}").json() == model


def test_the_schema_describes_both_bodies(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert {"messages", "cache_salt", "min_p"} <= schemas["ChatRequest"]["properties"].keys()
    assert {"prompt", "logprobs"} <= schemas["CompletionRequest"]["properties"].keys()


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_what_monitors_look_at_may_be_asked_for_its_head_alone(
    client: TestClient, path: str
) -> None:
    assert client.head(path).status_code == 200
    refused = client.post(path)
    assert refused.status_code == 405
    assert f"{path} does not take POST, only GET" in refused.json()["error"]["message"]
    assert "head" not in client.get("/openapi.json").json()["paths"][path]
