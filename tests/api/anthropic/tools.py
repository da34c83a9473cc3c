"""Bodies and checks that the tests of this dialect share."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from fastapi.testclient import TestClient

from ostinato.api.backend import GenerationRequest
from ostinato.engine.outputs import OutputDelta
from tests.api.fake import MODEL, FakeBackend

MESSAGES = "/v1/messages"
SHORT = {"type": "ephemeral"}
LONG = {"type": "ephemeral", "ttl": "1h"}
HI = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Where."}},
        "required": ["city"],
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 8, "messages": HI, **more}


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def post(client: TestClient, headers: dict[str, str] | None = None, **more: Any) -> Any:
    return client.post(MESSAGES, json=body(**more), headers=headers or {})


def message(client: TestClient, headers: dict[str, str] | None = None, **more: Any) -> Any:
    response = post(client, headers, **more)
    assert response.status_code == 200, response.text
    return response.json()


def events(client: TestClient, **more: Any) -> list[dict[str, Any]]:
    """All events of a stream; each must have its name on a line before its data."""
    response = post(client, stream=True, **more)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for text in response.text.split("\n\n")[:-1]:
        name, data = text.split("\n")
        assert name.startswith("event: ")
        assert data.startswith("data: ")
        event = json.loads(data.removeprefix("data: "))
        assert event["type"] == name.removeprefix("event: ")
        found.append(event)
    return found


def refused(response: Any, status: int, kind: str = "invalid_request_error") -> str:
    """The message of an error in Anthropic's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()
    assert set(error) == {"type", "error", "request_id"}
    assert error["type"] == "error"
    assert set(error["error"]) == {"type", "message"}
    assert error["error"]["type"] == kind
    assert error["request_id"] == response.headers["request-id"]
    text: str = error["error"]["message"]
    return text


@dataclass
class ScriptedBackend(FakeBackend):
    """Gives another answer each time, the last one again and again.

    Attributes:
        answers: in order; each in pieces.
    """

    answers: list[tuple[str, ...]] = field(default_factory=list)

    async def _deltas(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
        self.words = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        async for delta in super()._deltas(request):
            yield delta
