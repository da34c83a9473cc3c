"""Guards what users of google-genai see, in its current and in an older version, against a live process; that a
cache object and its K/V outlive the process; and that a chat with tools finds its prefix again at each turn.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.server import Server, running_server

pytest.importorskip("google.genai", reason="google-genai is missing: pip install -e '.[dev]'")

CURRENT, OLDER = "3.6.1", "1.75.0"
"""The older one asks under /v1beta, the current one under /v1."""
FLAGS = (
    "--num-blocks",
    "128",
    "--max-model-len",
    "1000",
    "--ram-tier",
    "1MiB",
    "--disk-tier",
    "64MiB",
)


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(str(tiny_model), tmp_path_factory.mktemp("data"), *FLAGS) as running:
        yield running


def run_client(server: Server, sdk: Path | None = None) -> dict[str, Any]:
    """What `gemini_client` saw, with the SDK of this environment or the one in a folder."""
    program = Path(__file__).with_name("gemini_client.py")
    environment = {**os.environ, "PYTHONPATH": str(sdk)} if sdk else dict(os.environ)
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENAI_API_VERSION"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(program), server.url, server.model],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def check(seen: dict[str, Any], server: Server) -> None:
    assert seen["text"]
    assert seen["streamed"] == seen["text"]
    assert seen["async"] == [seen["text"], seen["text"]]
    assert seen["pieces"] > 1
    assert seen["finish"] == seen["last"] == "MAX_TOKENS"
    assert seen["counted"] == seen["prompt"]
    assert seen["models"] == [f"models/{server.model}"]
    assert seen["model"] == 1000
    assert seen["refused"][:2] == [400, "INVALID_ARGUMENT"]
    assert "inlineData" in seen["refused"][2]
    cache = seen["cache"]
    assert cache["cached"] >= cache["total"] > 100
    assert cache["later"]
    assert cache["listed"]
    assert cache["display_name"] == "book"
    assert cache["gone"] == [403, "PERMISSION_DENIED"]


def test_the_current_sdk_generates_streams_counts_lists_and_caches(server: Server) -> None:
    seen = run_client(server)
    assert seen["version"] == CURRENT
    check(seen, server)


@pytest.mark.slow
def test_an_older_sdk_does_the_same(server: Server, tmp_path: Path) -> None:
    package = f"google-genai=={OLDER}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, str(tmp_path), package], check=True, timeout=250)
    seen = run_client(server, tmp_path)
    assert seen["version"] == OLDER
    check(seen, server)


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_cache_object_and_its_kv_outlive_the_process(
    tiny_model: Path, tmp_path: Path, ending: str
) -> None:
    text = "abcdefgh" * 80
    body = {"model": "models/tiny-llama", "contents": [{"parts": [{"text": text}]}], "ttl": "600s"}
    with running_server(str(tiny_model), tmp_path, *FLAGS) as server:
        created = httpx2.post(f"{server.url}/v1beta/cachedContents", json=body)
        assert created.status_code == 200, created.text
        made = created.json()
        total = made["usageMetadata"]["totalTokenCount"]
        blocks = total // 16
        server.scrape_until(lambda seen: seen("tier_blocks", tier="disk") >= blocks)
        if ending == "killed":
            server.process.kill()
    with running_server(str(tiny_model), tmp_path, *FLAGS) as server:
        assert httpx2.get(f"{server.url}/v1/{made['name']}").json() == made
        asked = {
            "contents": [{"parts": [{"text": "and?"}]}],
            "cachedContent": made["name"],
            "generationConfig": {"maxOutputTokens": 1},
        }
        url = f"{server.url}/v1/models/{server.model}:generateContent"
        usage = httpx2.post(url, json=asked).json()["usageMetadata"]
        metrics = server.scrape_until(lambda seen: seen.is_idle)
    assert usage["cachedContentTokenCount"] == blocks * 16
    assert metrics("cached_tokens_total", cache_source="disk") == blocks * 16


def test_storage_and_creation_are_in_the_ledger(tiny_model: Path, tmp_path: Path) -> None:
    body = {"model": "models/tiny-llama", "contents": [{"parts": [{"text": "abc" * 50}]}]}
    with running_server(str(tiny_model), tmp_path, *FLAGS) as server:
        made = httpx2.post(f"{server.url}/v1/cachedContents", json=body).json()
        httpx2.patch(f"{server.url}/v1/{made['name']}", json={"ttl": "9000s"}).raise_for_status()
        httpx2.delete(f"{server.url}/v1/{made['name']}").raise_for_status()
        metrics = server.scrape_until(lambda seen: seen.is_idle)
    ledger = sqlite3.connect(tmp_path / "ledger.sqlite3")
    rows = ledger.execute(
        "SELECT dialect, input_tokens, cached_tokens, status FROM ostinato_requests ORDER BY time_us"
    ).fetchall()
    ledger.close()
    total = made["usageMetadata"]["totalTokenCount"]
    assert [row[0] for row in rows] == ["gemini_cache"] * 3
    assert [row[1] for row in rows] == [total, total, 0]
    assert [row[2] for row in rows] == [0, total - 1, 0]
    assert {row[3] for row in rows} == {200}
    assert sum(row[1] for row in rows) == metrics("prompt_tokens_total")


@pytest.mark.slow
def test_a_chat_of_ten_turns_with_tools_finds_its_prefix_again_at_each(
    tool_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    from google.genai import types

    from tests.e2e.gemini_client import client_of

    fruits = (
        "apples",
        "pears",
        "plums",
        "figs",
        "limes",
        "kiwis",
        "dates",
        "melons",
        "grapes",
        "cherries",
    )
    stock = {fruit: 3 + 2 * at for at, fruit in enumerate(fruits)}
    calls: list[str] = []

    def count(fruit: str) -> int:
        """How many pieces of a fruit are in stock.

        Args:
            fruit: the name of the fruit.
        """
        calls.append(fruit)
        return stock.get(fruit, 0)

    client = client_of(tool_server.url)
    chat = client.chats.create(
        model=tool_server.model,
        config=types.GenerateContentConfig(
            system_instruction="You look after a shop. Use the tool for every question about stock.",
            tools=[count],
            temperature=0.0,
            max_output_tokens=64,
        ),
    )
    shares = []
    for fruit in fruits:
        usage = chat.send_message(f"How many {fruit} are in stock now?").usage_metadata
        assert usage is not None
        assert usage.prompt_token_count
        shares.append((usage.cached_content_token_count or 0) / usage.prompt_token_count)
    with capsys.disabled():
        print("\ncached share per turn:", " ".join(f"{share:.0%}" for share in shares))
        print("calls:", calls)
    assert len(calls) >= 5
    assert min(shares) > 0.8
