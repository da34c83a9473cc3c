"""Guards that `LLM.chat` tells a thought from the answer, and that `LLM.generate` leaves the text as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ostinato import LLM, SamplingParams
from ostinato.engine import core as core_module
from ostinato.engine.sampler import SampledToken, SamplerState
from tests.tiny import CHAT_TEMPLATE, write_tiny_model

QUESTION = [{"role": "user", "content": "Which?"}]
KNOWS_MARKS = "{# <think> </think> #}" + CHAT_TEMPLATE
OPENS_THOUGHT = KNOWS_MARKS + "<think>\n"
PARAMS = SamplingParams(max_tokens=60)


@pytest.fixture
def llm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LLM]:
    template, settings = request.param
    model = write_tiny_model(tmp_path / "model", max_position=512)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "chat_template": template}))
    with LLM(model, data_dir=tmp_path / "data", cache={"num_blocks": 64}, **settings) as llm:
        yield llm


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, llm: LLM) -> Any:
    """Makes the model say a text, then end."""

    def say(text: str) -> None:
        tokenizer = llm._engine.model.tokenizer
        script = [*tokenizer.encode_prompt(text), min(tokenizer.eos_token_ids)]

        def sample(logits: Any, states: Sequence[SamplerState], kernels: Any) -> list[SampledToken]:
            return [SampledToken(script[state.num_output_tokens]) for state in states]

        monkeypatch.setattr(core_module, "sample", sample)

    return say


def chat(llm: LLM, params: SamplingParams = PARAMS) -> list[tuple[str | None, str]]:
    [output] = llm.chat(QUESTION, params, use_tqdm=False)
    return [(answer.reasoning, answer.text) for answer in output.outputs]


@pytest.mark.parametrize("llm", [(KNOWS_MARKS, {})], indirect=True)
def test_a_thought_is_told_from_the_answer(llm: LLM, say: Any) -> None:
    say("<think>\nTwo seas.\n</think>\n\nThe third.")
    assert chat(llm) == [("Two seas.", "The third.")]
    assert chat(llm, SamplingParams(max_tokens=60, n=2)) == [("Two seas.", "The third.")] * 2
    say("No <think> in front.")
    assert chat(llm) == [(None, "No <think> in front.")]


@pytest.mark.parametrize("llm", [(OPENS_THOUGHT, {})], indirect=True)
def test_a_thought_may_be_opened_by_the_template_and_end_with_the_tokens(
    llm: LLM, say: Any
) -> None:
    say("Two seas.\n</think>\n\nThe third.")
    assert chat(llm) == [("Two seas.", "The third.")]
    assert chat(llm, SamplingParams(max_tokens=3)) == [("Two", "")]


@pytest.mark.parametrize(
    "llm", [(KNOWS_MARKS, {"reasoning_parser": "none"}), (CHAT_TEMPLATE, {})], indirect=True
)
def test_text_of_models_that_do_not_think_is_left_as_it_is(llm: LLM, say: Any) -> None:
    text = "<think>\nTwo seas.\n</think>\n\nThe third."
    say(text)
    assert chat(llm) == [(None, text)]


@pytest.mark.parametrize("llm", [(KNOWS_MARKS, {})], indirect=True)
def test_a_completion_is_never_split(llm: LLM, say: Any) -> None:
    text = "<think>\nTwo seas.\n</think>\n\nThe third."
    say(text)
    [output] = llm.generate("Which?", PARAMS, use_tqdm=False)
    assert (output.outputs[0].reasoning, output.outputs[0].text) == (None, text)
