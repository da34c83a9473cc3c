"""Served models in Anthropic's shape."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from ostinato.api.backend import ServedModel
from ostinato.errors import InvalidRequestError

DEFAULT_LIMIT = 20


def model_object(model: ServedModel) -> dict[str, Any]:
    """One model; `max_tokens` is bounded by the context alone."""
    created = datetime.datetime.fromtimestamp(model.created, datetime.UTC)
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.max_model_len,
        "max_tokens": model.max_model_len,
        "capabilities": None,
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
    }


def models_page(
    models: Sequence[ServedModel], limit: int, before_id: str | None, after_id: str | None
) -> dict[str, Any]:
    """Part of the list.

    Args:
        models: all that are served, in order.
        limit: most to return.
        before_id: only those before it, the nearest.
        after_id: only those behind it.

    Raises:
        InvalidRequestError: one of the ids is not served.
    """
    ids = [model.id for model in models]
    first, last = 0, len(ids)
    if after_id is not None:
        first = _place(ids, "after_id", after_id) + 1
    if before_id is not None:
        last = _place(ids, "before_id", before_id)
    within = models[first:last]
    page = within[-limit:] if before_id is not None else within[:limit]
    return {
        "data": [model_object(model) for model in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(within) > len(page),
    }


def _place(ids: Sequence[str], name: str, model_id: str) -> int:
    if model_id not in ids:
        raise InvalidRequestError(f"{name}: there is no model {model_id[:200]!r}", param=name)
    return ids.index(model_id)
