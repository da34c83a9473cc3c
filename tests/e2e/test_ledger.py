"""Guards the ledger on a real server: its sums are the engine's own counters to the token, under load, with
clients that vanish, forks and preemptions; a clean stop loses nothing, a kill at most the last second; a
database that cannot be written never reaches a caller; and no text is kept."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.server import ENDLESS, Server, running_server
from tests.ledger.conftest import postgres_url

__all__ = ["postgres_url"]  # a fixture

SECRET = "the-word-that-nobody-stores"
STOP_SECONDS = 30
LOST_SECONDS = 1.0
"""What a kill may cost."""


def rows(data_dir: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(data_dir / "ledger.sqlite3")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM ostinato_requests")]


def url_of(server: Server, route: str = "completions") -> str:
    return f"{server.url}/v1/{route}"


def body_of(server: Server, **fields: Any) -> dict[str, Any]:
    return {
        "model": server.model,
        "prompt": [1, 2, 3],
        "max_tokens": 4,
        "ignore_eos": True,
        **fields,
    }


def stop(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(STOP_SECONDS)


@contextmanager
def small_server(model: Path, data_dir: Path, *flags: str) -> Iterator[Server]:
    """With a pool of 1,024 tokens and K/V tiers below it."""
    pool = ("--num-blocks", "64", "--ram-tier", "64MiB", "--disk-tier", "64MiB")
    with running_server(str(model), data_dir, *pool, *flags) as server:
        yield server


async def play(server: Server) -> int:
    """Streams, forks, many prompts, vanishing clients and refusals, all at once; how many requests it were."""

    async def ask(client: httpx2.AsyncClient, number: int) -> None:
        shared = [7] * (20 * (number % 4))
        kind = number % 6
        fields: dict[str, Any] = {"prompt": [*shared, number, number + 1], "max_tokens": 24}
        if kind == 0:
            fields |= {"n": 3}
        elif kind == 1:
            fields |= {"prompt": [[*shared, number, i] for i in range(3)]}
        elif kind == 2:
            fields |= {"stream": True, "max_tokens": 900}
        elif kind == 3:
            fields |= {"max_tokens": -1}
        body = body_of(server, **fields)
        if kind == 2:  # reads a little, then hangs up
            async with client.stream("POST", url_of(server), json=body) as response:
                async for _ in response.aiter_lines():
                    break
            return
        if kind == 4:  # gives up before or after it was admitted
            call = asyncio.create_task(client.post(url_of(server), json=body))
            await asyncio.sleep(0.002 * (number % 30))
            call.cancel()
            await asyncio.wait({call})
            return
        response = await client.post(url_of(server), json=body)
        assert response.status_code == (400 if kind == 3 else 200)

    limits = httpx2.Limits(max_connections=100)
    async with httpx2.AsyncClient(timeout=120, limits=limits) as client:
        await asyncio.gather(*(ask(client, number) for number in range(96)))
    return 96


def test_the_sum_over_records_is_what_the_engine_counted(tiny_model: Path, tmp_path: Path) -> None:
    with small_server(tiny_model, tmp_path) as server:
        for _ in range(2):
            asyncio.run(play(server))
        metrics = server.scrape_until(lambda m: m.is_idle and m("num_requests_loading") == 0)
        written = server.scrape_until(
            lambda m: (
                m("ledger_pending_records") == 0 and m("ledger_records_total", result="written") > 0
            )
        )
        metrics = server.metrics()
        stop(server)
        assert server.process.returncode == 0
    found = rows(tmp_path)
    assert metrics("num_preemptions_total") > 0
    assert metrics("request_success_total", finished_reason="abort") > 0
    assert sum(row["input_tokens"] for row in found) == metrics("prompt_tokens_total")
    assert sum(row["cached_tokens"] for row in found) == metrics("prefix_cache_hit_tokens_total")
    assert sum(row["output_tokens"] for row in found) == metrics("generation_tokens_total")
    assert written("ledger_records_total", result="lost") == 0
    for row in found:
        tiers = [row[f"cached_{tier}_tokens"] for tier in ("device", "ram", "disk", "remote")]
        assert sum(tiers) == row["cached_tokens"] == row["cache_read_tokens"] <= row["input_tokens"]
        assert row["total_tokens"] == row["input_tokens"] + row["output_tokens"]
    errors = {row["error"] for row in found}
    assert errors == {None, "client_disconnected", "invalid_value"}
    # A client that hangs up before its request was read leaves no record; all others one each.
    answered = [row for row in found if row["error"] != "client_disconnected"]
    assert len(answered) >= 2 * 96 * 4 // 6
    assert len(found) <= 2 * 96


def test_a_clean_stop_loses_nothing_not_even_what_it_breaks_off(
    endless_model: Path, tmp_path: Path
) -> None:
    with (
        running_server(str(endless_model), tmp_path, "--num-blocks", "9000") as server,
        httpx2.Client(timeout=60) as client,
    ):
        for number in range(20):
            client.post(url_of(server), json=body_of(server, prompt=[number])).raise_for_status()
        body = {"model": server.model, "prompt": [1, 2], "stream": True, **ENDLESS}
        with client.stream("POST", url_of(server), json=body) as response:
            lines = response.iter_lines()
            next(lines)
            stop(server)
            for _ in lines:
                pass
    found = rows(tmp_path)
    assert len(found) == 21
    [broken] = [row for row in found if row["error"]]
    assert (broken["error"], broken["finish_reason"]) == ("engine_unavailable", "abort")
    assert broken["input_tokens"] == 2
    assert broken["output_tokens"] > 0


def test_a_kill_loses_at_most_the_last_second(tiny_model: Path, tmp_path: Path) -> None:
    answered: list[tuple[str, float]] = []
    with small_server(tiny_model, tmp_path) as server, httpx2.Client(timeout=60) as client:
        started = time.monotonic()
        while time.monotonic() < started + 1.8:
            response = client.post(url_of(server), json=body_of(server)).raise_for_status()
            answered.append((response.headers["x-request-id"], time.monotonic()))
        killed = time.monotonic()
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(STOP_SECONDS)
    due = {name for name, at in answered if at < killed - LOST_SECONDS}
    found = [row["request_id"] for row in rows(tmp_path)]
    assert len(due) > 10
    assert due <= set(found)
    assert len(found) == len(set(found))


def test_a_locked_database_never_reaches_a_caller_and_is_made_up_for(
    tiny_model: Path, tmp_path: Path
) -> None:
    with small_server(tiny_model, tmp_path) as server, httpx2.Client(timeout=60) as client:
        client.post(url_of(server), json=body_of(server)).raise_for_status()
        server.scrape_until(lambda m: m("ledger_records_total", result="written") == 1)
        with closing(sqlite3.connect(tmp_path / "ledger.sqlite3", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            for number in range(5):
                body = body_of(server, prompt=[number])
                client.post(url_of(server), json=body).raise_for_status()
            server.scrape_until(lambda m: m("ledger_write_failures_total") >= 1)
            holder.execute("ROLLBACK")
        metrics = server.scrape_until(lambda m: m("ledger_records_total", result="written") == 6)
        assert metrics("ledger_records_total", result="lost") == 0
        told = [line for line in server.log if "ledger" in line and "cannot be written" in line]
        assert len(told) == 1
    assert len(rows(tmp_path)) == 6


def test_two_servers_write_one_file(tiny_model: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared.sqlite3"
    flags = ("--ledger", f"sqlite:///{shared}")
    with (
        small_server(tiny_model, tmp_path / "a", *flags) as one,
        small_server(tiny_model, tmp_path / "b", *flags) as two,
    ):

        def ask(server: Server) -> None:
            with httpx2.Client(timeout=60) as client:
                for number in range(30):
                    body = body_of(server, prompt=[number])
                    client.post(url_of(server), json=body).raise_for_status()

        threads = [threading.Thread(target=ask, args=(server,)) for server in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stop(one)
        stop(two)
    with closing(sqlite3.connect(shared)) as connection:
        [count] = connection.execute("SELECT count(*) FROM ostinato_requests").fetchone()
    assert count == 60


def test_no_word_of_a_prompt_or_an_answer_is_in_the_file(tiny_model: Path, tmp_path: Path) -> None:
    with small_server(tiny_model, tmp_path, "--disk-tier", "off") as server:
        with httpx2.Client(timeout=60) as client:
            body = {"model": server.model, "messages": [{"role": "user", "content": SECRET}]}
            fields = {"max_tokens": 8, "metadata": {"note": SECRET}, "user": SECRET}
            chat = url_of(server, "chat/completions")
            client.post(chat, json=body | fields).raise_for_status()
            assert client.post(chat, json=body | {"tool_choice": SECRET}).status_code == 400
        stop(server)
    assert len(rows(tmp_path)) == 2
    for file in tmp_path.glob("ledger.sqlite3*"):
        assert SECRET.encode() not in file.read_bytes()


def test_without_a_ledger_nothing_is_written(tiny_model: Path, tmp_path: Path) -> None:
    with small_server(tiny_model, tmp_path, "--ledger", "off") as server:
        httpx2.post(url_of(server), json=body_of(server)).raise_for_status()
        assert "ledger    off" in "".join(server.log)
        assert ("ledger_pending_records", frozenset()) not in server.metrics().values
    assert list(tmp_path.glob("ledger*")) == []


def test_a_ledger_in_postgresql(tiny_model: Path, tmp_path: Path, postgres_url: str) -> None:
    import psycopg

    with small_server(tiny_model, tmp_path, "--ledger", postgres_url) as server:
        httpx2.post(url_of(server), json=body_of(server)).raise_for_status()
        stop(server)
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute("SELECT input_tokens, output_tokens FROM ostinato_requests")
        assert found.fetchall() == [(3, 4)]
        connection.execute("DROP TABLE ostinato_requests, ostinato_ledger_version")
    assert list(tmp_path.glob("ledger*")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_told_and_answers_go_on(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    flags = ("--ledger", f"sqlite:///{tmp_path / 'locked' / 'l.sqlite3'}")
    with small_server(tiny_model, tmp_path / "data", *flags) as server:
        server.scrape_until(lambda m: m("ledger_write_failures_total") >= 1)
        httpx2.post(url_of(server), json=body_of(server)).raise_for_status()
