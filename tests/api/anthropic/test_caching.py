"""Guards caching as this dialect's clients see it: usage by lifetime, diagnostics, the ledger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.backend import EncodedPrompt, PromptInput
from ostinato.api.prompt import Prompt
from ostinato.cache.report import CacheReport
from ostinato.cache.types import MissReason
from ostinato.clock import ManualClock
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import HOUSE_RULES
from tests.api.anthropic.tools import HI, LONG, MESSAGES, SHORT, WEATHER, block, body, message, user
from tests.api.fake import FakeBackend
from tests.api.test_recording import Recorded

TOKENS_A_SEGMENT = 100


class CountingBackend(FakeBackend):
    """Every segment is a hundred tokens; reuses nothing."""

    async def encode(self, prompt: PromptInput) -> EncodedPrompt:
        assert isinstance(prompt, Prompt)
        segments = prompt.segments()
        ends = tuple(TOKENS_A_SEGMENT * (at + 1) for at in range(len(segments)))
        token_ids = np.arange(ends[-1] + 5, dtype=np.int32)
        self.report = CacheReport(len(token_ids), {}, MissReason.COLD)
        return EncodedPrompt(prompt, token_ids, segments, ends)


def client_of(backend: FakeBackend, **more: Any) -> TestClient:
    return TestClient(create_app(backend, clock=ManualClock(), **more))


def usage(answer: dict[str, Any]) -> tuple[int, int, int, int]:
    """Input, read, written for 5m, written for 1h; the two lifetimes must add up."""
    found = answer["usage"]
    by_ttl = found["cache_creation"]
    short, long = by_ttl["ephemeral_5m_input_tokens"], by_ttl["ephemeral_1h_input_tokens"]
    assert short + long == found["cache_creation_input_tokens"]
    return found["input_tokens"], found["cache_read_input_tokens"], short, long


SYSTEM = [block("a", cache_control=LONG), block("b")]
CONVERSATION = [user(block("c", cache_control=SHORT), block("d"))]


def test_writes_are_counted_by_lifetime_and_input_is_what_follows() -> None:
    with client_of(CountingBackend()) as client:
        answer = message(client, system=SYSTEM, messages=CONVERSATION)
    assert usage(answer) == (105, 0, 200, 100)


@pytest.mark.parametrize("house", ["local", "anthropic-512"])
def test_a_top_level_mark_lies_on_the_last_block(house: str) -> None:
    clock = ManualClock()
    cache = PromptCache(clock, b"s" * 32, HOUSE_RULES[house])
    conversation = [user(*(block(str(at)) for at in range(8)))]
    with client_of(CountingBackend(), prompt_cache=cache) as client:
        answer = message(client, messages=conversation, cache_control=LONG)
    assert usage(answer) == (5, 0, 0, 800)


def test_a_billing_line_does_not_reach_the_prompt() -> None:
    """It is another one at every request: nothing behind it would be read."""
    billing = block("x-anthropic-billing-header: cc_version=2.1.15; cch=0fa1c;")
    backend = FakeBackend()
    with client_of(CountingBackend()) as client, client_of(backend) as other:
        answer = message(client, system=[billing, *SYSTEM], messages=CONVERSATION)
        message(other, system=[billing, *SYSTEM], messages=CONVERSATION)
    assert usage(answer) == (105, 0, 200, 100)
    [request] = backend.requests
    assert "billing" not in repr(request.prompt.source)


def test_without_a_mark_nothing_is_written() -> None:
    with client_of(CountingBackend()) as client:
        assert usage(message(client)) == (105, 0, 0, 0)


def test_what_was_diagnosed_is_told_in_the_message(client: TestClient) -> None:
    base: dict[str, Any] = {"system": "Be brief.", "tools": [WEATHER]}
    first = message(client, diagnostics={"previous_message_id": None}, **base)
    assert first["diagnostics"] is None
    assert "diagnostics" not in message(client, **base)

    def reason(**changed: Any) -> Any:
        asked = {**base, **changed, "diagnostics": {"previous_message_id": first["id"]}}
        return message(client, **asked)["diagnostics"]

    longer = [*HI, {"role": "assistant", "content": "Hm."}, {"role": "user", "content": "Well?"}]
    assert reason() is None
    assert reason(messages=longer) is None
    assert reason(output_config={"effort": "high"}) is None
    assert reason(tool_choice={"type": "auto"}) is None
    assert reason(messages=[user(block("hi", cache_control=SHORT))]) is None
    kinds = {
        "system_changed": {"system": "Be long."},
        "tools_changed": {"tools": [{**WEATHER, "description": "Else."}]},
        "messages_changed": {"messages": [{"role": "user", "content": "ho"}]},
        "model_changed": {"speed": "fast"},
    }
    for kind, changed in kinds.items():
        found = reason(**changed)["cache_miss_reason"]
        assert found == {"type": kind, "cache_missed_input_tokens": 10}
    for changed in (
        {"tool_choice": {"type": "none"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"output_config": {"effort": "low"}},
    ):
        assert reason(**changed) == {"cache_miss_reason": {"type": "unavailable"}}


def test_a_message_that_nobody_knows_any_more_is_said_to_be_gone(client: TestClient) -> None:
    answer = message(client, diagnostics={"previous_message_id": "msg_0"})
    assert answer["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}


def test_the_ledger_has_the_id_the_tokens_and_the_longest_lifetime() -> None:
    recorded = Recorded(CountingBackend())
    answer = recorded.post(MESSAGES, body(system=SYSTEM, messages=CONVERSATION)).json()
    [record] = recorded.records()
    assert (record.dialect, record.response_id, record.retention) == (
        "anthropic",
        answer["id"],
        "1h",
    )
    tokens = record.tokens
    assert (tokens.input, tokens.read, tokens.write_short, tokens.write_long) == (405, 0, 200, 100)
