"""Guards thoughts under a grammar: a thought is free, what follows it is bound, and an answer that does not
think is bound from its first token; and that no call is opened where none is allowed."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from ostinato.engine.grammar.compiler import GrammarCompiler
from ostinato.engine.grammar.matcher import TokenMatcher
from ostinato.engine.grammar.spec import (
    Grammar,
    GrammarKind,
    GrammarSpec,
    ReasonedGrammar,
    json_object,
)
from ostinato.engine.grammar.tools import (
    FunctionSchema,
    no_calls,
    optional_calls,
    required_calls,
)
from ostinato.engine.grammar.vocabulary import GrammarVocabulary
from ostinato.engine.sampling_params import SamplingParams
from ostinato.models.reasoning.syntax import THINK, Reasoning
from ostinato.models.tokenizer import Tokenizer
from ostinato.models.tools.syntax import SYNTAXES, ToolCallStyle
from tests.tiny import tiny_tokenizer_json

HERMES, LLAMA = SYNTAXES[ToolCallStyle.HERMES], SYNTAXES[ToolCallStyle.LLAMA]
STOP = (FunctionSchema("stop", None, "tools[0].function.parameters"),)
CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
OBJECT = json_object("response_format")
MAY, OPEN = Reasoning(THINK, is_open=False), Reasoning(THINK, is_open=True)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(
        json.dumps(tiny_tokenizer_json()), bos_token_id=None, eos_token_ids=()
    )


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(GrammarVocabulary(tokenizer))


def refused_at(matcher: TokenMatcher, token_ids: Sequence[int], vocab_size: int) -> int | None:
    """The first token that may not be generated; None if all may."""
    for at, token_id in enumerate(token_ids):
        if matcher.constrains and not matcher.allowed(vocab_size)[token_id]:
            return at
        matcher.accept(token_id)
    return None


def may_write(
    compiler: GrammarCompiler, tokenizer: Tokenizer, spec: GrammarSpec, text: str
) -> bool:
    """Whether a text may be generated, in the tokenizer's own tokens."""
    token_ids = tokenizer.encode(text)
    return refused_at(compiler.matcher(spec), token_ids, tokenizer.vocab_size) is None


@pytest.mark.parametrize(
    ("reasoning", "text", "expected"),
    [
        (MAY, '{"a": 1}', True),
        (MAY, "So", False),
        (MAY, '<think>\nSo <b> {"x</think>{"a": 1}', True),
        (MAY, '<think>So</think>\n\n{"a": 1}', True),
        (MAY, "<think>So</think>\n\nThree", False),
        (MAY, '<think>So</think>\n \n{"a": 1}', False),
        (MAY, "<thx", False),
        (OPEN, 'So {</think>\n{"a": 1}', True),
        (OPEN, "So</think>So", False),
    ],
)
def test_json_is_bound_and_the_thought_before_it_is_free(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    reasoning: Reasoning,
    text: str,
    expected: bool,
) -> None:
    spec = ReasonedGrammar(reasoning, OBJECT)
    assert may_write(compiler, tokenizer, spec, text) is expected


def test_a_required_call_and_a_thought_begin_alike_and_both_are_allowed(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = ReasonedGrammar(MAY, required_calls(HERMES, STOP, 1))
    assert may_write(compiler, tokenizer, spec, CALL)
    assert may_write(compiler, tokenizer, spec, f"<think>\nhm <tool_call>x</think>\n\n{CALL}")
    assert not may_write(compiler, tokenizer, spec, "<think>\nhm</think>\n\nNo.")
    assert not may_write(compiler, tokenizer, spec, "<tx")


def test_a_mark_inside_a_thought_opens_no_call(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = ReasonedGrammar(MAY, optional_calls(HERMES, STOP, None))
    assert may_write(compiler, tokenizer, spec, "<think>a <tool_call> is</think>\n\nok")
    assert not may_write(compiler, tokenizer, spec, "<think>a</think>\n\n<tool_call>x")
    assert may_write(compiler, tokenizer, spec, f"<think>a</think>\n\n{CALL}")
    bare = '{"name": "stop", "arguments": {}}'
    assert may_write(compiler, tokenizer, spec, f"<think>a</think>\n\n{bare}")
    assert not may_write(compiler, tokenizer, spec, f"<think>a</think>\n\n{bare[:-2]}x")


def test_an_answer_is_over_where_its_grammar_is_and_never_in_a_thought(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    form = Grammar(GrammarKind.REGEX, "ab", "c")
    matcher = compiler.matcher(ReasonedGrammar(MAY, form))
    for token_id in tokenizer.encode("<think>ab</think>"):
        assert not matcher.is_finished
        matcher.accept(token_id)
    for token_id in b"ab":
        assert not matcher.is_finished
        assert matcher.allowed(tokenizer.vocab_size)[token_id]
        matcher.accept(token_id)
    assert matcher.is_finished


def test_params_take_a_grammar_that_thinks() -> None:
    assert SamplingParams(grammar=ReasonedGrammar(OPEN, OBJECT)).grammar is not None


@pytest.mark.parametrize(
    ("style", "text", "expected"),
    [
        (ToolCallStyle.HERMES, "Well, <tool_cal", True),
        (ToolCallStyle.HERMES, "Well, <tool_call>", False),
        (ToolCallStyle.HERMES, "<tool_call>", False),
        (ToolCallStyle.HERMES, "a <tool_cat> and\n\n<b>", True),
        (ToolCallStyle.HERMES, '{"name": "stop", "arguments"', True),
        (ToolCallStyle.HERMES, '{"name": "stop", "arguments":', False),
        (ToolCallStyle.HERMES, '```json\n{ "name":"stop","arguments":', False),
        (ToolCallStyle.HERMES, '{"name": "go", "arguments": {}}', True),
        (ToolCallStyle.HERMES, 'I: {"name": "stop", "arguments": {}}', True),
        (ToolCallStyle.LLAMA, "<|python_tag|>", False),
        (ToolCallStyle.LLAMA, '{"name": "stop", "parameters":', False),
        (ToolCallStyle.MISTRAL, "so [TOOL_CALLS]", False),
        (ToolCallStyle.MISTRAL, '{"name": "stop", "arguments": {}}', True),
    ],
)
def test_no_call_is_opened_where_none_is_allowed(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    style: ToolCallStyle,
    text: str,
    expected: bool,
) -> None:
    spec = no_calls(SYNTAXES[style], STOP)
    assert may_write(compiler, tokenizer, spec, text) is expected


def test_a_name_that_is_no_plain_word_breaks_no_pattern(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    strange = (FunctionSchema('a/b"(', None, "p"), FunctionSchema("crm.list", None, "p"))
    spec = no_calls(HERMES, strange)
    assert may_write(compiler, tokenizer, spec, "fine / (")
    assert not may_write(compiler, tokenizer, spec, '{"name": "crm.list", "arguments":')
    assert may_write(compiler, tokenizer, spec, '{"name": "crmxlist", "arguments":')


def test_an_answer_without_calls_may_end_anywhere(
    tokenizer: Tokenizer,
) -> None:
    end = tokenizer.encode("<|im_end|>")[0]
    ends = Tokenizer.from_json(
        json.dumps(tiny_tokenizer_json()), bos_token_id=None, eos_token_ids=(end,)
    )
    matcher = GrammarCompiler(GrammarVocabulary(ends)).matcher(no_calls(HERMES, STOP))
    for token_id in b"ok <tool_call":
        allowed = matcher.allowed(ends.vocab_size)
        assert allowed[end]
        assert np.count_nonzero(allowed) > 200
        matcher.accept(token_id)
    assert not matcher.allowed(ends.vocab_size)[ord(">")]
