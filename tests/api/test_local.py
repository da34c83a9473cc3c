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
from ostinato.api.prompt import Message, Prompt, Role, TextPart, ToolCall
from ostinato.clock import ManualClock
from ostinato.config import CacheConfig, OstinatoConfig
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.build import build_engine
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import CapacityError, InvalidRequestError, RequestError
from tests.tiny import CHAT_TEMPLATE, write_tiny_model

TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    + "{% for m in messages %}{% for c in m.tool_calls or [] %}"
    + "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    + CHAT_TEMPLATE
)


def start_engine(folder: Path, template: str | None) -> AsyncEngine:
    """A running engine over a tiny model with this chat template."""
    model = write_tiny_model(folder / "tiny")
    settings_file = model / "tokenizer_config.json"
    settings = json.loads(settings_file.read_text())
    if template is None:
        del settings["chat_template"]
    else:
        settings["chat_template"] = template
    settings_file.write_text(json.dumps(settings))
    config = OstinatoConfig(
        model=str(model), data_dir=folder / "data", cache=CacheConfig(num_blocks=16)
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


def request_for(prompt: PromptInput, max_tokens: int = 3) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    return GenerationRequest(request_id="r", model="tiny", prompt=prompt, params=params)


async def generate(backend: LocalBackend, request: GenerationRequest) -> list[OutputDelta]:
    async with aclosing(await backend.stream(request)) as deltas:
        return [delta async for delta in deltas]


def test_a_conversation_is_rendered_counted_and_reported_alike(backend: LocalBackend) -> None:
    prompt = user("hello")
    count = asyncio.run(backend.count(prompt))
    deltas = asyncio.run(generate(backend, request_for(prompt)))
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
        asyncio.run(backend.stream(request_for((1,) * 257)))
    with pytest.raises(InvalidRequestError, match="at least one token"):
        asyncio.run(backend.stream(request_for("")))


def test_tools_without_a_place_in_the_template_are_refused(backend: LocalBackend) -> None:
    call = ToolCall("call_1", "f", "{}")
    with pytest.raises(RequestError, match="no place for tools") as tools:
        asyncio.run(backend.count(user("hello", tools=({"type": "function"},))))
    calls = Prompt((Message(Role.ASSISTANT, (), tool_calls=(call,)),))
    with pytest.raises(RequestError, match="no place for tool_calls") as messages:
        asyncio.run(backend.count(calls))
    assert (tools.value.param, messages.value.param) == ("tools", "messages")


@pytest.mark.parametrize("backend", [TOOL_TEMPLATE], indirect=True)
def test_tools_reach_a_template_that_has_a_place_for_them(backend: LocalBackend) -> None:
    plain = asyncio.run(backend.count(user("hello")))
    tools = ({"type": "function", "function": {"name": "f"}},)
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
        asyncio.run(backend.count(user("hello", tools=({"name": "\ud800"},))))


@pytest.mark.parametrize("backend", [None], indirect=True)
def test_chat_with_a_model_without_a_template_says_what_to_use(backend: LocalBackend) -> None:
    with pytest.raises(InvalidRequestError, match="use /v1/completions"):
        asyncio.run(backend.count(user("hello")))
    assert asyncio.run(backend.count("hello")) > 0


def test_closing_the_stream_frees_the_blocks(backend: LocalBackend) -> None:
    async def read_one() -> None:
        async with aclosing(await backend.stream(request_for((1, 2, 3), 200))) as deltas:
            await anext(deltas)
        while backend.stats().running or backend.stats().waiting:
            await asyncio.sleep(0)

    asyncio.run(read_one())
    blocks = backend.stats().blocks
    assert blocks.in_use == 0
    assert blocks.free + blocks.cached == blocks.total == 16
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
