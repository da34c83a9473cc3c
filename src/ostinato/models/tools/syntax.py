"""How families of models write tool calls.

    hermes    <tool_call>⏎{"name": "f", "arguments": {…}}⏎</tool_call>     Hermes, Qwen 2.5, Qwen 3, SmolLM3
    llama     {"name": "f", "parameters": {…}}, after <|python_tag|> or not  Llama 3.1 and later
    mistral   [TOOL_CALLS] [{"name": "f", "arguments": {…}}]               Mistral up to its third tokenizer

Which of them a model was trained on shows in its chat template, which has to write earlier calls the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class ToolCallStyle(StrEnum):
    """A way to write calls."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """One style in detail. Texts are as the families' chat templates write them, to the last space: what is
    generated so is, in the next turn's prompt, the same tokens again.

    Attributes:
        opening: the mark before a call, or before the list of calls; may stand anywhere in an answer.
        closing: the mark after it.
        lead: between `opening` and the call.
        trail: between the call and `closing`.
        separator: between two calls.
        arguments_key: name of the member that holds the arguments.
        lists_calls: one pair of marks holds all calls (True), or each call has its own (False).
        allows_bare: a call may also stand at the very start of an answer without any mark.
        writes_mark: whether the chat template writes the marks; else calls are written bare.
        calls_once: the template takes no more than one call a turn.
    """

    opening: str
    closing: str
    lead: str
    trail: str
    separator: str
    arguments_key: str
    lists_calls: bool
    allows_bare: bool
    writes_mark: bool
    calls_once: bool

    def head(self, name_json: str) -> str:
        """A call up to its arguments; `name_json` is the tool's name as a JSON string."""
        return f'{{"name": {name_json}, "{self.arguments_key}":'


SYNTAXES: dict[ToolCallStyle, ToolCallSyntax] = {
    ToolCallStyle.HERMES: ToolCallSyntax(
        opening="<tool_call>",
        closing="</tool_call>",
        lead="\n",
        trail="\n",
        separator="\n",
        arguments_key="arguments",
        lists_calls=False,
        allows_bare=True,
        writes_mark=True,
        calls_once=False,
    ),
    ToolCallStyle.LLAMA: ToolCallSyntax(
        opening="<|python_tag|>",
        closing="",
        lead="",
        trail="",
        separator="; ",
        arguments_key="parameters",
        lists_calls=False,
        allows_bare=True,
        writes_mark=False,
        calls_once=True,
    ),
    ToolCallStyle.MISTRAL: ToolCallSyntax(
        opening="[TOOL_CALLS]",
        closing="",
        lead=" [",
        trail="]",
        separator=", ",
        arguments_key="arguments",
        lists_calls=True,
        allows_bare=False,
        writes_mark=True,
        calls_once=False,
    ),
}

_UNREADABLE = ("<function=", "<parameter=", "[ARGS]", "<｜tool▁call")
"""Marks of styles that are not read here, some of which use the marks of those that are, too."""

_MARKS: tuple[tuple[ToolCallStyle, Callable[[str], bool]], ...] = (
    (ToolCallStyle.HERMES, lambda source: "<tool_call>" in source),
    (ToolCallStyle.MISTRAL, lambda source: "[TOOL_CALLS]" in source),
    (
        ToolCallStyle.LLAMA,
        lambda source: (
            "<|python_tag|>" in source
            or ('"parameters"' in source and "<|start_header_id|>" in source)
        ),
    ),
)


def detect_style(template_source: str) -> ToolCallStyle | None:
    """The style that a chat template writes; None if it writes no calls or in a way that is not read here."""
    if "tool_calls" not in template_source:
        return None
    if any(mark in template_source for mark in _UNREADABLE):
        return None
    for style, is_written in _MARKS:
        if is_written(template_source):
            return style
    return None


def choose_style(setting: str, template_source: str | None) -> ToolCallStyle | None:
    """What the setting ``tool_call_parser`` means for a model.

    Args:
        setting: ``auto``, ``none`` or the name of a style.
        template_source: the model's chat template; None without one.

    Raises:
        ValueError: no such style.
    """
    if setting == "none":
        return None
    if setting == "auto":
        return None if template_source is None else detect_style(template_source)
    return ToolCallStyle(setting)
