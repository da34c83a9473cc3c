"""POST /v1/responses and what belongs to it: count, read again, list the input, delete."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from ostinato.api.backend import ServedModel
from ostinato.api.connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnectedError,
    until_disconnect,
)
from ostinato.api.context import ApiContext, new_answer_id
from ostinato.api.fields import Text
from ostinato.api.fingerprints import fingerprint_of
from ostinato.api.middleware import request_id_of
from ostinato.api.openai_responses.answering import ResponseCall
from ostinato.api.openai_responses.conversation import open_conversation, previous_of
from ostinato.api.openai_responses.render import response_object
from ostinato.api.openai_responses.request import ResponsesRequest
from ostinato.api.openai_responses.store import ResponseStore, StoredResponse
from ostinato.api.recording import recording_of
from ostinato.api.sse import EventStream
from ostinato.api.tenants import tenant_of
from ostinato.errors import InvalidRequestError, RequestError

_PATH = "/v1/responses"
MAX_LISTED = 100


class InputTokensRequest(ResponsesRequest):
    """Body of a count; without a model it is the first that is served."""

    model: Text = Field(default="", description="Name of a served model; see /v1/models.")


def responses_router(context: ApiContext, store: ResponseStore) -> APIRouter:
    """All routes of the API.

    Args:
        context: of the server.
        store: of responses; closing it is the caller's.
    """
    router = APIRouter(tags=["responses"])

    @router.post(_PATH, summary="Create a response")
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        return await _create(context, store, request, body)

    @router.post(f"{_PATH}/input_tokens", summary="Count the tokens of an input")
    async def count_input_tokens(body: InputTokensRequest, request: Request) -> Response:
        tokens = await _count(context, store, request, body)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})

    _add_stored_routes(router, store)
    return router


def _add_stored_routes(router: APIRouter, store: ResponseStore) -> None:
    @router.get(f"{_PATH}/{{response_id}}", summary="A stored response")
    async def get_response(
        response_id: str, request: Request, stream: bool | None = None
    ) -> Response:
        if stream:
            raise InvalidRequestError(
                "stream is for responses that still run in the background, and none do here",
                param="stream",
            )
        return JSONResponse((await _found(store, request, response_id)).response)

    @router.delete(f"{_PATH}/{{response_id}}", summary="Delete a stored response")
    async def delete_response(response_id: str, request: Request) -> Response:
        if not await store.delete(tenant_of(request.scope), response_id):
            raise _not_found(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @router.get(f"{_PATH}/{{response_id}}/input_items", summary="The input of a stored response")
    async def list_input_items(
        response_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Response:
        stored = await _found(store, request, response_id)
        items = list(stored.items if order == "asc" else reversed(stored.items))
        return JSONResponse(_page(items, limit, after))

    @router.post(f"{_PATH}/{{response_id}}/cancel", summary="Not supported")
    async def cancel_response(response_id: str) -> Response:
        raise InvalidRequestError(
            f"the response {response_id[:80]!r} cannot be cancelled: only those that run in the background "
            "can, and none do here; close the connection to end one that is being sent",
            param="response_id",
        )


def _page(items: list[Any], limit: int, after: str | None) -> dict[str, Any]:
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise InvalidRequestError(f"after: there is no item {after[:80]!r}", param="after")
    rest = items if after is None else items[ids.index(after) + 1 :]
    page = rest[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(rest) > limit,
    }


async def _found(store: ResponseStore, request: Request, response_id: str) -> StoredResponse:
    found = await store.get(tenant_of(request.scope), response_id)
    if found is None:
        raise _not_found(response_id)
    return found


def _not_found(response_id: str) -> RequestError:
    return RequestError(
        f"there is no response {response_id[:80]!r}: it was never stored (store: false), was deleted, or is "
        "too old",
        param="response_id",
        code="response_not_found",
    )


async def _create(
    context: ApiContext, store: ResponseStore, request: Request, body: ResponsesRequest
) -> Response:
    timer = context.metrics.start_request()
    recording = recording_of(request.scope)
    recording.timer = timer
    recording.asked.take_body(body)
    body.check()
    try:
        call = await until_disconnect(request.receive, _opened(context, store, request, body))
    except RequestError as error:
        raise body.in_client_terms(error) from error
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if body.streams:
        return EventStream(call.frames(request.scope), request_id_of(request.scope))
    try:
        return await until_disconnect(request.receive, _whole(call))
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _whole(call: ResponseCall) -> Response:
    last: dict[str, Any] = {}
    async with aclosing(call.events()) as events:
        async for event in events:
            last = event
    return JSONResponse(last["response"])


async def _opened(
    context: ApiContext, store: ResponseStore, request: Request, body: ResponsesRequest
) -> ResponseCall:
    """Check what `check` could not and what can be without computing anything."""
    tenant, recording = tenant_of(request.scope), recording_of(request.scope)
    model = context.served_model(body.model)
    params = body.constrained(body.to_params(), model)
    previous = await previous_of(body, tenant, store)
    conversation = await open_conversation(body, model, previous, context.backend)
    response_id = new_answer_id("resp_")
    recording.asked.response_id = response_id
    fingerprint = fingerprint_of(
        context.prompt_cache.fingerprinter,
        conversation.computed,
        tenant=tenant,
        model=model,
        settings=body.cache_settings(),
    )
    assert recording.timer is not None  # `_create` has set it
    return ResponseCall(
        context=context,
        store=store,
        body=body,
        begun=response_object(body, response_id, int(context.clock.time()), model.id),
        tenant=tenant,
        model=model,
        params=params,
        conversation=conversation,
        fingerprint=fingerprint,
        timer=recording.timer,
        recording=recording,
    )


async def _count(
    context: ApiContext, store: ResponseStore, request: Request, body: InputTokensRequest
) -> int:
    """Tokens that the same request to `POST /v1/responses` would compute or read."""
    model = _model(context, body)
    body.check()
    try:
        previous = await previous_of(body, tenant_of(request.scope), store)
        conversation = await open_conversation(body, model, previous, context.backend)
    except RequestError as error:
        raise body.in_client_terms(error) from error
    return len(conversation.computed.token_ids)


def _model(context: ApiContext, body: InputTokensRequest) -> ServedModel:
    return context.served_model(body.model) if body.model else context.backend.models()[0]
