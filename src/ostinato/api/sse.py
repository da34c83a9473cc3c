"""Server-sent events: frames out, disconnects noticed, errors in mid-stream told."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ostinato.api.connection import ClientDisconnectedError, until_disconnect
from ostinato.api.error_shapes import shape_for
from ostinato.api.failure import failure_of
from ostinato.api.recording import note_error

logger = logging.getLogger("ostinato.api")

DONE = "data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def frame(data: Mapping[str, Any], event: str | None = None) -> str:
    """One event, maybe named. JSON never holds a bare line break, so one ``data:`` line is enough."""
    name = "" if event is None else f"event: {event}\n"
    return f"{name}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


class EventStream(Response):
    """Sends the frames of an async generator.

    The status line waits for the first frame, so that whatever fails before it is an ordinary error
    response. A failure after that becomes an error frame, and the stream ends without ``[DONE]``. When the
    client goes, the generator is closed at once, even while it waits.
    """

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[str, None], request_id: str) -> None:
        super().__init__(headers=HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._request_id = request_id
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(scope, send))
        except ClientDisconnectedError:
            logger.info("request %s: the client went away", self._request_id)

    async def _send_all(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            try:
                async for text in frames:
                    await self._send_text(send, text)
            except Exception as error:
                if not self._started:
                    raise
                note_error(scope, error)
                await self._send_text(send, self._error_frame(scope, error))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_text(self, send: Send, text: str) -> None:
        if not self._started:
            self._started = True
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    def _error_frame(self, scope: Scope, error: Exception) -> str:
        return frame(self._error_body(scope, error), shape_for(scope).event)

    def _error_body(self, scope: Scope, error: Exception) -> Mapping[str, Any]:
        failure = failure_of(error, self._request_id)
        if failure.status == 500:
            logger.error("request %s failed in mid-stream", self._request_id, exc_info=error)
        return shape_for(scope).body(failure, self._request_id)


class JsonArrayStream(EventStream):
    """The same for a stream that is one JSON array: its frames are the array's pieces.

    A failure in mid-stream becomes the last element.
    """

    media_type = "application/json"

    def _error_frame(self, scope: Scope, error: Exception) -> str:
        return f",\r\n{json.dumps(self._error_body(scope, error))}]"
