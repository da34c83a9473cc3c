"""What a dialect may answer: an answer of its own, or a refusal in its own shape. Nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_OPENAI_CODES: Mapping[int, frozenset[str]] = {
    404: frozenset(("model_not_found", "response_not_found", "not_found")),
    405: frozenset(("method_not_allowed",)),
    413: frozenset(("request_too_large",)),
    415: frozenset(("unsupported_media_type",)),
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
}
_GEMINI_STATUSES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
}
MAX_ERROR_BYTES = 16_000
"""A refusal quotes what it refuses, but not all of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def check_answer(dialect: str, answer: Answer) -> None:
    """Fail unless `answer` is an answer or a refusal as `dialect` has them."""
    assert answer.headers["x-request-id"] == answer.headers["request-id"] != ""
    if answer.status == 200:
        _check_success(answer)
        return
    assert 400 <= answer.status < 500, f"status {answer.status}"
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.body) < MAX_ERROR_BYTES, f"{len(answer.body)} bytes of an error"
    body = json.loads(answer.body.decode("ascii"), parse_constant=_refuse_constant)
    _REFUSALS[dialect](answer, body)


def _check_success(answer: Answer) -> None:
    """Strict JSON, or events of strict JSON, none of which is an error."""
    text = answer.body.decode("utf-8")
    if not answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.headers["content-type"] == "application/json"
        json.loads(text, parse_constant=_refuse_constant)
        return
    frames = [frame for frame in text.split("\n\n") if frame]
    assert frames, "a stream without events"
    for frame in frames:
        data = frame.rpartition("data: ")[2]
        if data == "[DONE]":
            continue
        event = json.loads(data, parse_constant=_refuse_constant)
        is_error = event.get("type") in ("error", "response.failed") or event.get("error")
        assert not is_error or _blames_client(event), f"an error in mid-stream: {data[:500]}"


def _blames_client(event: Mapping[str, Any]) -> bool:
    """Whether a stream ended since nothing could follow the request's grammar."""
    error = event.get("error") or event.get("response", {}).get("error") or event
    return "the grammar cannot be followed" in error.get("message", "")


def _check_openai(answer: Answer, body: Any) -> None:
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert _is_text(error["message"])
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None or _is_text(error["param"])
    assert _is_text(error["code"])
    codes = _OPENAI_CODES.get(answer.status)
    if answer.status == 400:
        assert all(error["code"] not in others for others in _OPENAI_CODES.values())
    else:
        assert codes is not None, f"status {answer.status}"
        assert error["code"] in codes


def _check_anthropic(answer: Answer, body: Any) -> None:
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"]
    error = body["error"]
    assert set(error) - {"details"} == {"type", "message"}
    assert error["type"] == _ANTHROPIC_TYPES[answer.status]
    assert _is_text(error["message"])
    if "details" in error:
        expected = {"error_code": "thread_unsupported_request", "unsupported": []}
        assert error["details"] == expected


def _check_gemini(answer: Answer, body: Any) -> None:
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"code", "message", "status"}
    assert error["code"] == answer.status
    assert type(error["code"]) is int
    assert error["status"] == _GEMINI_STATUSES[answer.status]
    assert _is_text(error["message"])


_REFUSALS: Mapping[str, Callable[[Answer, Any], None]] = {
    "chat": _check_openai,
    "completions": _check_openai,
    "responses": _check_openai,
    "anthropic": _check_anthropic,
    "gemini": _check_gemini,
}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
