"""Guards the step from a conversation to tokens: what a template would drop is refused, equal conversations
give equal tokens, and a stopped engine is told as such."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.backend import GenerationRequest, PromptInput
from ostinato.api.local import LocalBackend
from ostinato.api.prompt import Message, Prompt, Role, TextPart, ToolCall, ToolDefinition
from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.config_sections import CacheConfig, SchedulerConfig
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.build import build_engine
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import CapacityError, ContextLengthError, InvalidRequestError, RequestError
from ostinato.models.decoder import Decoder
from ostinato.models.tokenizer import Tokenizer
from ostinato.ops.base import BackendInfo
from tests.tiny import CHAT_TEMPLATE, write_tiny_model

ENDLESS_CONTEXT = 131_072
"""Tokens; an answer that fills it takes longer than any test."""
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    + "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    + "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    + CHAT_TEMPLATE
)


def start_engine(
    folder: Path, template: str | None, num_blocks: int = 16, **scheduler: int
) -> AsyncEngine:
    """A running engine over a tiny model with this chat template."""
    model = write_tiny_model(folder / "tiny", max_position=ENDLESS_CONTEXT)
    settings_file = model / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text())
    if template is None:
        del settings["chat_template"]
    else:
        settings["chat_template"] = template
    settings_file.write_text(json.dumps(settings))
    config = OstinatoConfig(
        model=str(model),
        data_dir=folder / "data",
        cache=CacheConfig(num_blocks=num_blocks),
        scheduler=SchedulerConfig(**scheduler),
    )
    engine = build_engine(config, clock=ManualClock())
    engine.start()
    return engine


@pytest.fixture
def backend(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalBackend]:
    engine = start_engine(tmp_path, getattr(request, "param", CHAT_TEMPLATE))
    yield LocalBackend(engine)
    engine.stop()


def user(text: str, **fields: object) -> Prompt:
    return Prompt((Message(Role.USER, (TextPart(text),)),), **fields)  # type: ignore[arg-type]


def request_for(
    backend: LocalBackend, prompt: PromptInput, max_tokens: int = 3
) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    encoded = asyncio.run(backend.encode(prompt))
    return GenerationRequest(request_id="r", model="tiny", prompt=encoded, params=params)


async def generate(backend: LocalBackend, request: GenerationRequest) -> list[OutputDelta]:
    async with aclosing(await backend.stream(request)) as deltas:
        return [delta async for delta in deltas]


def test_a_conversation_is_rendered_counted_and_reported_alike(backend: LocalBackend) -> None:
    prompt = user("hello")
    count = asyncio.run(backend.count(prompt))
    deltas = asyncio.run(generate(backend, request_for(backend, prompt)))
    report = deltas[-1].report
    assert report is not None
    assert report.prompt_tokens == count
    assert deltas[-1].num_output_tokens == 3
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_token_ids_pass_as_they_are(backend: LocalBackend) -> None:
    assert asyncio.run(backend.count((1, 2, 3))) == 3


def test_the_generation_prompt_can_be_left_out(backend: LocalBackend) -> None:
    with_opening = asyncio.run(backend.count(user("hello")))
    without = asyncio.run(backend.count(user("hello", add_generation_prompt=False)))
    assert without < with_opening


def test_what_can_never_be_served_is_refused_before_anything_streams(
    backend: LocalBackend,
) -> None:
    with pytest.raises(CapacityError, match="256"):
        asyncio.run(backend.stream(request_for(backend, (1,) * 257)))
    with pytest.raises(InvalidRequestError, match="at least one token"):
        asyncio.run(backend.stream(request_for(backend, "")))


@pytest.mark.parametrize("prompt", ["a" * 2_000_000, user("a" * 2_000_000)], ids=["text", "chat"])
def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    backend: LocalBackend, prompt: PromptInput, monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not_be_called(tokenizer: Tokenizer, text: str) -> list[int]:
        raise AssertionError("tokenised")

    monkeypatch.setattr(Tokenizer, "encode_prompt", must_not_be_called)
    monkeypatch.setattr(Tokenizer, "encode_marked", must_not_be_called)
    with pytest.raises(ContextLengthError, match=r"131072 tokens.* at least 153,8\d\d tokens"):
        asyncio.run(backend.stream(request_for(backend, prompt)))


def test_tools_without_a_place_in_the_template_are_refused(backend: LocalBackend) -> None:
    call = ToolCall("call_1", "f", "{}")
    with pytest.raises(RequestError, match="no place for tools") as tools:
        asyncio.run(backend.count(user("hello", tools=(ToolDefinition({"type": "function"}),))))
    calls = Prompt((Message(Role.ASSISTANT, (), tool_calls=(call,)),))
    with pytest.raises(RequestError, match="no place for tool_calls") as messages:
        asyncio.run(backend.count(calls))
    assert (tools.value.param, messages.value.param) == ("tools", "messages")


@pytest.mark.parametrize("backend", [TOOL_TEMPLATE], indirect=True)
def test_tools_reach_a_template_that_has_a_place_for_them(backend: LocalBackend) -> None:
    plain = asyncio.run(backend.count(user("hello")))
    tools = (ToolDefinition({"type": "function", "function": {"name": "f"}}),)
    assert asyncio.run(backend.count(user("hello", tools=tools))) > plain
    call = ToolCall("call_1", "lookup", '{"key": "value"}')
    calling = Prompt(
        (
            Message(Role.USER, (TextPart("hello"),)),
            Message(Role.ASSISTANT, (), tool_calls=(call,)),
        )
    )
    assert asyncio.run(backend.count(calling)) > plain


@pytest.mark.parametrize("backend", [TOOL_TEMPLATE], indirect=True)
def test_a_lone_surrogate_inside_a_tool_is_refused(backend: LocalBackend) -> None:
    with pytest.raises(InvalidRequestError, match="valid Unicode"):
        asyncio.run(backend.count(user("hello", tools=(ToolDefinition({"name": "\ud800"}),))))


@pytest.mark.parametrize("backend", [None], indirect=True)
def test_chat_with_a_model_without_a_template_says_what_to_use(backend: LocalBackend) -> None:
    with pytest.raises(InvalidRequestError, match="use /v1/completions"):
        asyncio.run(backend.count(user("hello")))
    assert asyncio.run(backend.count("hello")) > 0


def test_closing_the_stream_frees_the_blocks(tmp_path: Path) -> None:
    num_blocks = ENDLESS_CONTEXT // 16
    engine = start_engine(tmp_path, CHAT_TEMPLATE, num_blocks)
    backend = LocalBackend(engine)
    request = request_for(backend, (1, 2, 3), ENDLESS_CONTEXT - 1000)

    async def read_one() -> None:
        async with aclosing(await backend.stream(request)) as deltas:
            await anext(deltas)
        while backend.stats().running or backend.stats().waiting:
            await asyncio.sleep(0)

    try:
        asyncio.run(read_one())
    finally:
        engine.stop()
    blocks = backend.stats().blocks
    assert blocks.in_use == 0
    assert blocks.free + blocks.cached == blocks.total == num_blocks
    assert backend.stats().requests_finished_total[FinishReason.ABORT] == 1


def test_a_stopped_engine_is_a_503_everywhere(tmp_path: Path) -> None:
    engine = start_engine(tmp_path, CHAT_TEMPLATE)
    app = create_app(LocalBackend(engine), clock=ManualClock())
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    with TestClient(app) as client:
        assert client.get("/health").json()["status"] == "ok"
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        engine.stop()
        assert client.get("/health").status_code == 503
        for stream in (False, True):
            response = client.post("/v1/chat/completions", json={**body, "stream": stream})
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "engine_unavailable"


@pytest.mark.parametrize("backend", [TOOL_TEMPLATE], indirect=True)
def test_choosing_no_tool_leaves_the_prompt_and_so_its_cached_prefix_alone(
    backend: LocalBackend,
) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        usages = [
            client.post(
                "/v1/chat/completions", json={**body, "tools": tools, "tool_choice": choice}
            ).json()["usage"]
            for choice in ("auto", "none")
        ]
    assert usages[0]["prompt_tokens"] == usages[1]["prompt_tokens"]
    assert usages[1]["prompt_cache_miss_tokens"] == 1


def engine_for(folder: Path, **cache: object) -> AsyncEngine:
    config = OstinatoConfig(
        model=str(folder / "tiny"),
        data_dir=folder / "data",
        cache=CacheConfig.model_validate({"num_blocks": 4, **cache}),
    )
    return build_engine(config, clock=ManualClock())


def fingerprint_of(engine: AsyncEngine) -> str:
    (served,) = LocalBackend(engine).models()
    return served.fingerprint


def test_the_fingerprint_changes_with_whatever_may_change_an_answer_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path / "tiny")
    engine = engine_for(tmp_path)
    first = fingerprint_of(engine)
    assert fingerprint_of(engine_for(tmp_path, num_blocks=5, prefix_index="none")) == first
    assert fingerprint_of(engine_for(tmp_path, kv_dtype="fp32")) != first
    monkeypatch.setattr(Decoder, "backend", BackendInfo("other kernels"))
    assert fingerprint_of(engine) != first
    write_tiny_model(tmp_path / "tiny", seed=1)
    assert fingerprint_of(engine_for(tmp_path)) != first


def test_a_default_length_shrinks_to_the_room_and_a_given_one_is_refused(
    backend: LocalBackend,
) -> None:
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        body = {"model": "tiny", "ignore_eos": True, "prompt": [1] * (256 - 5)}
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 5
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert client.post("/v1/completions", json={**body, "max_tokens": 6}).status_code == 400
        full = client.post("/v1/completions", json={**body, "prompt": [1] * 256})
        assert full.status_code == 400
        assert full.json()["error"]["param"] == "prompt"
        short = client.post("/v1/completions", json={**body, "prompt": [1]})
        assert short.json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("n", [1, 2])
def test_a_call_with_more_prompts_than_may_wait_is_answered_whole(tmp_path: Path, n: int) -> None:
    engine = start_engine(tmp_path, CHAT_TEMPLATE, max_num_seqs=2, max_waiting=1)
    body = {"model": "tiny", "prompt": [[1, 2, i] for i in range(20)], "max_tokens": 2, "n": n}
    try:
        with TestClient(create_app(LocalBackend(engine), clock=ManualClock())) as client:
            answer = client.post("/v1/completions", json=body)
    finally:
        engine.stop()
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 20 * n
