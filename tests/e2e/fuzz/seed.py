"""Seed: a sound request, and what those of several dialects share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = {"content-type": "application/json"}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Seed:
    """One request.

    Attributes:
        path: with its query.
        body: JSON.
        method: of HTTP.
        headers: all that a client sets.
    """

    path: str
    body: Mapping[str, Any]
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
