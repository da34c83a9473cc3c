"""RecordingMiddleware: opens a recording when a request arrives and closes it when HTTP is done with it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ostinato.api.connection import CLIENT_CLOSED_REQUEST
from ostinato.api.recorded_routes import dialect_of
from ostinato.api.recording import Ledger, Recording, word_of
from ostinato.api.tenants import tenant_of
from ostinato.clock import Clock

TEMPLATE_ID_HEADER = "x-prompt-template-id"
TEMPLATE_VERSION_HEADER = "x-prompt-template-version"
CLIENT_DISCONNECTED = "client_disconnected"


class RecordingMiddleware:
    """Opens and closes the recordings. Comes after `ApiKeyMiddleware`: a stranger leaves no record.

    Args:
        app: what comes after.
        ledger: where records go.
        clock: for times and latencies.
        house_rules: their name.
    """

    def __init__(self, app: ASGIApp, ledger: Ledger, clock: Clock, house_rules: str) -> None:
        self.app = app
        self._ledger = ledger
        self._clock = clock
        self._house_rules = house_rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        dialect = dialect_of(scope)
        if dialect is None:
            await self.app(scope, receive, send)
            return
        recording = self._open(scope, dialect)
        status: int | None = None
        is_whole = has_left = False

        async def received() -> Message:
            nonlocal has_left
            message = await receive()
            has_left |= message["type"] == "http.disconnect" and not is_whole
            return message

        async def watched(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                is_whole = not message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, received, watched)
        except Exception as error:
            recording.note(word_of(error))
            status = status or 500  # `RequestIdMiddleware` answers with it
            raise
        finally:
            if has_left or not is_whole or status == CLIENT_CLOSED_REQUEST:
                recording.note(CLIENT_DISCONNECTED)
            elif status is not None and status >= 400:
                recording.note(f"http_{status}")
            recording.close(status)

    def _open(self, scope: Scope, dialect: str) -> Recording:
        headers = Headers(scope=scope)
        recording = Recording(
            ledger=self._ledger,
            clock=self._clock,
            dialect=dialect,
            house_rules=self._house_rules,
            tenant=tenant_of(scope),
            request_id=scope["state"]["request_id"],
            time=self._clock.time(),
            started=self._clock.monotonic(),
        )
        recording.asked.template_id = headers.get(TEMPLATE_ID_HEADER)
        recording.asked.template_version = headers.get(TEMPLATE_VERSION_HEADER)
        scope["state"]["recording"] = recording
        return recording
