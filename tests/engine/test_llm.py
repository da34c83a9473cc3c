"""Guards the Python interface: one call, outputs in order, a cache that survives the call, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostinato
from ostinato import LLM, CacheReport, SamplingParams
from ostinato.engine.outputs import FinishReason
from ostinato.errors import (
    EngineStoppedError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
)
from tests.engine.harness import CountingCare, Engine, expected_tokens, tokens
from tests.tiny import write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def engine() -> Engine:
    return Engine(num_blocks=128)


@pytest.fixture
def llm(engine: Engine) -> LLM:
    return LLM.from_core(engine.core)


def test_a_single_prompt_gives_a_list_of_one_output(llm: LLM) -> None:
    (output,) = llm.generate("HELLO", GREEDY, use_tqdm=False)
    ids = [ord(character) - 64 for character in "HELLO"]
    assert (output.prompt, output.prompt_token_ids) == ("HELLO", ids)
    assert output.outputs[0].token_ids == expected_tokens(ids, 6, ignore_eos=True)
    assert output.outputs[0].finish_reason is FinishReason.LENGTH
    assert isinstance(output.report, CacheReport)


def test_tiers_are_seen_to_after_each_step(engine: Engine, llm: LLM) -> None:
    care = CountingCare(engine.clock)
    engine.core.tiers = care
    llm.generate("HELLO", GREEDY, use_tqdm=False)
    assert care.times == engine.core.stats().steps_total > 0


def test_token_ids_need_no_text(llm: LLM) -> None:
    (single,) = llm.generate([8, 5, 12], GREEDY, use_tqdm=False)
    assert (single.prompt, single.prompt_token_ids) == (None, [8, 5, 12])
    first, second = llm.generate([[8, 5], [12]], GREEDY, use_tqdm=False)
    assert (first.prompt_token_ids, second.prompt_token_ids) == ([8, 5], [12])


def test_token_ids_may_come_from_numpy(llm: LLM) -> None:
    wide = np.array([8, 5, 12], dtype=np.int64)
    for prompts in (wide, list(wide), [wide], wide[np.newaxis]):
        (output,) = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert output.prompt_token_ids == [8, 5, 12]
    two = llm.generate(np.array([[8, 5], [12, 1]]), GREEDY, use_tqdm=False)
    assert [output.prompt_token_ids for output in two] == [[8, 5], [12, 1]]


@pytest.mark.parametrize(
    "prompt", [[2**40], [2**70], [-(2**40)], [1.5], [1, None], [True], [1, [2]], np.array([0.5])]
)
def test_what_is_no_token_id_is_refused_and_not_bent_into_one(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate([prompt], GREEDY, use_tqdm=False)
    assert caught.value.param == "prompt"


def test_text_that_is_not_valid_unicode_is_refused(llm: LLM, tiny: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        llm.generate("half a pair: \ud83d", GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="surrogate"):
        tiny.chat([{"role": "user", "content": "\ud83d"}], GREEDY, use_tqdm=False)


def test_a_chat_with_what_the_template_would_drop_is_refused(tiny: LLM) -> None:
    asked = {"role": "user", "content": "What is the time?"}
    tool = {"type": "function", "function": {"name": "clock"}}
    with pytest.raises(InvalidRequestError, match="no place for tools"):
        tiny.chat([asked], GREEDY, tools=[tool], use_tqdm=False)
    called = {"role": "assistant", "content": "", "tool_calls": [tool]}
    with pytest.raises(InvalidRequestError, match="no place for tool_calls"):
        tiny.chat([asked, called], GREEDY, use_tqdm=False)


def test_outputs_keep_the_order_of_the_prompts_whatever_finishes_first(llm: LLM) -> None:
    prompts = [tokens(5, seed) for seed in range(5)]
    params = [
        SamplingParams(temperature=0.0, max_tokens=9 - seed, ignore_eos=True) for seed in range(5)
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, one, output in zip(prompts, params, outputs, strict=True):
        assert output.prompt_token_ids == prompt
        wanted = expected_tokens(prompt, one.max_tokens or 0, ignore_eos=True)
        assert output.outputs[0].token_ids == wanted


def test_a_second_call_finds_what_the_first_computed(llm: LLM) -> None:
    llm.generate([tokens(20)], GREEDY, use_tqdm=False)
    (again,) = llm.generate([tokens(20)], GREEDY, use_tqdm=False)
    assert again.report.cached_tokens == 19


def test_more_prompts_than_may_wait_are_fed_as_room_appears() -> None:
    llm = LLM.from_core(Engine(max_waiting=3, max_num_seqs=2).core)
    outputs = llm.generate([tokens(4, seed) for seed in range(20)], GREEDY, use_tqdm=False)
    assert len(outputs) == 20
    assert all(len(output.outputs[0].token_ids) == 6 for output in outputs)


def test_n_answers_are_in_one_output(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True)
    (output,) = llm.generate([tokens(5)], params, use_tqdm=False)
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert all(len(answer.token_ids) == 4 for answer in output.outputs)


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], GREEDY, use_tqdm=False) == []


def test_one_bad_prompt_refuses_the_call_before_anything_runs(engine: Engine, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.generate([[1, 2], [999]], GREEDY, use_tqdm=False)
    assert not engine.core.has_work
    with pytest.raises(InvalidRequestError, match="each of the 2 prompts"):
        llm.generate([[1], [2]], [GREEDY], use_tqdm=False)


def test_a_failed_request_raises_and_leaves_the_engine_usable(engine: Engine, llm: LLM) -> None:
    def explode(scheduled: Sequence[object]) -> None:
        raise FloatingPointError("tripped")

    engine.spy.before = explode
    with pytest.raises(RequestFailedError, match="tripped"):
        llm.generate([[1, 2], [3]], GREEDY, use_tqdm=False)
    engine.assert_idle()
    engine.spy.before = lambda scheduled: None
    assert llm.generate([[1, 2]], GREEDY, use_tqdm=False)


def test_ctrl_c_aborts_after_the_step_and_leaves_the_engine_usable(
    engine: Engine, llm: LLM
) -> None:
    def press_ctrl_c(scheduled: Sequence[object]) -> None:
        if len(engine.spy.batches) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    engine.spy.before = press_ctrl_c
    with pytest.raises(KeyboardInterrupt):
        llm.generate([tokens(8, seed) for seed in range(3)], GREEDY, use_tqdm=False)
    assert len(engine.spy.batches) == 3  # the step under way was finished
    assert signal.getsignal(signal.SIGINT) is handler
    engine.assert_idle()
    (output,) = llm.generate([tokens(8)], GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == expected_tokens(tokens(8), 6, ignore_eos=True)


def test_a_closed_llm_refuses(llm: LLM) -> None:
    with llm:
        llm.generate([[1]], GREEDY, use_tqdm=False)
    with pytest.raises(EngineStoppedError, match="closed"):
        llm.generate([[1]], GREEDY, use_tqdm=False)


def test_a_model_without_a_template_cannot_chat(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("llm")
    model = write_tiny_model(folder / "model", max_position=512)
    return LLM(str(model), data_dir=folder / "data", max_model_len=256, cache={"num_blocks": 64})


def test_a_chat_reuses_its_earlier_turns(tiny: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": "Which notes does the bass repeat?"}]
    (first,) = tiny.chat(messages, GREEDY)
    assert first.prompt is not None
    assert first.prompt.endswith("<|im_start|>assistant\n")
    messages += [
        {"role": "assistant", "content": first.outputs[0].text},
        {"role": "user", "content": "Again!"},
    ]
    (second,) = tiny.chat(messages, GREEDY)
    assert second.report.cached_tokens >= len(first.prompt_token_ids)
    assert "1/1" in capsys.readouterr().err  # the progress bar


def test_several_conversations_give_several_outputs(tiny: LLM) -> None:
    conversations = [[{"role": "user", "content": text}] for text in ("One", "Two")]
    outputs = tiny.chat(conversations, GREEDY, use_tqdm=False)
    assert [
        output.prompt is not None and word in output.prompt
        for word, output in zip(("One", "Two"), outputs, strict=True)
    ] == [True, True]
    with pytest.raises(InvalidRequestError, match="at least one message"):
        tiny.chat([], GREEDY, use_tqdm=False)


def test_text_that_a_tiny_model_makes_is_the_decoded_tokens(tiny: LLM) -> None:
    (output,) = tiny.generate("the sea and the sky", GREEDY, use_tqdm=False)
    tokenizer = tiny._engine.model.tokenizer
    assert output.prompt_token_ids == tokenizer.encode_prompt("the sea and the sky")
    assert output.outputs[0].text == tokenizer.decode(output.outputs[0].token_ids)


def test_an_unknown_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        LLM("no-such-model", data_dir=tmp_path)


def test_the_package_offers_its_names_and_loads_nothing_before_they_are_used() -> None:
    assert set(dir(ostinato)) == {"LLM", "SamplingParams", "CacheReport", "__version__"}
    assert ostinato.__version__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        ostinato.Nothing  # noqa: B018
    code = "import sys, ostinato; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_model_may_be_given_as_a_path(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny")
    with LLM(path, data_dir=tmp_path / "data", cache={"num_blocks": 8}) as llm:
        (output,) = llm.generate([1, 2, 3], GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 6
