"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.anthropic.answering import MessageCall
from ostinato.api.anthropic.errors import MESSAGES_PATH
from ostinato.api.anthropic.request import CountTokensRequest, MessagesRequest
from ostinato.api.anthropic.tools import in_client_form
from ostinato.api.anthropic.version import betas_of, version_of
from ostinato.api.connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnectedError,
    until_disconnect,
)
from ostinato.api.context import ApiContext, new_answer_id
from ostinato.api.middleware import request_id_of
from ostinato.api.recording import recording_of
from ostinato.api.sse import EventStream
from ostinato.api.tenants import tenant_of
from ostinato.errors import RequestError

ID_PREFIX = "msg_"


def messages_router(context: ApiContext) -> APIRouter:
    """The routes, bound to a backend."""
    router = APIRouter(tags=["messages"])

    @router.post(MESSAGES_PATH, summary="Create a message")
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        call = _checked(context, request, body)
        if body.streams:
            return EventStream(call.frames(), request_id_of(request.scope))
        try:
            return JSONResponse(await until_disconnect(request.receive, call.whole()))
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    @router.post(f"{MESSAGES_PATH}/count_tokens", summary="Count the tokens of a message")
    async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
        version_of(request.headers)
        context.served_model(body.model)
        try:
            tokens = await context.backend.count(body.parsed.prompt)
        except RequestError as error:
            raise in_client_form(error) from error
        return JSONResponse({"input_tokens": tokens})

    return router


def _checked(context: ApiContext, request: Request, body: MessagesRequest) -> MessageCall:
    """The call, as far as it can be checked without its tokens.

    Raises:
        RequestError: it can never be served.
    """
    timer = context.metrics.start_request()
    recording = recording_of(request.scope)
    recording.timer = timer
    recording.asked.take_body(body)
    version = version_of(request.headers)
    model = context.served_model(body.model)
    body.check()
    body.check_version(version)
    params = body.constrained(body.to_params(), model)
    message_id = new_answer_id(ID_PREFIX)
    recording.asked.response_id = message_id
    recording.asked.retention = recording.asked.retention or body.longest_ttl()
    return MessageCall(
        context=context,
        body=body,
        message_id=message_id,
        tenant=tenant_of(request.scope),
        model=model,
        params=params,
        betas=betas_of(request.headers),
        timer=timer,
        recording=recording,
    )
