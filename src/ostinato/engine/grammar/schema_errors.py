"""Where in a JSON schema the fault is. llguidance says what is wrong, but not where.

So the schema is taken apart: of the subschemas that fail when each is compiled by itself, together with the
root's definitions, the first and innermost is the culprit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ostinato.engine.grammar.spec import SchemaPart

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "additionalItems", "not")
_DEFINITIONS = ("$defs", "definitions")
MAX_TRIALS = 400
"""Subschemas that are tried: enough for any written by hand."""


@dataclass(frozen=True, slots=True)
class SchemaError:
    """A fault.

    Attributes:
        param: path to the subschema, from the request's body on.
        message: llguidance's words.
    """

    param: str
    message: str


def find_schema_error(part: SchemaPart) -> SchemaError | None:
    """The innermost fault of a schema; None if it can be compiled."""
    root = json.loads(part.schema)
    options = root.pop("x-guidance")
    shared = {name: root[name] for name in _DEFINITIONS if name in root}
    message = _failure(root, {}, options)
    if message is None:
        return None
    found = SchemaError(part.param, message)
    schema, trials = root, MAX_TRIALS
    while True:
        for path, child in _children(schema):
            trials -= 1
            message = _failure(child, shared, options) if trials > 0 else None
            if message is not None:
                found = SchemaError(f"{found.param}{path}", message)
                schema = child
                break
        else:
            return found


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, Mapping):
        return
    for keyword in _MAPS:
        members = schema.get(keyword)
        if isinstance(members, Mapping):
            yield from ((f".{keyword}.{name}", child) for name, child in members.items())
    for keyword in _LISTS:
        members = schema.get(keyword)
        if isinstance(members, list):
            yield from ((f".{keyword}[{i}]", child) for i, child in enumerate(members))
    yield from ((f".{keyword}", schema[keyword]) for keyword in _SINGLES if keyword in schema)


def _failure(schema: Any, shared: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """What llguidance says against a schema, None if nothing."""
    from llguidance import LLMatcher

    if isinstance(schema, bool):
        return None
    if not isinstance(schema, Mapping):
        return f"a schema must be an object or a boolean, not {json.dumps(schema)[:60]}"
    text = json.dumps({**shared, **schema, "x-guidance": dict(options)})
    is_error, messages = LLMatcher.validate_grammar_with_warnings(
        LLMatcher.grammar_from_json_schema(text)
    )
    return messages[0] if is_error else None
