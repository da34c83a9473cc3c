"""Guards the bill across processes: under rules that read by entries, a prefix that was written before a stop,
or a `kill -9`, is read after it from the K/V on disk, by who may; nothing of it stands in the file but digests;
and where K/V ends with the process, the server says that entries do too.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.server import Server, running_server
from tests.tool_template import write_tool_model

FLAGS = (
    *("--num-blocks", "256", "--max-model-len", "4000", "--kv-dtype", "fp32"),
    *("--activation-dtype", "fp32", "--ram-tier", "4MiB", "--write-policy", "write_through"),
)
DISK = ("--disk-tier", "64MiB")
RULES = ("--house-rules", "anthropic-512")
SYSTEM = "\n".join(f"Rule {number}: answer shortly and say why." for number in range(60))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tool_model(tmp_path_factory.mktemp("entries") / "tiny", max_position=4000)


def ask(server: Server, question: str, salt: str = "ours") -> tuple[int, int]:
    """Tokens read and written."""
    marked = {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}
    body: dict[str, Any] = {
        "model": server.model,
        "max_tokens": 4,
        "temperature": 0,
        "cache_salt": salt,
        "system": [marked],
        "messages": [{"role": "user", "content": question}],
    }
    answer = httpx2.post(f"{server.url}/v1/messages", json=body, timeout=60)
    usage = answer.raise_for_status().json()["usage"]
    return usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]


def written(server: Server) -> None:
    """Wait until entries and K/V are on disk."""
    server.scrape_until(
        lambda seen: (
            seen("prompt_cache_entry_changes_total", result="written") > 0
            and seen("prompt_cache_pending_changes") == 0
            and seen("tier_stored_blocks_total", tier="disk") >= 512 // 16
            and seen("transfer_bytes", kind="store") == 0
        )
    )


def check_that_no_text_is_in(path: Path) -> None:
    database = sqlite3.connect(path)
    rows = database.execute("SELECT * FROM entries").fetchall()
    database.close()
    assert rows
    assert b"answer shortly" not in path.read_bytes()
    texts = {value for row in rows for value in row if isinstance(value, str)}
    assert texts <= {"default", "short", "long"}


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_what_was_written_before_a_restart_is_read_after_it(
    model: Path, tmp_path: Path, ending: str
) -> None:
    with running_server(str(model), tmp_path, *FLAGS, *DISK, *RULES) as server:
        read, creation = ask(server, "One?")
        assert (read, creation > 512) == (0, True)
        assert ask(server, "Two?") == (creation, 0)
        written(server)
        if ending == "killed":
            server.process.kill()
    if ending == "stopped":
        check_that_no_text_is_in(tmp_path / "prompt_cache.sqlite3")
    with running_server(str(model), tmp_path, *FLAGS, *DISK, *RULES) as server:
        assert any("from an earlier start" in line for line in server.log)
        assert server.metrics()("prompt_cache_kept_entries") >= 1
        # K/V comes back from disk in whole blocks, so of its last one less is read.
        read, rewritten = ask(server, "Three?")
        assert creation - 16 < read <= creation
        assert rewritten == 0 or read + rewritten == creation
        assert server.metrics()("cached_tokens_total", cache_source="disk") >= read - 16
        assert ask(server, "Four?", salt="theirs") == (0, creation)


def test_without_a_lasting_tier_entries_end_with_the_process_and_the_server_says_so(
    model: Path, tmp_path: Path
) -> None:
    flags = (*FLAGS, "--disk-tier", "off", *RULES)
    with running_server(str(model), tmp_path, *flags) as server:
        assert ask(server, "One?")[1] > 0
        assert any("in memory: no tier keeps their K/V" in line for line in server.log)
    assert not (tmp_path / "prompt_cache.sqlite3").exists()
