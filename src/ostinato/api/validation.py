"""From pydantic's findings to one sentence a client can act on: where, what it was, what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.api.fields import TAG_PREFIX
from ostinato.errors import InvalidRequestError

_MAX_SHOWN = 5
_ROOTS = ("body", "query")
_MAX_TEXT = 40

_EXPECTED = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer of at most 64 bits",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "wrong_kind": "{msg}",
    "malformed_text": "valid Unicode text",
    "string_unicode": "valid Unicode text",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "at least {min_length} character(s) long",
}


def invalid_request(errors: Sequence[Mapping[str, Any]]) -> InvalidRequestError:
    """One error for everything that is wrong with a body; `param` is the path of the first.

    Args:
        errors: as ``ValidationError.errors()`` gives them, locations starting with ``body``.
    """
    first = errors[0]
    if first["type"] == "json_invalid":
        position = first["loc"][-1]
        return InvalidRequestError(
            f"the body is not valid JSON: {first['ctx']['error']} at character {position}",
            code="invalid_json",
        )
    shown = [_sentence(error) for error in errors[:_MAX_SHOWN]]
    if len(errors) > _MAX_SHOWN:
        shown.append(f"and {len(errors) - _MAX_SHOWN} more")
    code = "missing_required_parameter" if first["type"] == "missing" else "invalid_type"
    if first["type"] in ("greater_than_equal", "less_than_equal", "literal_error"):
        code = "invalid_value"
    return InvalidRequestError("; ".join(shown), param=path_of(first["loc"]) or None, code=code)


def path_of(location: Sequence[int | str]) -> str:
    """``("body", "messages", 0, "~list", "content")`` → ``messages[0].content``; of a query the name alone."""
    path = ""
    for part in location[1:] if location and location[0] in _ROOTS else location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(TAG_PREFIX):
            path += f".{part}" if path else part
    return path


def describe(value: Any) -> str:
    """A JSON value, named by its type and shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int):
        return f"the integer {value}" if -(2**63) <= value < 2**64 else "an integer that large"
    if isinstance(value, float):
        return f"the number {value}"
    if isinstance(value, str):
        shown = value if len(value) <= _MAX_TEXT else value[:_MAX_TEXT] + "…"
        return f"the string {ascii_if_malformed(shown)!r}"
    if isinstance(value, list):
        return "an empty list" if not value else f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    return "something that is not JSON"


def ascii_if_malformed(text: str) -> str:
    """The text, with lone surrogates (which no response could carry) replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _sentence(error: Mapping[str, Any]) -> str:
    path = path_of(error["loc"]) or "the body"
    if error["type"] == "missing":
        return f"{path} is required"
    template = _EXPECTED.get(error["type"])
    if template is None:
        return f"{path}: {error['msg']}"
    expected = template.format(msg=error["msg"], **(error.get("ctx") or {}))
    if error["type"] == "literal_error":
        expected = f"one of {expected}" if " or " in expected else expected
    return f"{path} must be {expected}, not {describe(error['input'])}"
