"""JSON as a client may spell it and no JSON writer would, and schemas that no compiler should fall over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HUGE = "9" * 5000
NESTED = "[" * 900 + "]" * 900

VALUES = (
    *(HUGE, f"-{HUGE}", "9" * 200, str(2**63), str(2**31), "1e999", "-1e999", "NaN", "Infinity"),
    *("1.5", "0", "-1", "null", "true", '"x"', "{}", "[]", '"\\u0000"', '"\\ud800"', '["\\ud800"]'),
    *(
        f"[{HUGE}]",
        "[1e999]",
        NESTED,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 900 + "1" + "}" * 900,
    ),
    *(f'{{"{HUGE}": 1}}', '{"1": 1e999}', f'{{"1": {HUGE}}}', '{"\\ud800": "\\ud800"}', '{"٣": 1}'),
    *('{"self": 1}', f'[{{"a": {NESTED}}}]'),
)
"""Any value of any field, as text."""

SCHEMAS: tuple[Any, ...] = (
    *({}, {"type": "nope"}, {"type": 5}, {"type": []}, {"type": ["string", 5]}, {"type": None}),
    *({"$ref": "#/nowhere"}, {"$ref": "#"}, {"$ref": "http://127.0.0.1/x"}, {"$ref": 5}),
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    *(
        {"type": "string", "pattern": text}
        for text in ("(", "(a+)+$", "(?=x)y", r"(a)\1", "\0", "[")
    ),
    *(
        {"type": "string", "pattern": 5},
        {"type": "string", "format": "nope"},
        {"pattern": ".{99999}"},
    ),
    *({"enum": []}, {"enum": 5}, {"enum": [{}]}, {"const": "\ud800"}, {"enum": ["\ud800", "\0"]}),
    *({"type": "integer", "minimum": 5, "maximum": 1}, {"type": "number", "multipleOf": 0}),
    {"type": "integer", "minimum": -(10**40), "maximum": 10**40},
    *({"type": "array", "minItems": 10**9}, {"type": "array", "maxItems": -1, "items": 5}),
    *({"type": "string", "minLength": 10**9}, {"type": "string", "maxLength": 1e99}),
    *({"type": "object", "properties": 5}, {"type": "object", "properties": {"a": 5}}),
    *({"type": "object", "required": [5]}, {"type": "object", "required": "a"}),
    {"type": "object", "required": ["missing"], "additionalProperties": False},
    *(
        {"not": {}},
        {"not": {"type": "string"}},
        {"if": {}, "then": 5},
        {"allOf": [5]},
        {"anyOf": []},
    ),
    *({"oneOf": [{}, {}]}, {"allOf": [{"type": "string"}, {"type": "integer"}]}),
    {"type": "object", "patternProperties": {"(": {}}},
    {"type": "object", "propertyOrdering": [5], "nullable": "yes"},
    {"x-guidance": {"whitespace_pattern": "("}, "type": "object"},
    {"type": "object", "properties": {f"f{n}": {"type": "string"} for n in range(300)}},
)
"""JSON schemas that are wrong, contradictory, endless or more than can be enforced."""


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON text that stands for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object that may name a key twice."""

    items: tuple[tuple[str, Any], ...]


def json_text(value: Any) -> str:
    """Strict JSON in ASCII, except where `Raw` and `Pairs` stand."""
    # A writer of its own: `json` can write neither of the two.
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Mapping):
        value = Pairs(tuple(value.items()))
    if isinstance(value, Pairs):
        inside = (f"{json.dumps(key)}: {json_text(item)}" for key, item in value.items)
        return "{" + ", ".join(inside) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(value)
