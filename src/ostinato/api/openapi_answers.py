"""What the routes answer when all is well, as JSON schemas for the OpenAPI document.

Answers are written by hand-made renderers in each dialect's words, not by response models, so their schemas
stand here: the fields that are always there. More may come with options of the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EVENT_STREAM = "text/event-stream"

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_FLAG = {"type": "boolean"}
_ANY = {"type": "object"}


@dataclass(frozen=True, slots=True)
class AnswerDoc:
    """A successful answer.

    Attributes:
        schema: of its body.
        media_type: of its body.
        streams: whether it may come as events instead.
        failure: statuses besides those that all routes of its kind have, with what they mean.
    """

    schema: Mapping[str, Any]
    media_type: str = "application/json"
    streams: bool = False
    failure: Mapping[int, str] | None = None


def answer_of(method: str, path: str) -> AnswerDoc | None:
    """The answer of an operation; None if it has none that is known.

    Args:
        method: of HTTP, in lower case.
        path: as the document has it; Gemini's are the same under each version.
    """
    return _ANSWERS.get(f"{method} {path}") or _GEMINI.get(
        f"{method} {re.sub('^/v1(alpha|beta)?', '', path)}"
    )


def _object(**fields: Any) -> dict[str, Any]:
    """All fields are always there; there may be more."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def _list(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def _is(word: str) -> dict[str, Any]:
    return {"const": word}


def _or_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_OPENAI_USAGE = _object(
    prompt_tokens=_COUNT,
    completion_tokens=_COUNT,
    total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
    prompt_cache_hit_tokens=_COUNT,
    prompt_cache_miss_tokens=_COUNT,
)
_COMPLETION_HEAD = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "system_fingerprint": _TEXT}
_CHAT = _object(
    **_COMPLETION_HEAD,
    object=_is("chat.completion"),
    choices=_list(
        _object(
            index=_COUNT,
            message=_object(role=_is("assistant"), content=_or_null(_TEXT)),
            finish_reason=_TEXT,
        )
    ),
    usage=_OPENAI_USAGE,
)
_COMPLETION = _object(
    **_COMPLETION_HEAD,
    object=_is("text_completion"),
    choices=_list(_object(index=_COUNT, text=_TEXT, finish_reason=_TEXT)),
    usage=_OPENAI_USAGE,
)
_RESPONSE = _object(
    id=_TEXT,
    object=_is("response"),
    created_at=_COUNT,
    status=_TEXT,
    model=_TEXT,
    output=_list(_object(type=_TEXT, id=_TEXT)),
    usage=_or_null(
        _object(
            input_tokens=_COUNT,
            input_tokens_details=_object(cached_tokens=_COUNT),
            output_tokens=_COUNT,
            total_tokens=_COUNT,
        )
    ),
)
_PAGE = {
    "data": _list(_ANY),
    "first_id": _or_null(_TEXT),
    "last_id": _or_null(_TEXT),
    "has_more": _FLAG,
}
_MESSAGE = _object(
    id=_TEXT,
    type=_is("message"),
    role=_is("assistant"),
    model=_TEXT,
    content=_list(_object(type=_TEXT)),
    stop_reason=_or_null(_TEXT),
    usage=_object(
        input_tokens=_COUNT,
        output_tokens=_COUNT,
        cache_read_input_tokens=_COUNT,
        cache_creation_input_tokens=_COUNT,
    ),
)
_OPENAI_MODEL = _object(id=_TEXT, object=_is("model"), created=_COUNT, owned_by=_TEXT)
_ANTHROPIC_MODEL = _object(type=_is("model"), id=_TEXT, display_name=_TEXT, created_at=_TEXT)
_GEMINI_MODEL = _object(name=_TEXT, displayName=_TEXT, supportedGenerationMethods=_list(_TEXT))
_GEMINI_MODELS = _object(models=_list(_GEMINI_MODEL))
_GENERATED = _object(
    candidates=_list(_object(index=_COUNT)),
    usageMetadata=_object(promptTokenCount=_COUNT, totalTokenCount=_COUNT),
    modelVersion=_TEXT,
    responseId=_TEXT,
)
_CACHED_CONTENT = _object(
    name=_TEXT,
    model=_TEXT,
    createTime=_TEXT,
    updateTime=_TEXT,
    expireTime=_TEXT,
    usageMetadata=_object(totalTokenCount=_COUNT),
)
_STOPPED = {503: "It is stopping, or has failed"}

_ANSWERS: Mapping[str, AnswerDoc] = {
    "post /v1/chat/completions": AnswerDoc(_CHAT, streams=True),
    "post /v1/completions": AnswerDoc(_COMPLETION, streams=True),
    "post /v1/responses": AnswerDoc(_RESPONSE, streams=True),
    "post /v1/responses/input_tokens": AnswerDoc(
        _object(object=_is("response.input_tokens"), input_tokens=_COUNT)
    ),
    "get /v1/responses/{response_id}": AnswerDoc(_RESPONSE),
    "delete /v1/responses/{response_id}": AnswerDoc(_object(id=_TEXT, deleted=_FLAG)),
    "get /v1/responses/{response_id}/input_items": AnswerDoc(_object(object=_is("list"), **_PAGE)),
    "post /v1/messages": AnswerDoc(_MESSAGE, streams=True),
    "post /v1/messages/count_tokens": AnswerDoc(_object(input_tokens=_COUNT)),
    "get /v1/models": AnswerDoc(
        {
            "anyOf": [
                _object(object=_is("list"), data=_list(_OPENAI_MODEL)),
                _object(**{**_PAGE, "data": _list(_ANTHROPIC_MODEL)}),
                _GEMINI_MODELS,
            ]
        }
    ),
    "get /v1/models/{model_id}": AnswerDoc(
        {"anyOf": [_OPENAI_MODEL, _ANTHROPIC_MODEL, _GEMINI_MODEL]}
    ),
    "get /": AnswerDoc(_object(name=_TEXT, version=_TEXT, models=_list(_TEXT), docs=_TEXT)),
    "get /health": AnswerDoc(_object(status=_TEXT), failure=_STOPPED),
    "get /metrics": AnswerDoc(_TEXT, media_type="text/plain"),
}
_GEMINI: Mapping[str, AnswerDoc] = {
    "post /models/{model}:generateContent": AnswerDoc(_GENERATED),
    "post /models/{model}:streamGenerateContent": AnswerDoc(_list(_GENERATED), streams=True),
    "post /models/{model}:countTokens": AnswerDoc(_object(totalTokens=_COUNT)),
    "get /models": AnswerDoc(_GEMINI_MODELS),
    "get /models/{model}": AnswerDoc(_GEMINI_MODEL),
    "post /cachedContents": AnswerDoc(_CACHED_CONTENT),
    "get /cachedContents": AnswerDoc(_object(cachedContents=_list(_CACHED_CONTENT))),
    "get /cachedContents/{name}": AnswerDoc(_CACHED_CONTENT),
    "patch /cachedContents/{name}": AnswerDoc(_CACHED_CONTENT),
    "delete /cachedContents/{name}": AnswerDoc(_ANY),
}
