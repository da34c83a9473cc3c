"""Guards what a grammar allows: for each way of asking, texts that must be possible, token by token, and texts
that must not; and that what cannot be compiled is refused with the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.engine.grammar.compiler import MAX_CACHED, GrammarCompiler
from ostinato.engine.grammar.spec import (
    Grammar,
    GrammarKind,
    GrammarSpec,
    Trigger,
    TriggeredGrammar,
    choice,
    json_object,
    json_schema,
)
from ostinato.engine.grammar.tools import (
    FunctionSchema,
    calls_or_json,
    optional_calls,
    required_calls,
)
from ostinato.engine.grammar.vocabulary import GrammarVocabulary
from ostinato.errors import InvalidRequestError
from ostinato.models.tokenizer import Tokenizer
from ostinato.models.tools.syntax import SYNTAXES, ToolCallStyle
from tests.tiny import tiny_tokenizer_json

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = (
    FunctionSchema("get_weather", CITY, "tools[0].function.parameters"),
    FunctionSchema("stop", None, "tools[1].function.parameters"),
)
HERMES = SYNTAXES[ToolCallStyle.HERMES]
LLAMA = SYNTAXES[ToolCallStyle.LLAMA]
MISTRAL = SYNTAXES[ToolCallStyle.MISTRAL]
WEATHER = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
STOP = '{"name": "stop", "arguments": {}}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(
        json.dumps(tiny_tokenizer_json()), bos_token_id=None, eos_token_ids=()
    )


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(GrammarVocabulary(tokenizer))


class Written:
    """How far a text gets: `rest` is what the grammar does not allow."""

    def __init__(
        self, compiler: GrammarCompiler, tokenizer: Tokenizer, spec: GrammarSpec, text: str
    ):
        matcher = compiler.matcher(spec)
        token_ids = tokenizer.encode(text)
        self.num_constrained = 0
        self.rest = ""
        for at, token_id in enumerate(token_ids):
            if matcher.constrains:
                self.num_constrained += 1
            refused = matcher.constrains and not matcher.allowed(tokenizer.vocab_size)[token_id]
            if refused or matcher.is_finished:
                self.rest = tokenizer.decode(token_ids[at:])
                return
            matcher.accept(token_id)
        self.is_finished = matcher.is_finished
        end = min(tokenizer.eos_token_ids)
        allowed = matcher.allowed(tokenizer.vocab_size) if matcher.constrains else None
        self.may_end = allowed is None or bool(allowed[end])


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (json_schema(CITY, "s", lenient=False), '{"city": "Oslo \\n é"}'),
        (json_schema(CITY, "s", lenient=False), '{\n  "city": "Oslo"\n}'),
        (json_schema(CITY, "s", lenient=False), '{"city":"Oslo"}'),
        (json_object("s"), '{"any": [1, {"thing": null}]}'),
        (choice(["yes", 'a "no"\n'], "s"), 'a "no"\n'),
        (Grammar(GrammarKind.REGEX, "[0-9]{3}-[a-z]+", "s"), "123-abc"),
        (Grammar(GrammarKind.LARK, 'start: "a" b\nb: /[bc]*/', "s"), "abcb"),
        (required_calls(HERMES, FUNCTIONS, None), f"<tool_call>\n{WEATHER}\n</tool_call>"),
        (
            required_calls(HERMES, FUNCTIONS, None),
            f"<tool_call>\n{STOP}\n</tool_call>\n<tool_call>\n{WEATHER}\n</tool_call>",
        ),
        (required_calls(LLAMA, FUNCTIONS, None), WEATHER.replace("arguments", "parameters")),
        (required_calls(MISTRAL, FUNCTIONS, 2), f"[TOOL_CALLS] [{STOP}, {WEATHER}]"),
        (
            calls_or_json(HERMES, FUNCTIONS, None, json_schema(CITY, "s", lenient=False)),
            '{"city": "Oslo"}',
        ),
        (
            calls_or_json(HERMES, FUNCTIONS, None, json_schema(CITY, "s", lenient=False)),
            f"<tool_call>\n{STOP}\n</tool_call>",
        ),
    ],
)
def test_an_answer_of_the_wanted_form_is_possible_and_may_end_there(
    compiler: GrammarCompiler, tokenizer: Tokenizer, spec: GrammarSpec, text: str
) -> None:
    written = Written(compiler, tokenizer, spec, text)
    assert written.rest == ""
    assert written.is_finished or written.may_end


@pytest.mark.parametrize(
    ("spec", "possible", "impossible"),
    [
        (json_schema(CITY, "s", lenient=False), '{"', 'town": "Oslo"}'),
        (json_schema(CITY, "s", lenient=False), '{"city": "Oslo"}', " and more"),
        (json_object("s"), "", "[1]"),
        (choice(["yes", "no"], "s"), "n", "ay"),
        (required_calls(HERMES, FUNCTIONS, None), "", "Hello"),
        (
            required_calls(HERMES, FUNCTIONS, 1),
            f"<tool_call>\n{STOP}\n</tool_call>",
            "\n<tool_call>",
        ),
        (required_calls(HERMES, FUNCTIONS, None), '<tool_call>\n{"name": "', "delete"),
        (required_calls(MISTRAL, FUNCTIONS, 1), f"[TOOL_CALLS] [{STOP}", ", "),
    ],
)
def test_any_other_answer_is_impossible_from_where_it_differs(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    spec: GrammarSpec,
    possible: str,
    impossible: str,
) -> None:
    rest = Written(compiler, tokenizer, spec, possible + impossible).rest
    assert rest
    assert impossible.endswith(rest)


def test_an_answer_may_not_end_before_its_form_is_complete(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = json_schema(CITY, "s", lenient=False)
    assert not Written(compiler, tokenizer, spec, '{"city": "Oslo"').may_end


def test_free_text_is_not_constrained_until_a_call_is_opened(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = optional_calls(HERMES, FUNCTIONS, None)
    assert (
        Written(compiler, tokenizer, spec, "The <tool> is here. {} <tool_cal").num_constrained == 0
    )
    called = f"I look.\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>{STOP}</tool_call> done"
    written = Written(compiler, tokenizer, spec, called)
    assert (written.rest, written.may_end) == ("", True)
    assert written.num_constrained > len(tokenizer.encode(WEATHER))
    broken = Written(compiler, tokenizer, spec, 'x<tool_call>{"name": "delete"')
    assert broken.rest == 'delete"'


def test_a_bare_call_at_the_start_is_held_to_its_schema_and_elsewhere_is_text(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = optional_calls(HERMES, FUNCTIONS, None)
    broken = WEATHER.replace("city", "town")
    assert Written(compiler, tokenizer, spec, broken).rest.startswith("t")
    assert Written(compiler, tokenizer, spec, f"See: {broken}").rest == ""
    assert Written(compiler, tokenizer, spec, '{"name": "a service"}').num_constrained == 0


def test_without_parallel_calls_the_answer_ends_behind_the_first(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = optional_calls(HERMES, FUNCTIONS, 1)
    written = Written(compiler, tokenizer, spec, f"<tool_call>\n{STOP}\n</tool_call>")
    assert written.is_finished


def test_a_trigger_that_ends_inside_a_token_hands_the_rest_to_its_grammar(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    ing = tokenizer.token_id("ing")
    assert ing is not None
    digits = Grammar(GrammarKind.REGEX, "ng[0-9]", "s")
    matcher = compiler.matcher(TriggeredGrammar((Trigger("ri", digits),)))
    for token_id in (*tokenizer.encode("xr"), ing):
        matcher.accept(token_id)
    assert matcher.constrains
    assert matcher.allowed(tokenizer.vocab_size)[tokenizer.encode("7")[0]]
    other = compiler.matcher(
        TriggeredGrammar((Trigger("ri", Grammar(GrammarKind.REGEX, "x", "s")),))
    )
    for token_id in (*tokenizer.encode("xr"), ing):
        other.accept(token_id)
    assert not other.constrains


def _schema(inner: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "array", "items": inner}}}


@pytest.mark.parametrize(
    ("spec", "param", "words"),
    [
        (
            json_schema(_schema({"type": "strin"}), "s", lenient=False),
            "s.properties.a.items",
            "strin",
        ),
        (
            json_schema({"anyOf": [{"type": "string"}, {"pattern": "("}]}, "s", lenient=False),
            "s.anyOf[1]",
            "regex",
        ),
        (json_schema(_schema({"not": {}}), "s", lenient=False), "s.properties.a.items", "not"),
        (json_schema({"$ref": "#/$defs/none"}, "s", lenient=False), "s", "none"),
        (json_schema({"type": "array", "items": 5}, "s", lenient=False), "s.items", "object"),  # type: ignore[arg-type,unused-ignore]
        (Grammar(GrammarKind.REGEX, "(a", "r"), "r", "unclosed"),
        (Grammar(GrammarKind.LARK, "start: nothing", "g"), "g", "nothing"),
        (
            required_calls(
                HERMES, [FUNCTIONS[0], FunctionSchema("f", _schema({"type": 3}), "t[1].p")], None
            ),
            "t[1].p.properties.a.items",
            "",
        ),
    ],
)
def test_what_cannot_be_compiled_is_refused_and_named(
    compiler: GrammarCompiler, spec: GrammarSpec, param: str, words: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        compiler.compile(spec)
    assert refusal.value.param == param
    assert param in str(refusal.value)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_keywords_that_cannot_be_enforced_are_left_out_where_that_is_allowed(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    lenient = json_schema({"type": "integer", "not": {"const": 3}}, "s", lenient=True)
    assert Written(compiler, tokenizer, lenient, "3").may_end


def test_a_grammar_is_compiled_once_and_the_oldest_are_forgotten(
    compiler: GrammarCompiler,
) -> None:
    first = choice(["first"], "s")
    compiler.compile(first)
    for number in range(MAX_CACHED):
        compiler.compile(choice([f"option {number}"], "s"))
    assert len(compiler._compiled) == MAX_CACHED
    assert first not in compiler._compiled


def test_matchers_of_one_grammar_do_not_disturb_each_other(
    compiler: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    spec = choice(["ab", "cd"], "s")
    one, two = compiler.matcher(spec), compiler.matcher(spec)
    for token_id in tokenizer.encode("ab"):
        one.accept(token_id)
    assert one.is_finished
    assert not two.is_finished
    assert two.allowed(tokenizer.vocab_size)[tokenizer.encode("c")[0]]


def test_a_vocabulary_is_built_when_it_is_needed_and_once(tmp_path: Path) -> None:
    class Source:
        vocab_size = 3
        bos_token_id = None
        eos_token_ids = frozenset({2})
        reads = 0

        def token_bytes(self, token_id: int) -> bytes:
            Source.reads += 1
            return (b"a", b"b", b"<end>")[token_id]

        def is_special(self, token_id: int) -> bool:
            return token_id == 2

        def encode(self, text: str) -> list[int]:
            return ["ab".index(character) for character in text]

    vocabulary = GrammarVocabulary(Source())
    assert Source.reads == 0
    compiler = GrammarCompiler(vocabulary)
    matcher = compiler.matcher(Grammar(GrammarKind.REGEX, "ab*", "s"))
    assert matcher.allowed(5).tolist() == [True, False, False, False, False]
    matcher.accept(0)
    assert matcher.allowed(5).tolist() == [False, True, True, False, False]
    assert vocabulary.tokenizer is vocabulary.tokenizer
    assert Source.reads == 3
