"""Structured output: what a request says of its answers' form, as a `Grammar`.

OpenAI's ``response_format``; vLLM's ``structured_outputs`` and its older ``guided_*`` fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.api.unsupported import unsupported
from ostinato.engine.grammar.spec import (
    Grammar,
    GrammarKind,
    choice,
    json_object,
    json_schema,
)
from ostinato.errors import InvalidRequestError

MAX_GRAMMAR_CHARACTERS = 256 * 1024
MAX_OPTIONS = 10_000


def response_format(
    value: Mapping[str, Any] | None, param: str = "response_format"
) -> Grammar | None:
    """What OpenAI's field of that name asks for; None for plain text.

    Args:
        value: as sent.
        param: its name, for errors.

    Raises:
        InvalidRequestError: it is malformed.
    """
    kind = None if value is None else value.get("type")
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return json_object(param)
    if kind != "json_schema":
        raise InvalidRequestError(
            f"{param}.type must be 'text', 'json_object' or 'json_schema', not {str(kind)[:40]!r}",
            param=f"{param}.type",
        )
    wrapper = value.get("json_schema")
    where = f"{param}.json_schema"
    if not isinstance(wrapper, Mapping):
        raise InvalidRequestError(f"{where} must be an object with a schema", param=where)
    return schema_format(
        wrapper.get("schema"), f"{where}.schema", is_strict=wrapper.get("strict") is True
    )


def schema_format(schema: Any, param: str, *, is_strict: bool) -> Grammar:
    """Answers that are valid against a schema.

    Args:
        schema: as sent.
        param: its name, for errors.
        is_strict: refuse what cannot be enforced; else as much of it as can be is.

    Raises:
        InvalidRequestError: it is no object.
    """
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(f"{param} must be a JSON schema, an object", param=param)
    return json_schema(schema, param, lenient=not is_strict)


def structured_outputs(
    value: Mapping[str, Any] | None, param: str = "structured_outputs"
) -> Grammar | None:
    """What vLLM's field of that name asks for: exactly one of json, json_object, regex, choice, grammar.

    Raises:
        InvalidRequestError: it is malformed.
    """
    if not value:
        return None
    given = {name: part for name, part in value.items() if part not in (None, False)}
    kinds = ("json", "json_object", "regex", "choice", "grammar")
    for name in given.keys() - kinds:
        raise unsupported(f"{param}.{name}")
    if len(given) != 1:
        raise InvalidRequestError(
            f"{param} must have exactly one of {', '.join(kinds)}", param=param
        )
    [(name, part)] = given.items()
    if name == "json_object":
        return json_object(f"{param}.{name}")
    return _constraint(name, part, f"{param}.{name}")


def guided(fields: Mapping[str, Any]) -> list[Grammar]:
    """What vLLM's older ``guided_json``, ``guided_regex``, ``guided_choice`` and ``guided_grammar`` ask for.

    Raises:
        InvalidRequestError: one is malformed.
    """
    return [
        _constraint(name.removeprefix("guided_"), value, name)
        for name, value in fields.items()
        if value is not None
    ]


def only_one(grammars: Sequence[Grammar | None]) -> Grammar | None:
    """The form that is asked for, if any is.

    Raises:
        InvalidRequestError: several are.
    """
    given = [grammar for grammar in grammars if grammar is not None]
    if len(given) > 1:
        names = " and ".join(grammar.param for grammar in given)
        raise InvalidRequestError(
            f"an answer has one form: send only one of {names}", param=given[1].param
        )
    return given[0] if given else None


def _constraint(kind: str, value: Any, param: str) -> Grammar:
    if kind == "json":
        return schema_format(value, param, is_strict=False)
    if kind == "choice":
        is_texts = isinstance(value, list) and all(isinstance(option, str) for option in value)
        if not is_texts or len(value) > MAX_OPTIONS:
            raise InvalidRequestError(
                f"{param} must be a list of at most {MAX_OPTIONS:,} strings", param=param
            )
        return choice(value, param)
    if not isinstance(value, str) or not value or len(value) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequestError(
            f"{param} must be a text of at most {MAX_GRAMMAR_CHARACTERS:,} characters", param=param
        )
    return Grammar(GrammarKind.REGEX if kind == "regex" else GrammarKind.LARK, value, param)
