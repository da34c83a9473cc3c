"""Guards a real agent framework on a real small model: ten turns, most of each prompt from the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.sdk_folder import install, run_script
from tests.e2e.server import Server

AGENTS = "openai-agents==0.24.0"
SCRIPT = Path(__file__).parent / "scripts" / "openai_agents_task.py"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["continued", "resent"])
def test_ten_turns_with_tools_read_their_past_from_the_cache(
    tool_server: Server, sdk_cache: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = install(AGENTS, sdk_cache)
    printed = run_script(SCRIPT, folder, f"{tool_server.url}/v1", tool_server.model, way)
    calls = [json.loads(line) for line in printed.splitlines()]
    with capsys.disabled():
        print(f"\n{way}:")
        for call in calls:
            share = call["cached"] / call["input"]
            print(
                f"  turn {call['turn']:2}: {call['cached']:4} of {call['input']:4} tokens {share:4.0%}"
                f"  {', '.join(call['did'])}"
            )
    assert calls[-1]["turn"] == 10
    with_tool = {call["turn"] for call in calls if {"add", "stock", "order"} & set(call["did"])}
    assert len(with_tool) >= 8
    before = 0
    for call in calls:
        if way == "continued" and before:
            assert call["cached"] >= before
        before = call["input"] + call["output"] - 1
    later = calls[1:]
    share = sum(call["cached"] for call in later) / sum(call["input"] for call in later)
    assert share > (0.85 if way == "continued" else 0.75)
