"""Failures in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.api.failure import Failure

_OR_NULL = ["string", "null"]
ERROR_SCHEMA: Mapping[str, Any] = {
    "title": "OpenAIError",
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": ["invalid_request_error", "server_error"]},
                "param": {"type": _OR_NULL, "description": "Path of the offending field."},
                "code": {"type": "string", "description": "A stable word for programs."},
            },
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}
"""JSON Schema of `error_body`."""


def error_status(failure: Failure) -> int:
    return failure.status


def error_body(failure: Failure, request_id: str) -> dict[str, Any]:
    kind = "server_error" if failure.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": failure.message,
            "type": kind,
            "param": failure.param,
            "code": failure.code,
        }
    }
