"""Every failure that reaches the application, answered in its client's dialect; see `error_shapes`."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ostinato.api import validation
from ostinato.api.error_shapes import failure_response
from ostinato.api.failure import Failure, failure_of
from ostinato.api.recording import note_error
from ostinato.errors import (
    EngineOverloadedError,
    EngineStoppedError,
    GrammarFailedError,
    InvalidRequestError,
    RequestError,
)

_MAX_PATH = 200
"""Characters of a path that an error repeats."""
_CODE_BY_STATUS = {
    400: "invalid_json",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
}


def install(app: FastAPI) -> None:
    """Make `app` answer all errors that reach it."""
    app.add_exception_handler(RequestError, _on_known_error)
    app.add_exception_handler(EngineOverloadedError, _on_known_error)
    app.add_exception_handler(EngineStoppedError, _on_known_error)
    app.add_exception_handler(GrammarFailedError, _on_known_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


async def _on_known_error(request: Request, error: Exception) -> Response:
    note_error(request.scope, error)
    return failure_response(request.scope, failure_of(error, ""))


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
    if error.body is None and any(one["loc"][0] == "body" for one in found):
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
        404: f"there is no {method} {path[:_MAX_PATH]}; /docs lists what there is",
        405: f"{path[:_MAX_PATH]} does not take {method}, only {(error.headers or {}).get('Allow', '')}",
    }.get(error.status_code, str(error.detail))
    code = _CODE_BY_STATUS.get(error.status_code, "invalid_request")
    failure = Failure(error.status_code, message, code, headers=error.headers or {})
    return failure_response(request.scope, failure)
