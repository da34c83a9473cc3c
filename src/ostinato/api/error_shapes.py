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


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How a dialect writes a failure.

    Attributes:
        status: of the response.
        body: JSON, from the failure and the request's id.
        event: name of the event that says it in mid-stream; None for an event without a name.
    """

    status: Callable[[Failure], int]
    body: Callable[[Failure, str], Mapping[str, Any]]
    event: str | None = None


OPENAI = ErrorShape(openai_errors.error_status, openai_errors.error_body)
ANTHROPIC = ErrorShape(anthropic_errors.error_status, anthropic_errors.error_body, event="error")

GEMINI = ErrorShape(gemini_errors.error_status, gemini_errors.error_body)

_SHAPES: tuple[tuple[Callable[[Scope], bool], ErrorShape], ...] = (
    (gemini_errors.speaks_gemini, GEMINI),
    (anthropic_errors.speaks_anthropic, ANTHROPIC),
    (lambda scope: True, OPENAI),
)


def shape_for(scope: Scope) -> ErrorShape:
    """The shape that this request's client understands."""
    return next(shape for speaks, shape in _SHAPES if speaks(scope))


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
