"""Failure: what went wrong with a request, before a dialect says it in its own words.

| what happened                    | status |
|----------------------------------|--------|
| the caller's mistake             | 400    |
| nothing can follow its grammar   | 400    |
| no such model or route           | 404    |
| wrong method                     | 405    |
| body too large                   | 413    |
| body is not declared as JSON     | 415    |
| the engine is full or stopped    | 503    |
| a bug of ours                    | 500    |

A 500 says nothing but the request id; the traceback goes to the log under the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ostinato.errors import (
    EngineOverloadedError,
    EngineStoppedError,
    GrammarFailedError,
    RequestError,
)

RETRY_AFTER_SECONDS = 1
"""What a 503 advises: the queue of a CPU engine moves within seconds."""

MAX_MESSAGE = 1000
MAX_PARAM = 200
"""Characters. Errors quote what they refuse, and names of a client's own making have no bound."""

OVERLOADED = "engine_overloaded"
"""Code of a full queue; some dialects have a status of their own for it."""

CACHED_CONTENT_NOT_FOUND = "cached_content_not_found"
TOO_MANY_CACHED_CONTENTS = "too_many_cached_contents"
STATUS_BY_CODE = {
    CACHED_CONTENT_NOT_FOUND: 403,
    TOO_MANY_CACHED_CONTENTS: 429,
    "model_not_found": 404,
    "response_not_found": 404,
    "unsupported_media_type": 415,
}
"""Request errors whose status is not 400."""

_STOPPED = "the engine no longer takes or finishes requests: it is stopping, or it has failed"
_RETRY = {"retry-after": str(RETRY_AFTER_SECONDS)}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed request.

    Attributes:
        status: of HTTP.
        message: for people.
        code: a stable word for programs.
        param: the offending field, as the client wrote it.
        headers: of the response.
    """

    status: int
    message: str
    code: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def failure_of(error: Exception, request_id: str) -> Failure:
    """Any exception, as a failure; also used for errors in mid-stream, where no status is left."""
    if isinstance(error, RequestError):
        status = STATUS_BY_CODE.get(error.code, 400)
        param = None if error.param is None else _shortened(error.param, MAX_PARAM)
        return Failure(status, _shortened(str(error), MAX_MESSAGE), error.code, param)
    if isinstance(error, GrammarFailedError):
        reason = _shortened(str(error.__cause__), MAX_MESSAGE)
        return Failure(400, f"{reason}; send a simpler schema or grammar", "grammar_failed")
    if isinstance(error, EngineOverloadedError):
        return Failure(503, str(error), OVERLOADED, headers=_RETRY)
    if isinstance(error, EngineStoppedError):
        return Failure(503, _STOPPED, "engine_unavailable", headers=_RETRY)
    message = (
        f"the server failed on this request; its log has the reason under request id {request_id}"
    )
    return Failure(500, message, "internal_error")


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
