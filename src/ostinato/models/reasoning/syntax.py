"""How models write what they think before they answer.

    <think>⏎…⏎</think>⏎⏎answer      Qwen 3, QwQ, DeepSeek R1, SmolLM3, GLM, MiniMax, Nemotron, Kimi, …

Some templates end the prompt with the opening mark, so that the answer begins inside a thought; others leave it
to the model to write it, and where thinking is switched off they write a thought that is already over.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The marks around a thought."""

    opening: str
    closing: str


THINK = ReasoningSyntax("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How answers to one prompt think.

    Attributes:
        syntax: of the model.
        is_open: the prompt ends inside a thought; else an answer may begin with one.
    """

    syntax: ReasoningSyntax
    is_open: bool


def detect_reasoning(template_source: str) -> ReasoningSyntax | None:
    """The marks that a chat template writes or looks for; None if it knows of no thoughts."""
    is_known = THINK.opening in template_source and THINK.closing in template_source
    return THINK if is_known else None


def choose_reasoning(setting: str, template_source: str | None) -> ReasoningSyntax | None:
    """What the setting ``reasoning_parser`` means for a model.

    Args:
        setting: ``auto``, ``none`` or ``think``.
        template_source: the model's chat template; None without one.

    Raises:
        ValueError: no such setting.
    """
    if setting == "none":
        return None
    if setting == "think":
        return THINK
    if setting != "auto":
        raise ValueError(f"reasoning_parser must be auto, none or think, not {setting!r}")
    return None if template_source is None else detect_reasoning(template_source)


def reasoning_of(syntax: ReasoningSyntax | None, prompt_end: str) -> Reasoning | None:
    """How answers to a rendered prompt think; None if they do not.

    Args:
        syntax: of the model.
        prompt_end: the last characters of what the template wrote. What clients wrote never ends a prompt that
            asks for an answer: the mark that opens the model's turn stands behind it.
    """
    if syntax is None:
        return None
    end = prompt_end.rstrip()
    if end.endswith(syntax.closing):
        return None
    return Reasoning(syntax, is_open=end.endswith(syntax.opening))
