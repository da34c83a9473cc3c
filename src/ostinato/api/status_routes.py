"""For operators: GET /, /health and /metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.context import ApiContext
from ostinato.api.tenants import caller_of
from ostinato.insight.metrics import CONTENT_TYPE


def status_router(context: ApiContext) -> APIRouter:
    """The routes, bound to a backend."""
    router = APIRouter(tags=["status"])

    @router.get("/", summary="Where to go from here")
    async def root() -> dict[str, Any]:
        return {
            "name": "ostinato",
            "version": version("ostinato"),
            "models": [model.id for model in context.backend.models()],
            "api": [
                *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
                *("/v1beta/models", "/v1beta/cachedContents", "/v1/models"),
            ],
            "docs": "/docs",
            "health": "/health",
            "metrics": "/metrics",
        }

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="Is it alive, and what are its limits")
    async def health(request: Request) -> Response:
        state = context.backend.health()
        body: dict[str, Any] = {"status": "ok" if state.alive else "stopped"}
        if caller_of(request.scope) is None:  # a stranger: a load balancer needs no more
            return JSONResponse(body, status_code=200 if state.alive else 503)
        body |= {
            "model": context.backend.models()[0].id,
            "backend": state.backend,
            "uptime_seconds": round(context.clock.monotonic() - context.started, 3),
            "limits": {
                "max_model_len": state.max_model_len,
                "pool_tokens": state.pool_tokens,
                "num_blocks": state.num_blocks,
                "block_size": state.block_size,
                "min_cacheable_tokens": state.min_cacheable_tokens,
                "kv_bytes_per_token": state.kv_bytes_per_token,
                "max_num_seqs": state.max_num_seqs,
                "max_waiting": state.max_waiting,
            },
        }
        return JSONResponse(body, status_code=200 if state.alive else 503)

    @router.get("/metrics", summary="Prometheus text format", response_class=Response)
    async def metrics() -> Response:
        return Response(context.metrics.exposition(), headers={"content-type": CONTENT_TYPE})

    return router
