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
from ostinato.api.error_handlers import body_of

logger = logging.getLogger("ostinato.api")

DONE = "data: [DONE]\n\n"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def frame(data: Mapping[str, Any]) -> str:
    """One event. JSON never holds a bare line break, so one ``data:`` line is enough."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


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
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnectedError:
            logger.info("request %s: the client went away", self._request_id)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            try:
                async for text in frames:
                    await self._send_text(send, text)
            except Exception as error:
                if not self._started:
                    raise
                await self._send_text(send, self._error_frame(error))
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_text(self, send: Send, text: str) -> None:
        if not self._started:
            self._started = True
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
        await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    def _error_frame(self, error: Exception) -> str:
        status, body = body_of(error, self._request_id)
        if status == 500:
            logger.error("request %s failed in mid-stream", self._request_id, exc_info=error)
        return frame(body)
