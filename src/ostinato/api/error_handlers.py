"""Every failure in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

| what happened                    | status | type                  |
|----------------------------------|--------|-----------------------|
| the caller's mistake             | 400    | invalid_request_error |
| no such model or route           | 404    | invalid_request_error |
| wrong method                     | 405    | invalid_request_error |
| body too large                   | 413    | invalid_request_error |
| body is not declared as JSON     | 415    | invalid_request_error |
| the engine is full or stopped    | 503    | server_error          |
| a bug of ours                    | 500    | server_error          |

A 500 says nothing but the request id; the traceback goes to the log under the same id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ostinato.api import validation
from ostinato.errors import (
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    RequestError,
)

RETRY_AFTER_SECONDS = 1
"""What a 503 advises: the queue of a CPU engine moves within seconds."""

STATUS_BY_CODE = {"model_not_found": 404, "unsupported_media_type": 415}
"""Request errors whose status is not 400."""

_STOPPED = "the engine no longer takes or finishes requests: it is stopping, or it has failed"
_CODE_BY_STATUS = {
    400: "invalid_json",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
}


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """ASCII JSON, so that no text from a client can make the answer itself fail to encode."""
    return Response(
        json.dumps(body, ensure_ascii=True),
        status_code=status,
        media_type="application/json",
        headers=dict(headers or {}),
    )


def body_of(error: Exception, request_id: str) -> tuple[int, dict[str, Any]]:
    """Status and body of any exception; also used for errors in mid-stream, where no status is left."""
    if isinstance(error, RequestError):
        status = STATUS_BY_CODE.get(error.code, 400)
        return status, error_body(
            str(error), "invalid_request_error", param=error.param, code=error.code
        )
    if isinstance(error, EngineOverloadedError):
        return 503, error_body(str(error), "server_error", code="engine_overloaded")
    if isinstance(error, EngineStoppedError):
        return 503, error_body(_STOPPED, "server_error", code="engine_unavailable")
    message = (
        "the server failed on this request; its log has the reason under request id " + request_id
    )
    return 500, error_body(message, "server_error", code="internal_error")


def install(app: FastAPI) -> None:
    """Make `app` answer all errors that reach it in this shape."""
    app.add_exception_handler(RequestError, _on_known_error)
    app.add_exception_handler(EngineOverloadedError, _on_known_error)
    app.add_exception_handler(EngineStoppedError, _on_known_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


async def _on_known_error(request: Request, error: Exception) -> Response:
    status, body = body_of(error, "")
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    return error_response(status, body, headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if isinstance(error.body, bytes) and not _declares_json(request):
        given = request.headers.get("content-type") or "nothing"
        return await _on_known_error(
            request,
            InvalidRequestError(
                f"Content-Type must be application/json, not {validation.ascii_if_malformed(given)}",
                code="unsupported_media_type",
            ),
        )
    if error.body is None:
        message = "the body must be a JSON object, not empty"
        return await _on_known_error(request, InvalidRequestError(message, code="invalid_json"))
    return await _on_known_error(request, validation.invalid_request(found))


def _declares_json(request: Request) -> bool:
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    return media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    message = {
        400: "the body cannot be read as JSON: it must be UTF-8, its numbers of at most 4,300 digits, "
        "not nested thousands deep",
        404: f"there is no {method} {path}; /docs lists what there is",
        405: f"{path} does not take {method}, only {(error.headers or {}).get('Allow', '')}",
    }.get(error.status_code, str(error.detail))
    code = _CODE_BY_STATUS.get(error.status_code, "invalid_request")
    body = error_body(message, "invalid_request_error", code=code)
    return error_response(error.status_code, body, error.headers)
