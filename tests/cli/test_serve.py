"""Guards ``ostinato serve`` as a process: it says what it runs, refuses what is unsafe, stops when told."""

from __future__ import annotations

import gc
import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ostinato.cli import serve, server
from ostinato.config import load_config
from tests.cli.conftest import ENDLESS_CONTEXT, ServeProcess

ENDLESS = {"max_tokens": ENDLESS_CONTEXT - 1_000, "ignore_eos": True}

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., ServeProcess]


def completion(url: str, **fields: object) -> httpx.Response:
    body = {"model": "tiny", "prompt": "the cat and the dog", "max_tokens": 4, **fields}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False)


def test_the_summary_says_what_a_user_would_have_to_guess(start_server: Start) -> None:
    server = start_server("--block-size", "8", "--num-blocks", "100")
    for said in (
        "tiny: llama, 2 layers",
        "256 B a token in fp16",
        "100 blocks × 8 tokens = 800 tokens, 200 KiB",
        "radix index; minimum cacheable prefix",
        f"curl {server.url}/v1/chat/completions",
        f"chat --url {server.url}",
    ):
        assert said in server.summary


def test_it_serves_on_the_address_that_it_prints(start_server: Start) -> None:
    server = start_server()
    assert completion(server.url).status_code == 200
    assert completion(server.url).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_prefix_caching_that_is_off_is_said_and_is_off(start_server: Start) -> None:
    server = start_server("--prefix-index", "none")
    assert "no prompt is ever reused" in server.summary
    for _ in range(2):
        usage = completion(server.url).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_status_0(start_server: Start, number: signal.Signals) -> None:
    server = start_server()
    assert completion(server.url).status_code == 200
    server.process.send_signal(number)
    _, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    assert "Traceback" not in errors
    assert errors.endswith("Stopped.\n")


def test_a_signal_ends_answers_that_would_go_on_for_long(start_server: Start) -> None:
    server = start_server()
    body = {"model": "tiny", "prompt": "the", "stream": True, **ENDLESS}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        server.process.send_signal(signal.SIGINT)
        rest = list(lines)
    server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    frames = [line.removeprefix("data: ") for line in rest if line]
    assert "[DONE]" not in frames
    assert json.loads(frames[-1])["error"]["code"] == "engine_unavailable"


def test_a_second_ctrl_c_does_not_wait_for_the_drain(start_server: Start) -> None:
    server = start_server("--log-level", "warning")
    body = {"model": "tiny", "prompt": "the", "stream": True, **ENDLESS}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        server.process.send_signal(signal.SIGINT)
        assert server.process.stderr is not None
        assert server.process.stderr.readline().startswith("Loading ")
        told = server.process.stderr.readline()
        assert told == "Stopping; 1 answer is still being written (Ctrl-C: stop at once).\n"
        server.process.send_signal(signal.SIGINT)
        for _ in lines:  # to the end that the server puts to it
            pass
    _, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 0
    assert "Traceback" not in errors


def test_the_collector_waits_until_the_server_is_ready(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Server:
        def __init__(self, app: object, *, on_ready: Callable[[], None], **_: object) -> None:
            self.on_ready = on_ready

        def run(self, sockets: object) -> None:
            seen.append(gc.isenabled())
            self.on_ready()
            seen.append(gc.isenabled())

    monkeypatch.setattr(server, "HTTPServer", Server)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(serve, "_set_up_logging", lambda level: None)
    flags = {"model": str(tiny_model), "data_dir": tmp_path, "server": {"port": 0}}
    serve.run(load_config(flags), "warning")
    assert seen == [False, True]


def test_a_port_in_use_is_told_with_the_way_out(run_ostinato: Run, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_ostinato("serve", "--model", str(tiny_model), "--port", str(port))
    assert done.returncode == 2
    assert f"port {port} on 127.0.0.1 is already in use" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_address_that_others_can_reach_is_refused(run_ostinato: Run, host: str) -> None:
    done = run_ostinato("serve", "--host", host, "--port", "0")
    assert done.returncode == 2
    assert "refusing to listen" in done.stderr
    assert "ostinato keys add TENANT" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--block-size", "0"], "cache.block_size"),
        (["--kv-memory", "lots"], "'lots' is not a size"),
        (["--kv-memory", "1GiB", "--num-blocks", "9"], "give one of them"),
        (["--config", "/no/such/file.toml"], "there is no configuration file"),
        (["--port", "70000"], "server.port"),
        (["--prefix-index", "tree"], "prefix-index"),
        (["--model", ""], "the name of the model is empty"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    run_ostinato: Run, arguments: list[str], said: str
) -> None:
    done = run_ostinato("serve", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_flag_wins_over_the_file(start_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "ostinato.toml"
    file.write_text("[cache]\nblock_size = 4\nnum_blocks = 50\n", encoding="utf-8")
    server = start_server("--config", str(file), "--block-size", "8")
    assert "50 blocks × 8 tokens" in server.summary


@pytest.mark.parametrize("flags", [["--kv-memory", "60TiB"], ["--num-blocks", "1000000000000"]])
def test_a_pool_larger_than_the_machine_is_refused_with_what_would_fit(
    run_ostinato: Run, tiny_model: Path, flags: list[str]
) -> None:
    done = run_ostinato("serve", "--model", str(tiny_model), "--port", "0", *flags)
    assert done.returncode == 2
    assert "this machine has" in done.stderr
    assert "fit in what is free now" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_folder_that_cannot_be_one_is_told_with_the_way_out(
    run_ostinato: Run, tiny_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    arguments = ("serve", "--model", str(tiny_model), "--port", "0", "--data-dir")
    for folder in (file, file / "below", Path("/proc/nothing")):
        done = run_ostinato(*arguments, str(folder))
        assert done.returncode == 2
        assert "must be a folder that may be written" in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_clients_use_the_name_that_was_given(start_server: Start) -> None:
    server = start_server("--served-model-name", "mine")
    assert completion(server.url, model="mine").status_code == 200
    assert completion(server.url, model="tiny").status_code == 404
