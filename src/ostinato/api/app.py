"""The FastAPI application around one backend."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from ostinato.api import error_handlers
from ostinato.api.backend import Backend
from ostinato.api.context import ApiContext
from ostinato.api.middleware import BodyLimitMiddleware, RequestIdMiddleware
from ostinato.api.models_route import models_router
from ostinato.api.openai_chat import chat_router
from ostinato.api.openai_completions import completions_router
from ostinato.api.status_routes import status_router
from ostinato.clock import Clock
from ostinato.insight.metrics import ServerMetrics


def create_app(backend: Backend, *, clock: Clock) -> FastAPI:
    """All routes, bound to `backend`. Starting and stopping the backend is the caller's.

    Args:
        backend: must be ready to serve.
        clock: for latencies, uptime and the `created` fields.
    """
    metrics = ServerMetrics(backend.stats, backend.models()[0].id, clock)
    context = ApiContext(backend, metrics, clock, started=clock.monotonic())
    app = FastAPI(
        title="Ostinato",
        version=version("ostinato"),
        summary="An LLM server in which caching is the product.",
        redirect_slashes=False,
    )
    for router in (chat_router, completions_router, models_router, status_router):
        app.include_router(router(context))
    error_handlers.install(app)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(RequestIdMiddleware)  # added last: outermost
    return app
