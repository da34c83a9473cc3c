"""The FastAPI application around one backend."""

from __future__ import annotations

import secrets
from importlib.metadata import version

from fastapi import FastAPI

from ostinato.api import error_handlers
from ostinato.api.anthropic.routes import messages_router
from ostinato.api.backend import Backend
from ostinato.api.context import ApiContext
from ostinato.api.gemini.cache_store import CacheStore
from ostinato.api.gemini.cached_contents import CachedContents
from ostinato.api.gemini.routes import gemini_router
from ostinato.api.middleware import BodyLimitMiddleware, RequestIdMiddleware
from ostinato.api.models_route import models_router
from ostinato.api.openai_chat import chat_router
from ostinato.api.openai_completions import completions_router
from ostinato.api.openai_responses.routes import responses_router
from ostinato.api.openai_responses.store import ResponseStore
from ostinato.api.openapi import DocumentedApp
from ostinato.api.recording import NoLedger
from ostinato.api.recording_middleware import RecordingMiddleware
from ostinato.api.status_routes import status_router
from ostinato.api.tenants import ApiKeyMiddleware, KeyRing
from ostinato.cache.namespace import SECRET_BYTES
from ostinato.clock import Clock
from ostinato.insight.entry_metrics import EntryCollector
from ostinato.insight.ledger_metrics import LedgerCollector
from ostinato.insight.metrics import ServerMetrics
from ostinato.ledger.writer import LedgerWriter
from ostinato.product.entry_writer import EntryWriter
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import LOCAL


def create_app(
    backend: Backend,
    *,
    clock: Clock,
    keys: KeyRing | None = None,
    prompt_cache: PromptCache | None = None,
    entries: EntryWriter | None = None,
    ledger: LedgerWriter | None = None,
    responses: ResponseStore | None = None,
    cached_contents: CachedContents | None = None,
) -> FastAPI:
    """All routes, bound to `backend`. Starting and stopping the backend is the caller's.

    Args:
        backend: must be ready to serve.
        clock: for latencies, uptime and the `created` fields.
        keys: who may ask; None: whoever reaches the server.
        prompt_cache: house rules and entries; None: the local ones, under a secret of this process.
        entries: keeps those of `prompt_cache`; None: nobody does. Closing it is the caller's.
        ledger: takes a record of each request; None: nobody does. Starting and closing it is the caller's.
        responses: keeps them; None: in memory. Closing it is the caller's.
        cached_contents: Gemini's cache objects; None: in memory. Closing their store is the caller's.
    """
    metrics = ServerMetrics(backend.stats, backend.models()[0].id, clock)
    if ledger is not None:
        metrics.registry.register(LedgerCollector(ledger.stats, backend.models()[0].id))
    if entries is not None:
        metrics.registry.register(EntryCollector(entries.stats, backend.models()[0].id))
    if prompt_cache is None:
        prompt_cache = PromptCache(
            clock, secrets.token_bytes(SECRET_BYTES), LOCAL, backend.health().block_size
        )
    context = ApiContext(backend, metrics, clock, clock.monotonic(), prompt_cache)
    app = DocumentedApp(
        title="Ostinato",
        version=version("ostinato"),
        summary="An LLM server in which caching is the product.",
        redirect_slashes=False,
    )
    for router in (
        chat_router,
        completions_router,
        messages_router,
        models_router,
        status_router,
    ):
        app.include_router(router(context))
    app.include_router(responses_router(context, responses or ResponseStore(None, clock)))
    if cached_contents is None:
        cached_contents = CachedContents(
            CacheStore(None), clock, ledger or NoLedger(), prompt_cache.rules.name
        )
    app.include_router(gemini_router(context, cached_contents))
    error_handlers.install(app)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(
        RecordingMiddleware,
        ledger=NoLedger() if ledger is None else ledger,
        clock=clock,
        house_rules=prompt_cache.rules.name,
    )
    app.add_middleware(ApiKeyMiddleware, keys=keys)
    app.add_middleware(RequestIdMiddleware)  # added last: outermost
    return app
