"""cachedContents: create, get, list, patch and delete."""

from __future__ import annotations

import asyncio
import json
from typing import Any, overload

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.backend import EncodedPrompt, ServedModel
from ostinato.api.connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnectedError,
    until_disconnect,
)
from ostinato.api.context import ApiContext
from ostinato.api.gemini.cache_store import CachedContent
from ostinato.api.gemini.cached_contents import (
    DEFAULT_TTL,
    MAX_TTL,
    PREFIX,
    CachedContents,
    NewContent,
)
from ostinato.api.gemini.prefill import object_prompt, prefill
from ostinato.api.gemini.times import format_time, parse_duration, parse_time
from ostinato.api.gemini.wire import CreateCachedContentBody, ExpiryFields, PrefixFields
from ostinato.api.recording import recording_of
from ostinato.api.tenants import tenant_of
from ostinato.errors import InvalidRequestError

_MASKS = {"ttl", "expireTime", "expire_time"}


def cached_contents_router(
    context: ApiContext, contents: CachedContents, version: str
) -> APIRouter:
    """The routes under ``/{version}/cachedContents``."""
    router = APIRouter(tags=["gemini"], prefix=f"/{version}/cachedContents")

    @router.post("", summary="Make a cache object", operation_id=f"{version}_create_cached_content")
    async def create(body: CreateCachedContentBody, request: Request) -> Response:
        work = _create(context, contents, request, body)
        try:
            made = await until_disconnect(request.receive, work)
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return JSONResponse(_shown(made))

    @router.get("", summary="List cache objects", operation_id=f"{version}_list_cached_contents")
    async def list_contents(
        request: Request,
        page_size: int | None = Query(default=None, alias="pageSize"),
        page_token: str | None = Query(default=None, alias="pageToken"),
    ) -> dict[str, Any]:
        found, token = await asyncio.to_thread(
            contents.page, tenant_of(request.scope), page_size, page_token
        )
        shown: dict[str, Any] = {"cachedContents": [_shown(one) for one in found]}
        if token is not None:
            shown["nextPageToken"] = token
        return shown

    _add_item_routes(router, context, contents, version)
    return router


def _add_item_routes(
    router: APIRouter, context: ApiContext, contents: CachedContents, version: str
) -> None:
    """What can be done with one object."""

    @router.get("/{name}", summary="One cache object", operation_id=f"{version}_get_cached_content")
    async def get(name: str, request: Request) -> dict[str, Any]:
        found = await asyncio.to_thread(contents.find, tenant_of(request.scope), name)
        return _shown(found)

    @router.patch(
        "/{name}",
        summary="Move a cache object's end",
        operation_id=f"{version}_patch_cached_content",
    )
    async def patch(
        name: str,
        body: ExpiryFields,
        request: Request,
        update_mask: str | None = Query(default=None, alias="updateMask"),
    ) -> Response:
        _check_mask(body, update_mask)
        work = _prepare_patch(context, contents, request, name, body)
        try:
            found, expires = await until_disconnect(request.receive, work)
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        # Whole or not at all, whoever leaves: what is paid for from now on must be in this request's record.
        changed, unpaid = await asyncio.to_thread(contents.set_expiry, found, expires)
        recording_of(request.scope).asked.storage_token_seconds = unpaid
        return JSONResponse(_shown(changed))

    @router.delete(
        "/{name}", summary="Erase a cache object", operation_id=f"{version}_delete_cached_content"
    )
    async def delete(name: str, request: Request) -> dict[str, Any]:
        asked = recording_of(request.scope).asked
        gone, unpaid = await asyncio.to_thread(contents.delete, tenant_of(request.scope), name)
        asked.model, asked.storage_token_seconds = gone.model, unpaid
        return {}


async def _create(
    context: ApiContext, contents: CachedContents, request: Request, body: CreateCachedContentBody
) -> CachedContent:
    """Compute first, keep then: what could not be computed is no object."""
    recording = recording_of(request.scope)
    name = body.model.removeprefix("models/")
    recording.asked.model = name
    model = context.served_model(name)
    now = context.clock.time()
    seconds = _seconds_left(body, now, DEFAULT_TTL)
    if not (body.contents or body.system_instruction or body.tools):
        raise InvalidRequestError(
            "there is nothing to cache: give contents, systemInstruction or tools", param="contents"
        )
    new = NewContent(tenant_of(request.scope), name, body.display_name, body)
    await asyncio.to_thread(contents.require_room, new)
    prompt = await object_prompt(context, model, body)
    await prefill(context, request, model, prompt, seconds)
    now = context.clock.time()  # a life begins when what it promises is there
    expires = now + _seconds_left(body, now, DEFAULT_TTL)
    made = await asyncio.to_thread(contents.add, new, len(prompt.token_ids), expires)
    recording.asked.response_id = PREFIX + made.id
    return made


async def _prepare_patch(
    context: ApiContext, contents: CachedContents, request: Request, name: str, body: ExpiryFields
) -> tuple[CachedContent, float]:
    """The object and its new end; where that makes its life longer, its K/V is promised for as long (and
    computed again if it has gone)."""
    asked = recording_of(request.scope).asked
    found = await asyncio.to_thread(contents.find, tenant_of(request.scope), name)
    asked.model = found.model
    now = context.clock.time()
    seconds = _seconds_left(body, now)
    if seconds is None:
        raise InvalidRequestError(
            "give ttl or expireTime: nothing else can be changed", param="ttl"
        )
    if now + seconds > found.expires:
        model = context.served_model(found.model)
        prompt = await _prompt_of(context, model, found)
        await prefill(context, request, model, prompt, seconds)
        now = context.clock.time()
        seconds = _seconds_left(body, now, seconds)
    return found, now + seconds


async def _prompt_of(
    context: ApiContext, model: ServedModel, found: CachedContent
) -> EncodedPrompt:
    fields = PrefixFields.model_validate(json.loads(found.content))
    return await object_prompt(context, model, fields)


@overload
def _seconds_left(body: ExpiryFields, now: float, otherwise: float) -> float: ...
@overload
def _seconds_left(body: ExpiryFields, now: float) -> float | None: ...
def _seconds_left(body: ExpiryFields, now: float, otherwise: float | None = None) -> float | None:
    """How long the object is to live from `now` on; `otherwise` if the body does not say.

    Raises:
        InvalidRequestError: both fields are given, or the end is past or too far away.
    """
    if body.ttl is not None and body.expire_time is not None:
        raise InvalidRequestError("give ttl or expireTime, not both", param="ttl")
    if body.ttl is not None:
        param, seconds = "ttl", parse_duration(body.ttl, "ttl")
    elif body.expire_time is not None:
        param, seconds = "expireTime", parse_time(body.expire_time, "expireTime") - now
    else:
        return otherwise
    if seconds <= 0:
        raise InvalidRequestError(f"{param} must lie in the future", param=param)
    if seconds > MAX_TTL:
        raise InvalidRequestError(
            f"{param} must be at most {MAX_TTL:.0f} seconds away", param=param
        )
    return seconds


def _check_mask(body: ExpiryFields, mask: str | None) -> None:
    """Clients need send no mask: what the body has is changed. One that names more is refused."""
    others = set(filter(None, (mask or "").split(","))) - _MASKS
    others |= (body.model_extra or {}).keys() - {"name", "model"}
    if others:
        raise InvalidRequestError(
            f"only ttl and expireTime can be changed, not {', '.join(sorted(others))[:200]}",
            param="updateMask",
        )


def _shown(content: CachedContent) -> dict[str, Any]:
    """An object as its client sees it: never what is in it."""
    shown: dict[str, Any] = {
        "name": PREFIX + content.id,
        "model": f"models/{content.model}",
        "createTime": format_time(content.created),
        "updateTime": format_time(content.updated),
        "expireTime": format_time(content.expires),
        "usageMetadata": {"totalTokenCount": content.num_tokens},
    }
    if content.display_name is not None:
        shown["displayName"] = content.display_name
    return shown
