"""Failures in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``.

| status                 | type                  |
|------------------------|-----------------------|
| 400, 405, 415          | invalid_request_error |
| 401                    | authentication_error  |
| 403                    | permission_error      |
| 404                    | not_found_error       |
| 413                    | request_too_large     |
| 500, 503               | api_error             |
| 529: the queue is full | overloaded_error      |

There is no field for the offending parameter: messages begin with its path or name it. `details` is there for
the one code that SDKs act on: a client that asks for a server-held thread goes on without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from ostinato.api.failure import OVERLOADED, Failure

MESSAGES_PATH = "/v1/messages"
VERSION_HEADER = "anthropic-version"
OVERLOADED_STATUS = 529
NO_THREADS = "thread_unsupported_request"
"""Code by which clients know that this server holds no conversations for them."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
}
_OTHER_TYPES = ("invalid_request_error", "api_error", "overloaded_error")
ERROR_SCHEMA: Mapping[str, Any] = {
    "title": "AnthropicError",
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {
                "type": {"enum": [*_TYPES.values(), *_OTHER_TYPES]},
                "message": {"type": "string"},
                "details": {"type": "object"},
            },
            "required": ["type", "message"],
            "additionalProperties": False,
        },
        "request_id": {"type": "string"},
    },
    "required": ["type", "error", "request_id"],
    "additionalProperties": False,
}
"""JSON Schema of `error_body`."""


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is in this dialect: by its path, or by the header that all of its SDKs send."""
    path = scope["path"]
    is_ours = path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")
    return is_ours or VERSION_HEADER in Headers(scope=scope)


def error_status(failure: Failure) -> int:
    return OVERLOADED_STATUS if failure.code == OVERLOADED else failure.status


def error_body(failure: Failure, request_id: str) -> dict[str, Any]:
    kind = "api_error" if failure.status >= 500 else "invalid_request_error"
    if failure.code == OVERLOADED:
        kind = "overloaded_error"
    error: dict[str, Any] = {"type": _TYPES.get(failure.status, kind), "message": failure.message}
    if failure.code == NO_THREADS:
        error["details"] = {"error_code": NO_THREADS, "unsupported": []}
    return {"type": "error", "error": error, "request_id": request_id}
