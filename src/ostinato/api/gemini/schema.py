"""Gemini's Schema, a dialect of OpenAPI's, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.errors import InvalidRequestError

_TYPES = {"STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"}
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum")
_AS_THEY_ARE = ("title", "description", "required", "pattern", "default")
_FORMATS = (
    "date-time",
    "date",
    "time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uuid",
)
"""Formats that mean the same in JSON Schema; others (`int32`, `enum`, …) only tell of a type or nothing."""

_SNAKE = {
    "any_of": "anyOf",
    "additional_properties": "additionalProperties",
    "property_ordering": "propertyOrdering",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
}
_DEPTH = 64


def to_json_schema(schema: Mapping[str, Any], path: str, depth: int = 0) -> dict[str, Any]:
    """The JSON Schema that says the same.

    Args:
        schema: as Gemini's clients write it: types in capitals, `nullable`, `propertyOrdering`, counts as
            texts. Types in lower case are taken too.
        path: where it stands in the request.
        depth: how deep inside another one.

    Raises:
        InvalidRequestError: something in it is malformed; names the place.
    """
    if depth > _DEPTH:
        raise InvalidRequestError(f"{path} is nested more than {_DEPTH} deep", param=path)
    given = {_SNAKE.get(name, name): value for name, value in schema.items() if value is not None}
    out = {name: given[name] for name in _AS_THEY_ARE if name in given}
    if kind := _type(given.get("type"), path):
        out["type"] = kind
    for name in _COUNTS + _NUMBERS:
        if name in given:
            out[name] = _number(given[name], f"{path}.{name}")
    if given.get("format") in _FORMATS:
        out["format"] = given["format"]
    if "enum" in given:
        out["enum"] = _list(given["enum"], f"{path}.enum")
    _convert_parts(given, out, path, depth + 1)
    return _nullable(out) if given.get("nullable") is True else out


def _convert_parts(given: Mapping[str, Any], out: dict[str, Any], path: str, depth: int) -> None:
    """The schemas inside `given`."""
    if "items" in given:
        out["items"] = _schema(given["items"], f"{path}.items", depth)
    if "anyOf" in given:
        options = _list(given["anyOf"], f"{path}.anyOf")
        out["anyOf"] = [
            _schema(option, f"{path}.anyOf[{i}]", depth) for i, option in enumerate(options)
        ]
    if "properties" in given:
        properties = _mapping(given["properties"], f"{path}.properties")
        out["properties"] = {
            name: _schema(properties[name], f"{path}.properties.{name}", depth)
            for name in _ordered(properties, given, path)
        }
        out["additionalProperties"] = (
            False  # Gemini writes the properties that are named, and no others
        )
    more = given.get("additionalProperties")
    if isinstance(more, bool):
        out["additionalProperties"] = more
    elif more is not None:
        out["additionalProperties"] = _schema(more, f"{path}.additionalProperties", depth)


def _ordered(properties: Mapping[str, Any], given: Mapping[str, Any], path: str) -> list[str]:
    """Names in the order in which they are to be generated; those without one last."""
    where = f"{path}.propertyOrdering"
    wanted = [n for n in _list(given.get("propertyOrdering", []), where) if isinstance(n, str)]
    first = [name for name in dict.fromkeys(wanted) if name in properties]
    return [*first, *(name for name in properties if name not in first)]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema or "anyOf" in schema or not isinstance(schema.get("type"), str):
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def _type(value: Any, path: str) -> str | None:
    if value is None or value == "TYPE_UNSPECIFIED":
        return None
    if not isinstance(value, str) or value.upper() not in _TYPES:
        known = ", ".join(sorted(_TYPES))
        raise InvalidRequestError(
            f"{path}.type must be one of {known}, not {str(value)[:40]!r}", param=f"{path}.type"
        )
    return value.lower()


def _number(value: Any, path: str) -> int | float:
    """A number, or one written as a text, as JSON of protocol buffers has 64-bit integers."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    try:
        return int(str(value)[:20])
    except ValueError:
        raise InvalidRequestError(f"{path} must be a number", param=path) from None


def _schema(value: Any, path: str, depth: int) -> dict[str, Any]:
    return to_json_schema(_mapping(value, path), path, depth)


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{path} must be an object", param=path)
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequestError(f"{path} must be a list", param=path)
    return value
