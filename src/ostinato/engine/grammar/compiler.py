"""From a `GrammarSpec` to a `TokenMatcher`. What cannot be compiled is refused, naming the place."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.engine.grammar.matcher import (
    CompiledTrigger,
    TokenMatcher,
    TriggeredMatcher,
    WholeMatcher,
)
from ostinato.engine.grammar.reasoning_matcher import ReasoningMatcher
from ostinato.engine.grammar.schema_errors import find_schema_error
from ostinato.engine.grammar.spec import (
    Grammar,
    GrammarKind,
    GrammarSpec,
    ReasonedGrammar,
    TriggeredGrammar,
)
from ostinato.engine.grammar.vocabulary import GrammarVocabulary
from ostinato.errors import InvalidRequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_CACHED = 128
"""Compiled grammars that are kept: a server sees the same few again and again."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What the matchers of a specification are copied from; one prototype for each of its grammars."""

    spec: Grammar | TriggeredGrammar
    prototypes: tuple[LLMatcher, ...]


class GrammarCompiler:
    """Compiles and remembers. Thread-safe; the work is done with the interpreter's lock released.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiled: OrderedDict[Grammar | TriggeredGrammar, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, spec: GrammarSpec) -> None:
        """Make `spec` ready, so that `matcher` need not; milliseconds, the first time in a process a second.

        Raises:
            InvalidRequestError: it is no valid grammar; `param` is the field it came in.
        """
        self._get(spec.grammar if isinstance(spec, ReasonedGrammar) else spec)

    def matcher(self, spec: GrammarSpec) -> TokenMatcher:
        """A new matcher at the grammar's start.

        Raises:
            InvalidRequestError: see `compile`.
        """
        if not isinstance(spec, ReasonedGrammar):
            return self._new_matcher(self._get(spec))
        compiled = self._get(spec.grammar)
        return ReasoningMatcher(
            self._vocabulary.reasoning_tokens(spec.reasoning.syntax),
            lambda: self._new_matcher(compiled),
            is_open=spec.reasoning.is_open,
        )

    def _new_matcher(self, compiled: _Compiled) -> TokenMatcher:
        spec, tokenizer = compiled.spec, self._vocabulary.tokenizer
        with self._lock:  # a prototype is copied by one thread at a time
            copies = [prototype.deep_copy() for prototype in compiled.prototypes]
        if isinstance(spec, Grammar):
            return WholeMatcher(copies[0], tokenizer.vocab_size)
        triggers = [
            CompiledTrigger(trigger.text.encode(), prototype, trigger.at_start)
            for trigger, prototype in zip(spec.triggers, copies, strict=True)
        ]
        return TriggeredMatcher(triggers, tokenizer, spec.max_matches)

    def _get(self, spec: Grammar | TriggeredGrammar) -> _Compiled:
        with self._lock:
            if spec in self._compiled:
                self._compiled.move_to_end(spec)
                return self._compiled[spec]
        compiled = _Compiled(spec, tuple(self._prototype(grammar) for grammar in _grammars(spec)))
        with self._lock:
            self._compiled[spec] = compiled
            while len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        return compiled

    def _prototype(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        try:
            grammar.text.encode()  # llguidance calls it no JSON, whatever it is
            source = _source(grammar)
        except UnicodeEncodeError:  # JSON can smuggle in lone surrogates
            raise InvalidRequestError(
                f"{grammar.param} must be valid Unicode text, without lone surrogates",
                param=grammar.param,
            ) from None
        matcher = LLMatcher(self._vocabulary.tokenizer, source, log_level=0)
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        return matcher


def _grammars(spec: Grammar | TriggeredGrammar) -> tuple[Grammar, ...]:
    if isinstance(spec, TriggeredGrammar):
        return tuple(trigger.grammar for trigger in spec.triggers)
    return (spec,)


def _source(grammar: Grammar) -> str:
    """As llguidance takes it."""
    from llguidance import LLMatcher

    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return LLMatcher.grammar_from_json_schema(grammar.text)
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.text)
    return LLMatcher.grammar_from_lark(grammar.text)


def _refusal(grammar: Grammar, message: str) -> InvalidRequestError:
    for part in grammar.schemas:
        found = find_schema_error(part)
        if found is not None:
            return InvalidRequestError(
                f"{found.param} cannot be enforced: {_one_line(found.message)}", param=found.param
            )
    reason = _one_line(message.partition("<state>")[0])
    return InvalidRequestError(
        f"{grammar.param} is not a valid {grammar.kind.value}: {reason}", param=grammar.param
    )


def _one_line(message: str) -> str:
    return " ".join(message.split())
