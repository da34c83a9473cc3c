"""Failures in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

from ostinato.api.failure import Failure


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
