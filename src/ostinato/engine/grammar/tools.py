"""Grammars that make tool calls sound: a declared name, arguments that are valid against the tool's schema.

Calls are written exactly as the model's chat template will write them when they come back as history. So the
next turn's prompt begins with the very tokens that were generated, and its prefix is in the cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.engine.grammar.spec import (
    ONE_LINE,
    Grammar,
    GrammarKind,
    SchemaPart,
    Trigger,
    TriggeredGrammar,
    literal,
    schema_text,
)
from ostinato.models.tools.syntax import ToolCallSyntax

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:-]+")


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """What a grammar must know of a tool.

    Attributes:
        name: as the model has to write it.
        parameters: JSON schema of the arguments; without one there are none.
        param: where `parameters` stands in the request, for errors.
        strict: refuse a schema that cannot be enforced in full; else as much of it as can be is.
    """

    name: str
    parameters: Mapping[str, Any] | None
    param: str
    strict: bool = False


def required_calls(
    syntax: ToolCallSyntax, functions: Sequence[FunctionSchema], max_calls: int | None
) -> Grammar:
    """Answers that are calls and nothing else: at least one, at most `max_calls`."""
    parts = [_part(function) for function in functions]
    rules = [f"start: {_calls(syntax, max_calls)}", *_call_rules(syntax, functions, parts)]
    return Grammar(GrammarKind.LARK, "\n".join(rules), "tools", tuple(parts))


def calls_or_json(
    syntax: ToolCallSyntax,
    functions: Sequence[FunctionSchema],
    max_calls: int | None,
    answer: Grammar,
) -> Grammar:
    """Answers that are either calls and nothing else, or JSON as `answer` has it."""
    parts = [_part(function) for function in functions]
    rules = [
        f"start: ({_calls(syntax, max_calls)}) | answer",
        f"answer: %json {answer.text}",
        *_call_rules(syntax, functions, parts),
    ]
    schemas = (*answer.schemas, *parts)
    return Grammar(GrammarKind.LARK, "\n".join(rules), answer.param, schemas)


def _calls(syntax: ToolCallSyntax, max_calls: int | None) -> str:
    """One call or several, with their marks."""
    one = "call"
    if syntax.writes_mark and not syntax.lists_calls:
        one = f"{literal(syntax.opening + syntax.lead)} call {_closing(syntax)}".strip()
    calls = f"{one} {_more(syntax, one, max_calls)}"
    if syntax.lists_calls:
        return f"{literal(syntax.opening + syntax.lead)} {calls} {_closing(syntax)}"
    return calls


def optional_calls(
    syntax: ToolCallSyntax, functions: Sequence[FunctionSchema], max_calls: int | None
) -> TriggeredGrammar:
    """Free answers in which every call, once it is opened, is sound; at most `max_calls` of them."""
    parts = [_part(function) for function in functions]
    rules = _call_rules(syntax, functions, parts)
    body = f"call {_more(syntax, 'call', max_calls)}" if syntax.lists_calls else "call"
    start = f"start: {_space(syntax.lead)} {body} {_space(syntax.trail)} {_end(syntax.closing)}"
    marked = Grammar(GrammarKind.LARK, "\n".join([start, *rules]), "tools", tuple(parts))
    triggers = [Trigger(syntax.opening, marked)]
    if syntax.allows_bare:
        triggers += [
            _bare(syntax, function, part) for function, part in zip(functions, parts, strict=True)
        ]
    matches = 1 if syntax.lists_calls and max_calls is not None else max_calls
    return TriggeredGrammar(tuple(triggers), matches)


def no_calls(syntax: ToolCallSyntax, functions: Sequence[FunctionSchema]) -> Grammar:
    """Free answers that open no call: neither with the mark nor, where the style has those, with the first
    members of a call at the answer's start."""
    opened = rf"(.|\n)*{_pattern(syntax.opening)}(.|\n)*"
    calls = [f"/{opened}/"]
    names = [function.name for function in functions if _PLAIN_NAME.fullmatch(function.name)]
    if syntax.allows_bare and names:
        members = [
            rf'"name"\s*:\s*"({"|".join(map(_pattern, names))})"',
            rf'"{syntax.arguments_key}"\s*:',
        ]
        head = r"\s*,\s*".join(members)
        calls.append(rf"/\s*(```(json)?\s*)?\{{\s*{head}(.|\n)*/")
    rules = ["start: TEXT", rf"TEXT: /(.|\n)*/ & ~({' | '.join(calls)})"]
    # Without the intersection the engine does not see that nothing can come of a forbidden text.
    return Grammar(GrammarKind.LARK, "\n".join(rules), "tools")


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def _bare(syntax: ToolCallSyntax, function: FunctionSchema, part: SchemaPart) -> Trigger:
    """A call without marks is known as one by its first member."""
    rules = ['start: " "? arguments "}"', f"arguments: %json {part.schema}"]
    grammar = Grammar(GrammarKind.LARK, "\n".join(rules), part.param, (part,))
    return Trigger(syntax.head(_json(function.name)), grammar, at_start=True)


def _call_rules(
    syntax: ToolCallSyntax, functions: Sequence[FunctionSchema], parts: Sequence[SchemaPart]
) -> list[str]:
    names = " | ".join(f"call_{i}" for i in range(len(functions)))
    rules = [f"call: {names}"]
    for i, (function, part) in enumerate(zip(functions, parts, strict=True)):
        head = syntax.head(_json(function.name)) + " "
        rules.append(f'call_{i}: {literal(head)} arguments_{i} "}}"')
        rules.append(f"arguments_{i}: %json {part.schema}")
    return rules


def _part(function: FunctionSchema) -> SchemaPart:
    """The arguments are always an object, whatever their schema leaves open."""
    schema = dict(function.parameters or {"properties": {}, "additionalProperties": False})
    schema.setdefault("type", "object")
    text = schema_text(schema, function.param, ONE_LINE, lenient=not function.strict)
    return SchemaPart(function.param, text)


def _closing(syntax: ToolCallSyntax) -> str:
    mark = syntax.trail + syntax.closing
    return literal(mark) if mark else ""


def _space(text: str) -> str:
    """A model may leave out the white space around a call."""
    if not text:
        return ""
    stripped = text.strip()
    if not stripped:
        return f"({literal(text)})?"
    return f'" "? {literal(stripped)}'


def _end(text: str) -> str:
    return literal(text) if text else ""


def _more(syntax: ToolCallSyntax, one: str, max_calls: int | None) -> str:
    """The calls behind the first."""
    if syntax.calls_once or max_calls == 1:
        return ""
    times = "*" if max_calls is None else f"{{0,{max_calls - 1}}}"
    return f"({literal(syntax.separator)} {one}){times}"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
