"""Guards Anthropic's tool runner on a real small model: ten turns, most of each prompt from the cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server import Server

SCRIPT = Path(__file__).parent / "scripts" / "anthropic_tool_task.py"


@pytest.mark.slow
def test_ten_turns_with_tools_read_their_past_from_the_cache(
    tool_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, str(SCRIPT), tool_server.url, tool_server.model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = [json.loads(line) for line in done.stdout.splitlines()]
    prompts = [call["plain"] + call["read"] + call["written"] for call in calls]
    with capsys.disabled():
        print()
        for call, prompt in zip(calls, prompts, strict=True):
            print(
                f"  turn {call['turn']:2}: {call['read']:4} of {prompt:4} tokens "
                f"{call['read'] / prompt:4.0%}  {', '.join(call['did'])}"
            )
    assert calls[-1]["turn"] == 10
    with_tool = {call["turn"] for call in calls if {"add", "stock", "order"} & set(call["did"])}
    assert len(with_tool) == 10
    for before, prompt, call in zip(prompts, prompts[1:], calls[1:], strict=False):
        assert call["read"] >= before - 1  # all of the prompt before, and mostly its answer
        assert prompt > before
    assert sum(call["read"] for call in calls[1:]) / sum(prompts[1:]) > 0.85
