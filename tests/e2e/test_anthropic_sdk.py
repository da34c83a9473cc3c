"""Guards what users of the `anthropic` SDK see, of the current version and an older one, in a live process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from tests.e2e.scripts import anthropic_features
from tests.e2e.sdk_folder import install, run_script
from tests.e2e.server import Server, running_server
from tests.tool_template import write_tool_model

OLDER = "anthropic==0.79.0"
SCRIPT = Path(anthropic_features.__file__)
SHORT: dict[str, Any] = {"type": "ephemeral"}
LONG: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}
FLAGS = ("--num-blocks", "1024", "--max-model-len", "8000", "--disk-tier", "off")


@pytest.fixture(scope="module")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose template knows tools."""
    return write_tool_model(tmp_path_factory.mktemp("anthropic") / "tiny", max_position=8000)


@pytest.fixture
def server(tool_model: Path, tmp_path: Path) -> Iterator[Server]:
    with running_server(str(tool_model), tmp_path, *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def house_server(tool_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Under Anthropic's own rules: entries, and a minimum of 512 tokens."""
    flags = (*FLAGS, "--house-rules", "anthropic-512")
    with running_server(str(tool_model), tmp_path_factory.mktemp("data"), *flags) as server:
        yield server


def check(found: dict[str, Any], server: Server, *, knows_version: bool) -> None:
    """What every version of the SDK must see."""
    texts = found["texts"]
    assert texts["whole"]
    assert {texts["streamed"], texts["final"], *found["async"]} == {texts["whole"]}
    assert texts["events"][0] == "message_start"
    assert texts["events"][1] == "content_block_start"
    assert texts["events"][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(texts["events"][2:-3]) == {"content_block_delta"}
    assert texts["stop_reasons"] == ["max_tokens"] * 2
    assert texts["outputs"] == [8, 8]
    assert texts["request_id"].startswith("req_")

    caching = found["caching"]
    (plain, read, short, long), *rest = caching["warm"]
    assert rest == ["max_tokens", 0, 0]
    assert read < 5  # what the prompts of all conversations begin with
    assert min(plain, short, long) > 0
    prompt = plain + read + short + long
    for again in (caching["first"], caching["second"]):
        assert sum(again) == prompt
        assert again[1] == prompt - 1  # the last token is always computed
    assert caching["other"][1] > 0
    nothing, same, changed = caching["diagnostics"]
    assert nothing is None
    assert same is None
    assert changed["cache_miss_reason"]["type"] == "system_changed"
    assert changed["cache_miss_reason"]["cache_missed_input_tokens"] > 0

    tools = found["tools"]
    assert tools["stop_reason"] == "tool_use"
    kind, name, given = tools["call"]
    assert (kind, name) == ("tool_use", "look")
    assert given["at"] in ("here", "there")
    assert tools["streamed"][0] == "tool_use"
    reason, (_, reused, _, _) = tools["answered"]
    assert reason in ("max_tokens", "end_turn")
    assert (
        reused >= tools["prompt"]
    )  # a random model does not spell its call as the tokenizer would

    assert found["json"]["colour"] in ("red", "blue")
    assert found["counted"] > 100
    assert found["models"] == [server.model]
    assert found["model"] == "model"
    refusals = found["refusals"]
    assert refusals["model"] == ["NotFoundError", "not_found_error", True]
    assert refusals["empty"] == ["BadRequestError", "invalid_request_error", True]
    assert refusals["image"] == ["BadRequestError", "invalid_request_error", True]
    assert refusals["temperature"] is (True if knows_version else None)


def test_the_current_sdk_sees_every_feature(server: Server) -> None:
    found = anthropic_features.main(server.url, server.model)
    check(found, server, knows_version=True)


@pytest.mark.slow
def test_an_older_sdk_sees_every_feature(server: Server, sdk_cache: Path) -> None:
    printed = run_script(SCRIPT, install(OLDER, sdk_cache), server.url, server.model)
    found = json.loads(printed)
    assert found["version"] == OLDER.partition("==")[2]
    check(found, server, knows_version=False)


def text(name: str, words: int) -> str:
    """Some `words` words that begin with the name."""
    return " ".join([name, *["rain"] * words])


def block(name: str, words: int, mark: dict[str, Any] | None = None) -> dict[str, Any]:
    part = {"type": "text", "text": text(name, words)}
    return part if mark is None else {**part, "cache_control": mark}


def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def ask(server: Server, **fields: Any) -> tuple[int, int, int, int]:
    """Input, read, and written for 5m and 1h."""
    body = {"model": server.model, "max_tokens": 1, "ignore_eos": True, **fields}
    answer = httpx2.post(f"{server.url}/v1/messages", json=body, timeout=60.0).raise_for_status()
    usage = answer.json()["usage"]
    by_ttl = usage["cache_creation"]
    short, long = by_ttl["ephemeral_5m_input_tokens"], by_ttl["ephemeral_1h_input_tokens"]
    return usage["input_tokens"], usage["cache_read_input_tokens"], short, long


def test_the_first_writes_a_repeat_reads_and_a_turn_more_reads_what_was_written(
    house_server: Server,
) -> None:
    system = [block("grow", 700)]
    turns = [said("user", block("one", 30, SHORT))]
    _, read, short, _ = ask(house_server, system=system, messages=turns)
    assert read == 0
    assert short > 700
    assert ask(house_server, system=system, messages=turns)[1:3] == (short, 0)
    longer = [
        said("user", block("one", 30)),
        said("assistant", block("two", 30)),
        said("user", block("three", 30, SHORT)),
    ]
    plain, read, more, _ = ask(house_server, system=system, messages=longer)
    assert read == short
    assert more > 60
    assert plain < 20


def test_a_changed_system_prompt_leaves_marked_tools_and_a_changed_tool_leaves_nothing(
    house_server: Server,
) -> None:
    def tool(name: str) -> dict[str, Any]:
        schema = {"type": "object", "description": text(name, 700)}
        return {"name": "look", "input_schema": schema, "cache_control": LONG}

    question = [said("user", block("q", 3))]
    _, read, short, long = ask(
        house_server, tools=[tool("x")], system=[block("s", 700, SHORT)], messages=question
    )
    assert read == 0
    assert min(short, long) > 700
    _, read, again, _ = ask(
        house_server, tools=[tool("x")], system=[block("t", 700, SHORT)], messages=question
    )
    assert (read, again) == (long, short)
    _, read, _, written = ask(
        house_server, tools=[tool("y")], system=[block("s", 700, SHORT)], messages=question
    )
    assert (read, written) == (0, long)


def test_below_the_minimum_nothing_is_cached_and_nothing_is_said(house_server: Server) -> None:
    for _ in range(2):
        counted = ask(house_server, messages=[said("user", block("few", 100, SHORT))])
        assert counted[1:] == (0, 0, 0)


@pytest.mark.parametrize(("blocks", "is_read"), [(18, True), (25, False)])
def test_the_look_back_ends_after_twenty_blocks(
    house_server: Server, blocks: int, is_read: bool
) -> None:
    head = block(f"far {blocks}", 700, SHORT)
    _, _, written, _ = ask(house_server, messages=[said("user", head)])
    tail = [block(f"b{at}", 1) for at in range(blocks - 1)]
    head = block(f"far {blocks}", 700)
    _, read, _, _ = ask(house_server, messages=[said("user", head, *tail, block("end", 1, SHORT))])
    assert read == (written if is_read else 0)


def test_a_prewarm_lets_the_first_question_read(house_server: Server) -> None:
    system = [block("warm", 700, SHORT)]
    _, read, written, _ = ask(
        house_server, system=system, max_tokens=0, messages=[said("user", block("x", 1))]
    )
    assert read == 0
    assert written > 700
    _, read, _, _ = ask(house_server, system=system, messages=[said("user", block("why", 1))])
    assert read == written


def test_system_messages_in_mid_conversation_leave_the_prefix_alone(house_server: Server) -> None:
    turns = [said("user", block("mid", 700, SHORT))]
    _, _, written, _ = ask(house_server, messages=turns)
    turns.append({"role": "system", "content": "The user is in a hurry."})
    _, read, _, _ = ask(house_server, messages=turns)
    assert read == written


def test_a_key_in_either_header_finds_its_tenant(tool_model: Path, tmp_path: Path) -> None:
    keys = "acme=0123456789abcdef0123"
    with running_server(str(tool_model), tmp_path, *FLAGS, OSTINATO_API_KEYS=keys) as server:
        ways: list[dict[str, Any]] = [
            {"api_key": server.api_key},
            {"auth_token": server.api_key},
            {
                "api_key": "none",
                "default_headers": {"x-api-key": server.api_key, "authorization": ""},
            },
        ]
        for way in ways:
            with anthropic.Anthropic(base_url=server.url, max_retries=0, **way) as client:
                answer = client.messages.create(
                    model=server.model, max_tokens=1, messages=anthropic_features.HELLO
                )
                assert answer.type == "message"
        with (
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError),
        ):
            client.models.list()
