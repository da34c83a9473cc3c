"""GET /v1/models and /v1/models/{id}, in the shape that the request's other headers ask for."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from ostinato.api.anthropic.errors import speaks_anthropic
from ostinato.api.anthropic.models import DEFAULT_LIMIT, model_object, models_page
from ostinato.api.backend import ServedModel
from ostinato.api.context import ApiContext
from ostinato.api.gemini.errors import speaks_gemini
from ostinato.api.gemini.models import model_body, models_body


def models_router(context: ApiContext) -> APIRouter:
    """The routes, bound to a backend."""
    router = APIRouter(tags=["models"])

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models", summary="What is served")
    async def list_models(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=1000)] = DEFAULT_LIMIT,
        before_id: str | None = None,
        after_id: str | None = None,
    ) -> dict[str, Any]:
        models = context.backend.models()
        if speaks_anthropic(request.scope):
            return models_page(models, limit, before_id, after_id)
        if speaks_gemini(request.scope):
            return models_body(models)
        return {"object": "list", "data": [_model_object(model) for model in models]}

    @router.get("/v1/models/{model_id:path}", summary="One served model")
    async def get_model(model_id: str, request: Request) -> dict[str, Any]:
        model = context.served_model(model_id)
        if speaks_anthropic(request.scope):
            return model_object(model)
        return model_body(model) if speaks_gemini(request.scope) else _model_object(model)

    return router


def _model_object(model: ServedModel) -> dict[str, Any]:
    """OpenAI's fields and vLLM's `max_model_len`."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
        "max_model_len": model.max_model_len,
    }
