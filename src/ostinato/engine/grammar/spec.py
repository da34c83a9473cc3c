"""What an answer must look like: plain frozen values, made by the API and carried by `SamplingParams`.

Nothing is checked here. A specification is compiled, and refused, by `compiler.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from ostinato.errors import InvalidRequestError
from ostinato.models.reasoning.syntax import Reasoning


class GrammarKind(StrEnum):
    """Language that a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class SchemaPart:
    """A JSON schema and where in the request it stands, so that an error can name the path."""

    param: str
    schema: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """A whole answer that must match.

    Attributes:
        kind: language of `text`.
        text: a JSON schema with its ``x-guidance`` options, a regular expression, or a grammar in
            llguidance's dialect of Lark.
        param: the request's field, for errors.
        schemas: the JSON schemas that are part of it.
    """

    kind: GrammarKind
    text: str
    param: str
    schemas: tuple[SchemaPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Trigger:
    """From `text` on the answer must go on with `grammar`.

    Attributes:
        text: what switches the grammar on, once it is generated.
        grammar: of what follows; when it has ended, the answer is free again.
        at_start: only where it is the answer's beginning.
    """

    text: str
    grammar: Grammar
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class TriggeredGrammar:
    """An answer that is free except behind its triggers.

    Attributes:
        triggers: at least one; where several are complete at the same place, the first counts.
        max_matches: the answer ends behind so many matches; None: it never has to.
    """

    triggers: tuple[Trigger, ...]
    max_matches: int | None = None


@dataclass(frozen=True, slots=True)
class ReasonedGrammar:
    """An answer that may begin with a thought, which nothing binds.

    Attributes:
        reasoning: how it thinks.
        grammar: of what follows the thought, or of the whole answer if there is none.
    """

    reasoning: Reasoning
    grammar: Grammar | TriggeredGrammar


GrammarSpec: TypeAlias = Grammar | TriggeredGrammar | ReasonedGrammar

ONE_LINE: Mapping[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON as chat templates write it (``json.dumps``): in the next prompt these are the same tokens."""

READABLE: Mapping[str, Any] = {"whitespace_pattern": r"(\x20|\n\x20{0,24})"}
"""JSON on one line or indented. Without a bound a weak model may write white space for ever."""


def schema_text(
    schema: Mapping[str, Any] | bool, param: str, spacing: Mapping[str, Any], *, lenient: bool
) -> str:
    """A schema as `Grammar.text` or a part of one.

    Args:
        schema: JSON Schema.
        param: where it stands in the request.
        spacing: `ONE_LINE` or `READABLE`.
        lenient: ignore keywords that cannot be enforced; else they are refused when it is compiled.

    Raises:
        InvalidRequestError: it is nested too deeply.
    """
    whole = {"not": {}} if schema is False else {} if schema is True else dict(schema)
    whole["x-guidance"] = {**spacing, "lenient": lenient}
    try:
        return json.dumps(whole, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequestError(f"{param} is nested too deeply", param=param) from None


def json_schema(schema: Mapping[str, Any], param: str, *, lenient: bool) -> Grammar:
    """Answers that are JSON and valid against `schema`; arguments as for `schema_text`."""
    text = schema_text(schema, param, READABLE, lenient=lenient)
    return Grammar(GrammarKind.JSON_SCHEMA, text, param, (SchemaPart(param, text),))


def json_object(param: str) -> Grammar:
    """Answers that are some JSON object."""
    return json_schema({"type": "object"}, param, lenient=False)


def choice(options: Sequence[str], param: str) -> Grammar:
    """Answers that are one of `options`, to the letter.

    Raises:
        InvalidRequestError: none is given, or one is empty.
    """
    if not options or not all(options):
        raise InvalidRequestError(
            f"{param} must have at least one option, and none may be empty", param=param
        )
    alternatives = " | ".join(literal(option) for option in options)
    return Grammar(GrammarKind.LARK, f"start: {alternatives}", param)


def literal(text: str) -> str:
    """`text` as a terminal of a Lark grammar."""
    return json.dumps(text, ensure_ascii=False)
