"""What wraps every request: its id, the bound on its body, and the last line of defence. Pure ASGI."""

from __future__ import annotations

import logging
import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostinato.api.error_shapes import failure_response
from ostinato.api.failure import Failure, failure_of

logger = logging.getLogger("ostinato.api")

REQUEST_ID_HEADER = "x-request-id"
ANTHROPIC_REQUEST_ID_HEADER = "request-id"
"""The same id again, where Anthropic's SDKs look for it."""
MAX_BODY_BYTES = 32 * 1024 * 1024
"""Largest request body: some eight million tokens of text."""

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id_of(scope: Scope) -> str:
    """The id that `RequestIdMiddleware` gave this request."""
    request_id: str = scope["state"]["request_id"]
    return request_id


class RequestIdMiddleware:
    """Gives each request an id (the client's own, if it sent a plain one) and puts it on the response.

    An exception that nobody handled is logged under that id and answered with a 500 that says nothing else.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = sent if _CLIENT_ID.fullmatch(sent) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = headers[ANTHROPIC_REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            logger.exception("request %s: %s %s failed", request_id, scope["method"], scope["path"])
            if started:
                raise
            response = failure_response(scope, failure_of(error, request_id))
            await response(scope, receive, send_with_id)


class BodyLimitMiddleware:
    """Refuses bodies above a bound: by their declared length at once, else while they arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and int(declared) > self.max_bytes:
            headers = {"connection": "close"}
            failure = Failure(413, self._message(), "request_too_large", headers=headers)
            await failure_response(scope, failure)(scope, receive, send)
            return
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise HTTPException(413, self._message(), headers={"connection": "close"})
            return message

        await self.app(scope, limited, send)

    def _message(self) -> str:
        return f"the body must be at most {self.max_bytes} bytes"
