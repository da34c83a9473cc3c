"""Which dialect a failed request is answered in. The one table, looked through from the top."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Response
from starlette.types import Scope

from ostinato.api import openai_errors
from ostinato.api.anthropic import errors as anthropic_errors
from ostinato.api.failure import Failure
from ostinato.api.gemini import errors as gemini_errors


@dataclass(frozen=True, slots=True, eq=False)
class ErrorShape:
    """How a dialect writes a failure.

    Attributes:
        status: of the response.
        body: JSON, from the failure and the request's id.
        schema: JSON Schema of `body`.
        event: name of the event that says it in mid-stream; None for an event without a name.
    """

    status: Callable[[Failure], int]
    body: Callable[[Failure, str], Mapping[str, Any]]
    schema: Mapping[str, Any]
    event: str | None = None


OPENAI = ErrorShape(
    openai_errors.error_status, openai_errors.error_body, openai_errors.ERROR_SCHEMA
)
ANTHROPIC = ErrorShape(
    anthropic_errors.error_status,
    anthropic_errors.error_body,
    anthropic_errors.ERROR_SCHEMA,
    event="error",
)
GEMINI = ErrorShape(
    gemini_errors.error_status, gemini_errors.error_body, gemini_errors.ERROR_SCHEMA
)

_SHAPES: tuple[tuple[Callable[[Scope], bool], ErrorShape], ...] = (
    (gemini_errors.speaks_gemini, GEMINI),
    (anthropic_errors.speaks_anthropic, ANTHROPIC),
    (lambda scope: True, OPENAI),
)


def shape_for(scope: Scope) -> ErrorShape:
    """The shape that this request's client understands."""
    return next(shape for speaks, shape in _SHAPES if speaks(scope))


def shapes_for_path(path: str) -> tuple[ErrorShape, ...]:
    """The shapes that this path's own clients understand; several where dialects share it."""
    if gemini_errors.is_shared(path):
        return tuple(shape for _, shape in _SHAPES)
    return (shape_for({"path": path, "headers": []}),)


def failure_response(scope: Scope, failure: Failure) -> Response:
    """ASCII JSON, so that no text from a client can make the answer itself fail to encode."""
    shape = shape_for(scope)
    body = shape.body(failure, scope["state"]["request_id"])
    return Response(
        json.dumps(body, ensure_ascii=True),
        status_code=shape.status(failure),
        media_type="application/json",
        headers=dict(failure.headers),
    )
