"""Guards against computing for nobody: a client that goes away cancels its request at once, whether it was
streaming, waiting for the first token, or waiting for the whole answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message

from ostinato.api.app import create_app
from ostinato.api.backend import GenerationRequest
from ostinato.clock import ManualClock
from ostinato.engine.outputs import OutputDelta
from tests.api.fake import MODEL, FakeBackend


async def leave_while_it_hangs(
    backend: FakeBackend, path: str, body: dict[str, Any]
) -> list[Message]:
    """Send a request, wait until the backend hangs, close the connection; returns what was sent."""
    payload = json.dumps({"model": MODEL, **body}).encode()
    sent: list[Message] = []
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": payload, "more_body": False})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    app = create_app(backend, clock=ManualClock())
    call = asyncio.create_task(app(scope, inbox.get, send))
    await backend.hanging.wait()
    assert backend.cancelled == []
    inbox.put_nowait({"type": "http.disconnect"})
    await call
    return sent


CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]})
TEXT = ("/v1/completions", {"prompt": ["a", "b", "c"]})


@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT])
@pytest.mark.parametrize("hang_after", [0, 2])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_cancels_all_its_requests(
    path: str, body: dict[str, Any], hang_after: int, stream: bool
) -> None:
    backend = FakeBackend(hang_after=hang_after)
    sent = asyncio.run(leave_while_it_hangs(backend, path, {**body, "stream": stream}))
    assert len(backend.requests) == len(body.get("prompt", ["one"]))
    assert sorted(backend.cancelled) == sorted(r.request_id for r in backend.requests)
    assert not any(message.get("status") == 500 for message in sent)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_while_its_prompt_is_tokenised_starts_nothing(stream: bool) -> None:
    class Tokenises(FakeBackend):
        async def stream(self, request: GenerationRequest) -> AsyncGenerator[OutputDelta, None]:
            self.hanging.set()
            await asyncio.Event().wait()
            return await super().stream(request)

    backend = Tokenises()
    sent = asyncio.run(leave_while_it_hangs(backend, CHAT[0], {**CHAT[1], "stream": stream}))
    assert backend.requests == []
    assert [m["status"] for m in sent if m["type"] == "http.response.start"] == [499]


def test_what_was_streamed_before_the_client_went_had_been_sent() -> None:
    backend = FakeBackend(hang_after=2)
    sent = asyncio.run(leave_while_it_hangs(backend, CHAT[0], {**CHAT[1], "stream": True}))
    text = b"".join(message.get("body", b"") for message in sent).decode()
    assert '"content":"Once"' in text
    assert '"content":" upon"' in text
    assert "[DONE]" not in text


def test_a_failing_prompt_cancels_the_others() -> None:
    class OneFails(FakeBackend):
        async def _maybe_stop(self, sent: int) -> None:
            if sent == 2 and len(self.cancelled) == 0:
                raise RuntimeError("one fails")
            if sent == 3:
                await asyncio.Event().wait()

    backend = OneFails()
    app = create_app(backend, clock=ManualClock())
    from httpx2 import ASGITransport, AsyncClient

    async def ask() -> int:
        transport = ASGITransport(app=app)
        async with AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"model": MODEL, "prompt": ["a", "b", "c"]}
            return (await client.post("/v1/completions", json=body)).status_code

    assert asyncio.run(ask()) == 500
    assert len(backend.cancelled) == 3
