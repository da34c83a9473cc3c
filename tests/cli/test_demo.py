"""Guards ``ostinato demo``: two runs of the same requests, and figures that were measured."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ostinato.cli.demo_script import AgentConversation, load_script
from tests.tiny import write_tiny_model

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_script_has_six_turns_over_a_prompt_with_tool_schemas() -> None:
    script = load_script()
    assert len(script.turns) == 6
    schemas = [json.loads(line) for line in script.system.splitlines() if line.startswith("{")]
    names = {schema["function"]["name"] for schema in schemas}
    called = [json.loads(turn.call[11:-12])["name"] for turn in script.turns if turn.call]
    assert len(called) == 5
    assert set(called) <= names


def test_every_result_answers_the_call_before_it() -> None:
    turns = load_script().turns
    for before, turn in itertools.pairwise(turns):
        assert before.call.startswith("<tool_call>")
        assert turn.user.startswith("<tool_response>")
    assert turns[-1].call == ""


def test_the_conversation_only_grows_at_its_end() -> None:
    script = load_script()
    conversation = AgentConversation(script)
    earlier: list[dict[str, str]] = []
    for turn in script.turns:
        sent = conversation.ask(turn)
        assert sent[: len(earlier)] == earlier
        conversation.answer(turn, "I see.")
        earlier = sent


def test_both_runs_send_the_same_and_only_one_reuses(run_ostinato: Run, tmp_path: Path) -> None:
    # Its tokenizer knows few words, so the prompt has thousands of tokens: one head, one layer.
    shape = {"num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "hidden_size": 16}
    model = write_tiny_model(tmp_path / "m", max_position=16_384, **shape)
    arguments = ("--model", str(model), "--turns", "2", "--answer-tokens", "2", "--json")
    done = run_ostinato("demo", *arguments)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    off, on = result["prefix_caching_off"], result["prefix_caching_on"]
    assert [turn["cached_tokens"] for turn in off] == [0, 0]
    assert on[0]["cached_tokens"] == 0
    assert on[0]["prompt_tokens"] <= on[1]["cached_tokens"] < on[1]["prompt_tokens"]
    assert on[0]["prompt_tokens"] == off[0]["prompt_tokens"]
    totals = result["totals"]
    assert totals["cached_tokens"] == on[1]["cached_tokens"]
    saved = totals["ttft_seconds_off"] - totals["ttft_seconds_on"]
    assert totals["prefill_seconds_saved"] == pytest.approx(saved)


@pytest.mark.slow
def test_the_real_conversation_is_mostly_served_from_the_cache(run_ostinato: Run) -> None:
    done = run_ostinato("demo", "--json", "--turns", "3", "--answer-tokens", "8")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 1_500 < result["prefix_caching_on"][0]["prompt_tokens"] < 1_800
    assert result["totals"]["cached_share"] > 0.5
