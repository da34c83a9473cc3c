"""The OpenAPI document: what FastAPI derives from the routes, made true where it cannot know better.

| FastAPI's                               | here                                                             |
|-----------------------------------------|------------------------------------------------------------------|
| 422 with its own body                   | the statuses of `failure`, each in its dialect's shape           |
| 200 with any JSON                       | the answers of `openapi_answers`; event streams where there are  |
| `oneOf` for unions that branch by code  | `anyOf`: what fits an item of a known kind fits others, too      |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from ostinato.api.error_shapes import ErrorShape, shapes_for_path
from ostinato.api.failure import OVERLOADED, Failure
from ostinato.api.openapi_answers import EVENT_STREAM, AnswerDoc, answer_of
from ostinato.api.tenants import OPEN_PATHS

_WITH_BODY = {
    400: "The request is malformed, or asks for what is not offered",
    404: "There is no such model or object",
    413: "The body is too large",
    415: "The body is not declared as JSON",
}
_WITH_PARAMETERS = {400: _WITH_BODY[400], 404: _WITH_BODY[404]}
_WITH_KEYS = {401: "No API key, or none that is valid here", 403: "The key is for something else"}
_ALWAYS = {500: "The server failed; its log has the reason under the request's id"}
_GENERATING = {503: "The engine is full, or stopping"}
_STORING = {429: "There are as many cache objects as there may be: delete one"}
_UNIONS = "oneOf"


class DocumentedApp(FastAPI):
    """An application whose document says how it really answers."""

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is None:
            document = super().openapi()
            _loosen_unions(document)
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    _complete(path, method, operation)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
        assert self.openapi_schema is not None  # made by super()
        return self.openapi_schema


def _loosen_unions(node: Any) -> None:
    """Rename `oneOf` in the whole tree."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if isinstance(node.get(_UNIONS), list):
                node["anyOf"] = node.pop(_UNIONS)
            stack += node.values()
        elif isinstance(node, list):
            stack += node


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    """Put in all answers of one operation."""
    doc = answer_of(method, path)
    success = operation["responses"]["200"]
    if doc is not None:
        success["content"] = _content(doc)
    responses = {"200": success}
    shapes = shapes_for_path(path)
    for status, description in sorted(_failures(path, method, operation, doc)):
        for shown, schema in _bodies(status, shapes).items():
            content = {"application/json": {"schema": schema}}
            responses[shown] = {"description": description, "content": content}
    operation["responses"] = responses


def _content(doc: AnswerDoc) -> dict[str, Any]:
    content: dict[str, Any] = {doc.media_type: {"schema": doc.schema}}
    if doc.streams:
        content[EVENT_STREAM] = {"schema": {"type": "string"}}
    return content


def _failures(
    path: str, method: str, operation: Mapping[str, Any], doc: AnswerDoc | None
) -> Iterator[tuple[int, str]]:
    """Every status that the operation may fail with, and what it means."""
    found = dict(_ALWAYS)
    if "parameters" in operation:
        found |= _WITH_PARAMETERS
    if "requestBody" in operation:
        found |= _WITH_BODY | _GENERATING
    if path not in OPEN_PATHS:
        found |= _WITH_KEYS
    if method == "post" and path.endswith("/cachedContents"):
        found |= _STORING
    if doc is not None and doc.failure is not None:
        found |= doc.failure
    return iter(found.items())


def _bodies(status: int, shapes: tuple[ErrorShape, ...]) -> dict[str, Any]:
    """The body of a failure by the status that its dialect gives it."""
    bodies: dict[str, list[Any]] = {}
    for shape in shapes:
        codes = ("", OVERLOADED) if status == 503 else ("",)
        for shown in {shape.status(Failure(status, "", code)) for code in codes}:
            bodies.setdefault(str(shown), []).append(shape.schema)
    return {
        shown: schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        for shown, schemas in bodies.items()
    }
