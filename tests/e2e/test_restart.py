"""Guards K/V across processes: a server that was stopped, or killed, finds on disk what an earlier one has left
and says so; and never finds what was left under another salt.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.server import Server, running_server

CONVERSATIONS = 6
TOKENS = 704
"""Of a first turn: whole blocks."""
BLOCK = 64
"""Large ones, and a slow backend: a block costs time to load, and computing is to be the slower by far. Pool
and RAM have room for all: nobody waits, for whom a prefetch would fill RAM, and no store is refused."""
FLAGS = (
    *("--num-blocks", "256", "--block-size", str(BLOCK), "--max-model-len", "1000"),
    *("--kv-dtype", "fp32", "--ram-tier", "8MiB", "--disk-tier", "64MiB"),
    *("--backend", "reference"),
)


def first_turn(number: int) -> list[int]:
    return [(7 * number + 3 * at) % 200 for at in range(TOKENS + number)]


def turn(server: Server, prompt: list[int], salt: str) -> int:
    """How many prompt tokens were reused."""
    with server.client() as client:
        answer = client.completions.create(
            model=server.model,
            prompt=prompt,
            temperature=0,
            max_tokens=4,
            extra_body={"cache_salt": salt, "ignore_eos": True},
        )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_the_next_turn_of_every_conversation_hits_disk_after_a_restart(
    tiny_model: Path, tmp_path: Path, ending: str
) -> None:
    policy = ("--write-policy", "write_through")
    with running_server(str(tiny_model), tmp_path, *FLAGS, *policy) as server:
        assert any("disk 64 MiB" in line for line in server.log)
        for number in range(CONVERSATIONS):
            assert turn(server, first_turn(number), "mine") == 0
        stored = server.scrape_until(
            lambda seen: (
                seen("tier_stored_blocks_total", tier="disk") >= TOKENS // BLOCK * CONVERSATIONS
            )
        )
        assert stored("tier_failures_total", tier="disk", reason="corrupt") == 0
        if ending == "killed":
            server.process.kill()
    with running_server(str(tiny_model), tmp_path, *FLAGS, *policy) as server:
        for number in range(CONVERSATIONS):
            prompt = [*first_turn(number), 1, 2, 3]
            assert turn(server, prompt, "mine") == TOKENS
            assert turn(server, prompt, "yours") == 0
        metrics = server.scrape_until(lambda seen: seen.is_idle)
        assert metrics("cached_tokens_total", cache_source="disk") == TOKENS * CONVERSATIONS
        assert metrics("load_decisions_total", decision="load") >= CONVERSATIONS


def test_a_clean_stop_writes_what_was_used_only_once(tiny_model: Path, tmp_path: Path) -> None:
    with running_server(str(tiny_model), tmp_path, *FLAGS) as server:
        turn(server, first_turn(0), "mine")
        metrics = server.metrics()
        assert metrics("tier_blocks", tier="disk") == 0
    with running_server(str(tiny_model), tmp_path, *FLAGS) as server:
        assert turn(server, [*first_turn(0), 1], "mine") == TOKENS
