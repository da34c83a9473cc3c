"""Guards thoughts in continued responses: they go on from the very tokens while the model's template shows
them, and are gone where it leaves them out."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.backend import EncodedPrompt, PromptInput
from ostinato.api.prompt import Prompt
from ostinato.clock import ManualClock
from ostinato.models.chat_encoding import encode_segments
from ostinato.models.chat_template import ChatTemplate
from ostinato.models.reasoning.syntax import THINK, reasoning_of
from ostinato.models.tools.syntax import ToolCallStyle
from tests.api.openai_responses.test_responses import ask
from tests.api.openai_responses.test_tool_search import (
    CALLS,
    LOOKS,
    SEARCH,
    TOKENIZER,
    WEATHER,
    TokenBackend,
    token_ids,
    written,
)

THINKING_TEMPLATE = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}{{ '\n' }}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content and loop.index0 > ns.last %}"
    "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    '{% for c in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + c.function.name }}'
    "{{ '\", \"arguments\": ' }}{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
"""Shows thoughts since the last question, as Qwen 3's does."""
TINY = cast(
    Any,
    SimpleNamespace(
        name="tiny",
        tokenizer=TOKENIZER,
        chat_template=ChatTemplate(THINKING_TEMPLATE, bos_token="", eos_token=""),
    ),
)
THOUGHT = "<think>\nIt rains?\n</think>\n\n"
LOADED = {name: value for name, value in WEATHER.items() if name != "defer_loading"}


class ThinkingTokens(TokenBackend):
    """Thinks in real tokens."""

    async def encode(self, prompt: PromptInput) -> EncodedPrompt:
        assert isinstance(prompt, Prompt)
        tools = prompt.template_tools()
        chat = encode_segments(TINY, prompt.template_messages(), tools=tools)
        thinks = reasoning_of(THINK, chat.text_end)
        assert thinks is not None
        return EncodedPrompt(prompt, chat.token_ids, prompt.segments(), chat.boundaries, thinks)


@pytest.fixture
def backend() -> ThinkingTokens:
    answers = [(THOUGHT, CALLS), ("Yes.",)]
    return ThinkingTokens(tool_call_style=ToolCallStyle.HERMES, answers=answers)


@pytest.fixture
def client(backend: ThinkingTokens) -> Iterator[TestClient]:
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        yield client


def test_a_call_is_answered_behind_the_thought_that_led_to_it(
    client: TestClient, backend: ThinkingTokens
) -> None:
    first = ask(client, tools=[LOADED])
    assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
    call_id = first["output"][-1]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": "rain"}
    ask(client, [result], tools=[LOADED], previous_response_id=first["id"])
    known = [*token_ids(backend, 0), *written(THOUGHT + CALLS)]
    assert token_ids(backend, 1)[: len(known)] == known


def test_a_thought_is_gone_where_the_template_leaves_it_out(
    client: TestClient, backend: ThinkingTokens
) -> None:
    backend.answers = [(THOUGHT, "Yes."), ("No.",)]
    first = ask(client)
    ask(client, previous_response_id=first["id"])
    thought = written("It rains?")
    ids = token_ids(backend, 1)
    assert thought not in [ids[at : at + len(thought)] for at in range(len(ids))]
    assert ids[: len(token_ids(backend, 0))] == token_ids(backend, 0)


def test_a_search_goes_on_behind_the_thought_that_led_to_it(
    client: TestClient, backend: ThinkingTokens
) -> None:
    backend.answers = [(THOUGHT, LOOKS), (CALLS,)]
    output = ask(client, tools=[SEARCH, WEATHER])["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "tool_search_call",
        "tool_search_output",
        "function_call",
    ]
    known = [*token_ids(backend, 0), *written(THOUGHT + LOOKS)]
    assert token_ids(backend, 1)[: len(known)] == known
