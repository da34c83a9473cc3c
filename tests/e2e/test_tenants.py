"""Guards tenants on a real server: `cached_tokens` shows that nothing crosses from one to another, that a salt
narrows further, and that only a prompt that the operator names is shared. In pairs: the miss alone would also
pass with caching off."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from ostinato.api.key_file import KeyRole, add_key, revoke_key
from ostinato.cache.types import TenantId
from ostinato.clock import SystemClock
from tests.e2e.server import Server, running_server
from tests.tiny import write_tiny_model

ALPHA, BETA, GAMMA = (f"{name}-0123456789-0123456789" for name in ("alpha", "beta", "gamma"))
KEYS = f"alpha={ALPHA},beta={BETA},gamma={GAMMA}"
PUBLIC = "You are the support desk of a shop that sells metronomes, and you are patient."
CONFIG = f"""
[[tenants.shared]]
name = "support"
tenants = ["alpha", "beta"]
system_prompt = "{PUBLIC}"

[tenants.limits."*"]
weight = 0.5
num_blocks = 100
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tenants")
    (folder / "ostinato.toml").write_text(CONFIG, encoding="utf-8")
    flags = ("--num-blocks", "256", "--config", str(folder / "ostinato.toml"))
    model = write_tiny_model(folder / "tiny")
    with running_server(str(model), folder / "data", *flags, OSTINATO_API_KEYS=KEYS) as running:
        yield running


def ask(server: Server, key: str, route: str = "completions", **fields: object) -> int:
    """Cached tokens of one call."""
    answer = httpx2.post(
        f"{server.url}/v1/{route}",
        headers={"authorization": f"Bearer {key}"},
        json={"model": server.model, "max_tokens": 1, **fields},
        timeout=60,
    )
    usage = answer.raise_for_status().json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_a_tenant_hits_itself_and_misses_every_other(server: Server) -> None:
    prompt = list(range(50))
    assert ask(server, ALPHA, prompt=prompt) == 0
    assert ask(server, ALPHA, prompt=prompt) == 49
    assert ask(server, BETA, prompt=prompt) == 0
    assert ask(server, BETA, prompt=prompt) == 49


def test_the_same_salt_of_two_tenants_is_not_the_same(server: Server) -> None:
    prompt = list(range(50, 100))
    assert ask(server, ALPHA, prompt=prompt, cache_salt="s") == 0
    assert ask(server, ALPHA, prompt=prompt, cache_salt="s") == 49
    assert ask(server, BETA, prompt=prompt, cache_salt="s") == 0
    assert ask(server, ALPHA, prompt=prompt, cache_salt="t") == 0
    assert ask(server, ALPHA, prompt=prompt) == 0


def test_a_salt_that_spells_another_tenant_s_namespace_opens_nothing(server: Server) -> None:
    prompt = list(range(100, 150))
    ask(server, ALPHA, prompt=prompt)
    for salt in ("alpha", "alpha/None", "tenant=alpha", "~server"):
        assert ask(server, BETA, prompt=prompt, cache_salt=salt) == 0
    assert ask(server, ALPHA, prompt=prompt) == 49


def chat(server: Server, key: str, user: str, **fields: object) -> int:
    system = {"role": "system", "content": PUBLIC}
    messages = [system, {"role": "user", "content": user}]
    return ask(server, key, "chat/completions", messages=messages, **fields)


def test_the_named_prompt_is_warm_from_the_start_for_those_who_are_listed_and_nobody_else(
    server: Server,
) -> None:
    head = chat(server, ALPHA, "How loud is it?")
    assert head > 50
    assert chat(server, BETA, "How loud is it?") == head
    assert chat(server, GAMMA, "How loud is it?") == 0
    assert chat(server, ALPHA, "How loud is it?") > head
    assert chat(server, ALPHA, "How loud is it?", cache_salt="mine") == 0


def test_a_change_of_the_keys_counts_at_once_and_ends_no_answer_that_runs(
    tiny_model: Path, tmp_path: Path
) -> None:
    """On an address that others can reach, which keys allow."""
    file, clock = tmp_path / "api-keys.jsonl", SystemClock()
    record, first = add_key(file, TenantId("acme"), KeyRole.TENANT, clock)
    flags = ("--host", "0.0.0.0")
    spare = f"spare={ALPHA}"
    with running_server(str(tiny_model), tmp_path, *flags, OSTINATO_API_KEYS=spare) as server:
        assert any("2 API keys; acme, spare" in line for line in server.log)
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        old = {"authorization": f"Bearer {first}"}
        body = {"model": server.model, "prompt": "go on", "max_tokens": 2000, "ignore_eos": True}
        with httpx2.stream(
            "POST", f"{url}/v1/completions", json={**body, "stream": True}, headers=old
        ) as running:
            lines = running.iter_lines()
            assert next(lines).startswith("data: {")
            _, second = add_key(file, TenantId("globex"), KeyRole.TENANT, clock)
            revoke_key(file, record.key_id)
            server.process.send_signal(signal.SIGHUP)
            new = {"authorization": f"Bearer {second}"}
            assert httpx2.get(f"{url}/v1/models", headers=new).status_code == 200
            assert httpx2.get(f"{url}/v1/models", headers=old).status_code == 401
            assert "data: [DONE]" in list(lines)[-2:]
        assert first not in "".join(server.log)
