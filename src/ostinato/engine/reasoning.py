"""What a request needs so that its answer may think first; the reading of answers is `models.reasoning`'s."""

from __future__ import annotations

from dataclasses import replace

from ostinato.engine.grammar.spec import Grammar, ReasonedGrammar, TriggeredGrammar
from ostinato.engine.sampling_params import SamplingParams
from ostinato.models.reasoning.syntax import Reasoning


def allow_reasoning(params: SamplingParams, reasoning: Reasoning | None) -> SamplingParams:
    """`params` under which an answer may think: the marks are shown, and no grammar binds a thought."""
    if reasoning is None or params.max_tokens == 0:
        return params
    grammar = params.grammar
    if isinstance(grammar, Grammar | TriggeredGrammar):
        grammar = ReasonedGrammar(reasoning, grammar)
    marks = (reasoning.syntax.opening, reasoning.syntax.closing)
    shown = (*params.shown_special_tokens, *marks)
    return replace(params, grammar=grammar, shown_special_tokens=shown)
