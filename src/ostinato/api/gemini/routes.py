"""The Gemini routes, the same under each version of the API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnectedError,
    until_disconnect,
)
from ostinato.api.context import ApiContext
from ostinato.api.gemini.cache_routes import cached_contents_router
from ostinato.api.gemini.cached_contents import CachedContents
from ostinato.api.gemini.generate import answer_stream, answer_whole, compose, open_call
from ostinato.api.gemini.models import model_body, models_body
from ostinato.api.gemini.request import in_client_terms
from ostinato.api.gemini.wire import CountTokensBody, GenerateContentBody
from ostinato.api.tenants import tenant_of
from ostinato.errors import InvalidRequestError, RequestError

VERSIONS = ("v1", "v1beta", "v1alpha")
SHARED_VERSION = "v1"
"""Under which other dialects have routes, too."""


def gemini_router(context: ApiContext, contents: CachedContents) -> APIRouter:
    """All routes of the dialect, bound to a backend and the cache objects."""
    router = APIRouter(tags=["gemini"])
    for version in VERSIONS:
        router.include_router(_generation_router(context, contents, version))
        router.include_router(cached_contents_router(context, contents, version))
        if version != SHARED_VERSION:
            router.include_router(_models_router(context, version))
    return router


def _generation_router(context: ApiContext, contents: CachedContents, version: str) -> APIRouter:
    router = APIRouter(tags=["gemini"], prefix=f"/{version}/models")

    @router.post(
        "/{model:path}:generateContent",
        summary="Generate an answer",
        operation_id=f"{version}_generate_content",
    )
    async def generate(model: str, body: GenerateContentBody, request: Request) -> Response:
        try:
            call, streams = await open_call(context, contents, request, body, model)
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return await answer_whole(request, call, streams)

    @router.post(
        "/{model:path}:streamGenerateContent",
        summary="Generate an answer, piece by piece",
        operation_id=f"{version}_stream_generate_content",
    )
    async def stream(
        model: str, body: GenerateContentBody, request: Request, alt: str = Query(default="json")
    ) -> Response:
        if alt not in ("sse", "json"):
            raise InvalidRequestError(f"alt must be 'sse' or 'json', not {alt[:40]!r}", param="alt")
        try:
            call, streams = await open_call(context, contents, request, body, model)
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return answer_stream(request, call, streams, alt)

    @router.post(
        "/{model:path}:countTokens",
        summary="Count a prompt's tokens",
        operation_id=f"{version}_count_tokens",
    )
    async def count(model: str, body: CountTokensBody, request: Request) -> Response:
        work = _count(context, contents, request, body, model)
        try:
            return JSONResponse(await until_disconnect(request.receive, work))
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    return router


def _models_router(context: ApiContext, version: str) -> APIRouter:
    router = APIRouter(tags=["gemini"], prefix=f"/{version}/models")

    @router.get("", summary="What is served", operation_id=f"{version}_list_models")
    async def list_models() -> dict[str, Any]:
        return models_body(context.backend.models())

    @router.get("/{model:path}", summary="One served model", operation_id=f"{version}_get_model")
    async def get_model(model: str) -> dict[str, Any]:
        return model_body(context.served_model(model))

    return router


async def _count(
    context: ApiContext,
    contents: CachedContents,
    request: Request,
    body: CountTokensBody,
    model_name: str,
) -> dict[str, Any]:
    """What `promptTokenCount` would be, and how much of it a cache object holds."""
    model = context.served_model(model_name)
    whole = body.generate_content_request
    if (whole is None) == (not body.contents):
        raise InvalidRequestError(
            "give contents or generateContentRequest, one of the two", param="contents"
        )
    asked = whole or GenerateContentBody(contents=body.contents or [])
    composed = compose(contents, tenant_of(request.scope), model, asked)
    try:
        encoded = await context.backend.encode(composed.prompt.prompt)
    except RequestError as error:
        raise in_client_terms(error) from error
    total = len(encoded.token_ids)
    shown: dict[str, Any] = {
        "totalTokens": total,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": total}],
    }
    if composed.held is not None:
        shown["cachedContentTokenCount"] = composed.prompt.cached_tokens(encoded.boundaries)
    return shown
