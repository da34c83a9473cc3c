"""Served models in Gemini's shape.

``GET /v1/models`` belongs to several dialects; `api/models_route.py` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.api.backend import ServedModel

_METHODS = ["generateContent", "countTokens", "createCachedContent"]


def models_body(models: Sequence[ServedModel]) -> dict[str, Any]:
    """The list, which is never so long that it needs a second page."""
    return {"models": [model_body(model) for model in models]}


def model_body(model: ServedModel) -> dict[str, Any]:
    """One model."""
    return {
        "name": f"models/{model.id}",
        "baseModelId": model.id,
        "version": model.fingerprint,
        "displayName": model.id,
        "inputTokenLimit": model.max_model_len,
        "outputTokenLimit": model.max_model_len,
        "supportedGenerationMethods": _METHODS,
    }
