"""Failures in Gemini's shape: ``{"error": {"code", "message", "status"}}``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from ostinato.api.failure import Failure

KEY_HEADER = "x-goog-api-key"
KEY_PARAMETER = "key"

_ONLY_GEMINI = re.compile(
    r"/v1(alpha|beta)/.*|/v1/models/.+:[A-Za-z]+|/v1/cachedContents(/.*)?", re.DOTALL
)
_SHARED = re.compile(r"/v1/models(/.*)?", re.DOTALL)
"""Other dialects list models there, too."""

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_BUG = "INTERNAL"
ERROR_SCHEMA: Mapping[str, Any] = {
    "title": "GeminiError",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer", "description": "The status of HTTP."},
                "message": {"type": "string"},
                "status": {"enum": [*dict.fromkeys(_STATUSES.values()), _BUG]},
            },
            "required": ["code", "message", "status"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}
"""JSON Schema of `error_body`."""


def speaks_gemini(scope: Scope) -> bool:
    """Whether a request is of this dialect: by its path, or, where others have the same one, by how its key is
    sent."""
    path: str = scope["path"]
    if _ONLY_GEMINI.fullmatch(path):
        return True
    return is_shared(path) and (
        KEY_HEADER in Headers(scope=scope)
        or KEY_PARAMETER in QueryParams(scope.get("query_string", b""))
    )


def is_shared(path: str) -> bool:
    """Whether other dialects have routes at this path, too."""
    return _SHARED.fullmatch(path) is not None and not _ONLY_GEMINI.fullmatch(path)


def keys_in_query(scope: Scope) -> list[str]:
    """API keys in the URL, which this dialect alone allows."""
    if not speaks_gemini(scope):
        return []
    query = QueryParams(scope.get("query_string", b""))
    return [key for key in query.getlist(KEY_PARAMETER) if key]


def error_status(failure: Failure) -> int:
    return failure.status


def error_body(failure: Failure, request_id: str) -> dict[str, Any]:
    return {
        "error": {
            "code": failure.status,
            "message": failure.message,
            "status": _STATUSES.get(failure.status, _BUG),
        }
    }
