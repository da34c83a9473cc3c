"""Guards generation under a grammar in the engine: n answers, preemption, stops, sampling filters and penalties
never lead out of the grammar, an answer ends where its grammar does, and answers without one are untouched."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ostinato.engine.grammar.spec import (
    Grammar,
    GrammarKind,
    Trigger,
    TriggeredGrammar,
    choice,
    json_schema,
)
from ostinato.engine.outputs import FinishReason
from ostinato.engine.sampler import SamplerState, sample
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import GrammarError, GrammarFailedError, InvalidRequestError
from tests.engine.harness import EOS, VOCAB_SIZE, EchoTokenizer, Engine, expected_tokens

PATTERN = "(ab|cd){3}[xyz]{1,9}"
FORM = Grammar(GrammarKind.REGEX, PATTERN, "structured_outputs.regex")
PROMPT = [5, 6, 7]


def answer(engine: Engine, **params: Any) -> tuple[str, Any]:
    engine.add("r", PROMPT, **{"max_tokens": 40, "grammar": FORM, **params})
    collected = engine.run()["r", 0]
    engine.assert_idle()
    return EchoTokenizer().text(collected.tokens), collected


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 1},
        {"temperature": 5.0, "seed": 2, "top_k": 3},
        {"temperature": 1.0, "seed": 3, "top_p": 0.05},
        {"temperature": 1.0, "seed": 4, "min_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 50.0, "presence_penalty": 2.0},
        {"temperature": 1.0, "seed": 5, "logit_bias": {1: -100.0, 2: 100.0, 40: 100.0}},
        {"temperature": 0.0, "logprobs": 3},
    ],
)
def test_every_way_of_choosing_stays_inside_the_grammar(params: dict[str, Any]) -> None:
    text, _ = answer(Engine(), **params)
    assert re.fullmatch(PATTERN, text)


def test_an_answer_ends_where_nothing_more_may_follow_without_an_end_token() -> None:
    text, collected = answer(Engine(), grammar=choice(["ab"], "c"), ignore_eos=True)
    assert text == "ab"
    assert EOS not in collected.tokens
    assert collected.finish_reason is FinishReason.STOP


def test_the_end_may_be_chosen_only_when_the_form_is_complete() -> None:
    text, collected = answer(Engine(), logit_bias={EOS: 100.0})
    assert re.fullmatch("(ab|cd){3}[xyz]", text)
    assert collected.tokens[-1] == EOS


def test_min_tokens_makes_an_answer_longer_as_far_as_the_grammar_goes() -> None:
    text, _ = answer(Engine(), min_tokens=12, logit_bias={EOS: 100.0})
    assert len(text) >= 12
    short, _ = answer(Engine(), grammar=choice(["ab", "abc"], "c"), min_tokens=30)
    assert short == "abc"


def test_max_tokens_and_stop_strings_end_an_answer_inside_its_form() -> None:
    text, collected = answer(Engine(), max_tokens=3)
    assert len(text) == 3
    assert collected.finish_reason is FinishReason.LENGTH
    _, stopped = answer(Engine(), grammar=choice(["abcdef"], "c"), stop=("cd",))
    assert (stopped.text, stopped.finish_reason) == ("ab", FinishReason.STOP)


def test_each_of_n_answers_has_its_own_place_in_the_grammar() -> None:
    engine = Engine()
    engine.add("r", PROMPT, n=4, temperature=1.0, seed=7, max_tokens=40, grammar=FORM)
    answers = engine.run()
    texts = {EchoTokenizer().text(answers["r", index].tokens) for index in range(4)}
    assert len(texts) > 1
    assert all(re.fullmatch(PATTERN, text) for text in texts)
    engine.assert_idle()


def test_preemption_does_not_lose_the_place() -> None:
    alone, _ = answer(Engine(), temperature=1.0, seed=9)
    engine = Engine(num_blocks=8, block_size=4)
    for number in range(4):
        engine.add(
            f"r{number}", [number, 6, 7], temperature=1.0, seed=9, max_tokens=16, grammar=FORM
        )
    engine.add("r", PROMPT, temperature=1.0, seed=9, max_tokens=16, grammar=FORM)
    answers = engine.run()
    assert engine.core.stats().preemptions_total > 0
    texts = [EchoTokenizer().text(answers[f"r{n}", 0].tokens) for n in range(4)]
    assert all(re.fullmatch(PATTERN, text) for text in texts)
    assert EchoTokenizer().text(answers["r", 0].tokens) == alone


def test_answers_without_a_grammar_are_untouched_beside_one_with() -> None:
    engine = Engine()
    engine.add("free", PROMPT, max_tokens=20, temperature=0.0, ignore_eos=True)
    engine.add("bound", PROMPT, max_tokens=20, temperature=0.0, grammar=FORM)
    answers = engine.run()
    assert answers["free", 0].tokens == expected_tokens(PROMPT, 20, ignore_eos=True)
    assert re.fullmatch(PATTERN, EchoTokenizer().text(answers["bound", 0].tokens))


def test_a_free_answer_is_what_it_would_be_without_its_triggers() -> None:
    never = TriggeredGrammar((Trigger("@@@@", FORM),))
    _text, collected = answer(Engine(), grammar=never, temperature=0.0, ignore_eos=True)
    assert collected.tokens == expected_tokens(PROMPT, 40, ignore_eos=True)


def test_behind_a_trigger_the_answer_follows_its_grammar_and_is_free_again() -> None:
    free = expected_tokens(PROMPT, 1, ignore_eos=True)
    opening = EchoTokenizer().token_text(free[0])
    spec = TriggeredGrammar((Trigger(opening, choice(["xyz"], "c")),))
    text, _ = answer(Engine(), grammar=spec, temperature=0.0, max_tokens=12, ignore_eos=True)
    assert text.startswith(f"{opening}xyz")
    assert len(text) > 4
    once = TriggeredGrammar(spec.triggers, max_matches=1)
    text, _ = answer(Engine(), grammar=once, temperature=0.0, max_tokens=12)
    assert text == f"{opening}xyz"


def test_a_grammar_that_cannot_be_compiled_is_refused_before_anything_is_queued() -> None:
    engine = Engine()
    with pytest.raises(InvalidRequestError, match="unclosed"):
        engine.add("r", PROMPT, grammar=Grammar(GrammarKind.REGEX, "(", "g"))
    assert not engine.core.has_work
    assert not engine.core.is_unfinished("r")


class BrokenMatcher:
    """A grammar that has become too complex to follow."""

    constrains = True
    is_finished = False

    def allowed(self, vocab_size: int) -> Any:
        raise GrammarError("too complex")

    def accept(self, token_id: int) -> None:
        raise AssertionError("nothing can be chosen")


def test_a_grammar_that_fails_on_the_way_fails_its_own_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    engine.add("bad", PROMPT, max_tokens=4, grammar=FORM)
    engine.add("good", PROMPT, max_tokens=4, temperature=0.0, ignore_eos=True)
    engine.core._groups["bad"].answers[0].sampler._matcher = BrokenMatcher()
    answers = engine.run()
    assert answers["good", 0].tokens == expected_tokens(PROMPT, 4, ignore_eos=True)
    [failure] = engine.core.take_failures()
    assert failure.request_id == "bad"
    assert isinstance(failure.error, GrammarFailedError)
    assert "Traceback" not in caplog.text  # it is the request's fault
    engine.assert_idle()


def test_a_schema_with_a_lone_surrogate_is_refused_as_text_that_is_none() -> None:
    schema = json_schema({"const": "\ud800"}, "form", lenient=False)
    with pytest.raises(InvalidRequestError, match="form must be valid Unicode text"):
        Engine().add("r", PROMPT, grammar=schema)


class OnlyThese:
    """Allows some tokens, always."""

    constrains = True
    is_finished = False

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = token_ids

    def allowed(self, vocab_size: int) -> Any:
        return np.isin(np.arange(vocab_size), self._token_ids)

    def accept(self, token_id: int) -> None:
        pass


def test_where_min_tokens_forbids_all_that_the_grammar_allows_the_grammar_wins() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=5)
    state = SamplerState(
        params, np.empty(0, dtype=np.int32), stop_token_ids={EOS}, matcher=OnlyThese(EOS)
    )
    [token] = sample(np.zeros((1, VOCAB_SIZE), dtype=np.float32), [state])
    assert token.token_id == EOS


def test_the_form_must_be_a_grammar() -> None:
    with pytest.raises(InvalidRequestError, match="grammar must be"):
        SamplingParams(grammar="(a|b)")  # type: ignore[arg-type]
