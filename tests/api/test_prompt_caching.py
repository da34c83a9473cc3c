"""Guards the whole way of a breakpoint: from a prompt to tokens, through a real engine, to a bill's counters.

The rules themselves are held by the tables in `tests/product`; here a few of their rows meet real templates,
real K/V and a real report.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.backend import GenerationRequest
from ostinato.api.local import LocalBackend
from ostinato.api.prompt import (
    Breakpoint,
    Message,
    Prompt,
    Role,
    TextPart,
    ToolDefinition,
    TTLClass,
)
from ostinato.api.usage import TokenUsage, anthropic_usage, usage_of
from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.engine.sampling_params import SamplingParams
from ostinato.product.entries import CacheScope
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import HOUSE_RULES
from tests.api.http import CHAT
from tests.api.test_local import TOOL_TEMPLATE, start_engine

SHORT, LONG = Breakpoint(), Breakpoint(TTLClass.LONG)
TOOL = {"type": "function", "function": {"name": "look", "description": "Look " * 12}}
ANSWER_TOKENS = 3


def without_minimum(name: str) -> Any:
    return replace(HOUSE_RULES[name], min_tokens=1)


@dataclass
class House:
    """A server's inside: engine, prompt cache and clock."""

    backend: LocalBackend
    clock: ManualClock = field(default_factory=ManualClock)
    rules: str = "anthropic-1024"
    promises: bool = True
    ids: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.cache = PromptCache(self.clock, b"s" * 32, without_minimum(self.rules), 16)

    def serve(self, *prompts: Prompt, prewarm: bool = False) -> list[TokenUsage]:
        """The usage of prompts of which all are planned before the first runs."""
        return asyncio.run(self._serve(prompts, prewarm))

    async def _serve(self, prompts: tuple[Prompt, ...], prewarm: bool) -> list[TokenUsage]:
        params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True)
        planned = []
        for prompt in prompts:
            encoded = await self.backend.encode(prompt)
            cached = self.cache.plan(
                CacheScope(TenantId("us"), "tiny"),
                encoded.token_ids,
                encoded.segments,
                encoded.boundaries,
                encoded.implicit_breakpoint,
            )
            request = GenerationRequest(
                request_id=f"r{next(self.ids)}",
                model="tiny",
                prompt=encoded,
                params=SamplingParams.prewarm() if prewarm else params,
                retain=cached.plan.retain if self.promises else (),
            )
            planned.append((cached, request))
        usages = []
        for cached, request in planned:
            async with aclosing(await self.backend.stream(request)) as deltas:
                last = [delta async for delta in deltas][-1]
            assert last.report is not None
            split = self.cache.settle(cached, last.report)
            usages.append(usage_of(last.report, last.num_output_tokens, split))
        return usages


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    engine = start_engine(tmp_path, TOOL_TEMPLATE, num_blocks=64)
    yield House(LocalBackend(engine))
    engine.stop()


def said(role: Role, text: str, mark: Breakpoint | None = None) -> Message:
    return Message(role, (TextPart(text, mark),))


def conversation(*turns: Message, tool_mark: Breakpoint | None = None) -> Prompt:
    return Prompt(turns, (ToolDefinition(TOOL, tool_mark),))


SYSTEM = said(Role.SYSTEM, "be brief " * 20, SHORT)
HELLO = said(Role.USER, "hello there", SHORT)


def ends(house: House, prompt: Prompt) -> list[int]:
    """Where the marked segments end."""
    encoded = asyncio.run(house.backend.encode(prompt))
    pairs = zip(encoded.segments, encoded.boundaries, strict=True)
    return [end for segment, end in pairs if segment.breakpoint is not None and end is not None]


def test_first_repeated_and_a_turn_longer(house: House) -> None:
    prompt = conversation(SYSTEM, HELLO)
    system, hello = ends(house, prompt)
    [first] = house.serve(prompt)
    assert (first.read, first.write_short, first.write_long) == (0, hello, 0)
    [repeated] = house.serve(prompt)
    assert (repeated.read, repeated.written) == (hello, 0)
    assert repeated.uncached == repeated.prompt - hello
    longer = conversation(
        SYSTEM,
        said(Role.USER, "hello there"),
        said(Role.ASSISTANT, "hi"),
        said(Role.USER, "what now?", SHORT),
    )
    [turn] = house.serve(longer)
    assert (turn.read, turn.write_short) == (hello, ends(house, longer)[-1] - hello)
    assert system < hello


def test_tools_system_and_messages_are_read_as_far_as_they_are_the_same(house: House) -> None:
    house.serve(conversation(SYSTEM, HELLO, tool_mark=SHORT))
    changed = conversation(said(Role.SYSTEM, "be kind", SHORT), HELLO, tool_mark=SHORT)
    tool, _, last = ends(house, changed)
    [usage] = house.serve(changed)
    assert (usage.read, usage.write_short) == (tool, last - tool)


def test_an_hour_before_five_minutes_in_anthropics_own_words(house: House) -> None:
    prompt = conversation(said(Role.SYSTEM, "be brief " * 20, LONG), HELLO)
    system, hello = ends(house, prompt)
    house.serve(prompt)
    house.clock.advance(1000)
    [usage] = house.serve(prompt)
    assert anthropic_usage(usage) == {
        "input_tokens": usage.prompt - hello,
        "cache_creation_input_tokens": hello - system,
        "cache_read_input_tokens": system,
        "cache_creation": {
            "ephemeral_5m_input_tokens": hello - system,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": ANSWER_TOKENS,
        "service_tier": "standard",
    }
    assert usage.reused == usage.prompt - 1  # the K/V was there all the time; the entry was not


def other_traffic(house: House) -> None:
    """More than the pool holds."""
    for n in range(12):
        house.serve(Prompt((said(Role.USER, f"{n} " + "other words " * 60),)))


def test_a_breakpoint_keeps_its_kv_through_other_traffic(house: House) -> None:
    prompt = conversation(SYSTEM, HELLO)
    [first] = house.serve(prompt)
    other_traffic(house)
    [usage] = house.serve(prompt)
    assert (usage.read, usage.written) == (first.written, 0)


def test_evicted_kv_is_a_new_write_whatever_the_book_says(house: House) -> None:
    house.promises = False
    prompt = conversation(SYSTEM, HELLO)
    [first] = house.serve(prompt)
    other_traffic(house)
    [usage] = house.serve(prompt)
    assert usage.reused is not None
    assert usage.reused < ends(house, prompt)[0]
    assert (usage.read, usage.write_short) == (0, first.write_short)


def test_a_cold_fan_out_writes_in_every_branch_though_the_engine_computes_it_once(
    house: House,
) -> None:
    branches = [conversation(SYSTEM, said(Role.USER, f"branch {n}")) for n in range(3)]
    usages = house.serve(*branches)
    [system] = ends(house, branches[0])
    assert [(one.read, one.write_short) for one in usages] == [(0, system)] * 3
    assert all((one.reused or 0) >= system for one in usages[1:])
    [after] = house.serve(branches[0])
    assert (after.read, after.written) == (system, 0)


def test_a_prewarm_is_billed_as_a_write_and_generates_nothing(house: House) -> None:
    shared = conversation(SYSTEM, said(Role.USER, "."))
    [warm] = house.serve(shared, prewarm=True)
    [system] = ends(house, shared)
    assert (warm.read, warm.write_short, warm.output) == (0, system, 0)
    [usage] = house.serve(conversation(SYSTEM, said(Role.USER, "now for real")))
    assert (usage.read, usage.written) == (system, 0)


def chat(text: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": "be brief " * 20}, {"role": "user", "content": text}]
    return {"model": "tiny", "messages": messages, "max_tokens": 2, "temperature": 0}


def details(client: TestClient, body: dict[str, Any]) -> tuple[int, int, int]:
    """Prompt tokens, cached ones, written ones."""
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    found = usage["prompt_tokens_details"]
    assert usage["prompt_cache_hit_tokens"] == found["cached_tokens"]
    return usage["prompt_tokens"], found["cached_tokens"], found["cache_write_tokens"]


def test_under_openais_rules_a_call_writes_to_the_end_of_its_message(house: House) -> None:
    cache = PromptCache(house.clock, b"s" * 32, without_minimum("openai-5.6"), 16)
    app = create_app(house.backend, clock=house.clock, prompt_cache=cache)
    with TestClient(app) as client:
        prompt, read, written = details(client, chat("hello"))
        assert read == 0
        assert prompt - 40 < written < prompt
        assert details(client, chat("hello")) == (prompt, written, 0)
        _, other, _ = details(client, chat("another question"))
        assert other == 0  # the end of the developer message was no ending that had been written
        house.clock.advance(1800)
        assert details(client, chat("hello")) == (prompt, 0, written)


def test_by_default_a_call_reads_exactly_what_was_reused_and_writes_nothing(house: House) -> None:
    with TestClient(create_app(house.backend, clock=house.clock)) as client:
        prompt, read, written = details(client, chat("hello"))
        assert (read, written) == (0, 0)
        assert details(client, chat("hello")) == (prompt, prompt - 1, 0)
        _, other, _ = details(client, chat("another question"))
        assert 0 < other < prompt
        streamed = client.post(
            CHAT,
            json={**chat("hello"), "stream": True, "stream_options": {"include_usage": True}},
        )
        assert f'"cached_tokens":{prompt - 1}' in streamed.text.replace(": ", ":")
