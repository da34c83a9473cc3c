"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ostinato.api.backend import ServedModel
from ostinato.api.context import ApiContext


def models_router(context: ApiContext) -> APIRouter:
    """The routes, bound to a backend."""
    router = APIRouter(tags=["models"])

    @router.head("/v1/models", include_in_schema=False)
    @router.get("/v1/models", summary="What is served")
    async def list_models() -> dict[str, Any]:
        models = context.backend.models()
        return {"object": "list", "data": [_model_object(model) for model in models]}

    @router.get("/v1/models/{model_id:path}", summary="One served model")
    async def get_model(model_id: str) -> dict[str, Any]:
        return _model_object(context.served_model(model_id))

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
