"""Guards thoughts as vendors' SDKs see them, against a live process whose model always begins inside one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import Server, running_server
from tests.tool_template import HERMES_TEMPLATE, write_tool_model

ENDING = "{{ '<|im_start|>assistant\n' }}"
OPEN = HERMES_TEMPLATE.replace(
    ENDING, ENDING + "{{ '<think>\n' }}{% if false %}</think>{% endif %}"
)
"""A template that ends the prompt with the opening mark, and knows the other one."""
QUESTION: Any = [{"role": "user", "content": "2 + 1?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_tool_model(tmp_path_factory.mktemp("models") / "tiny-thinker")
    file = model / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**settings, "chat_template": OPEN}), encoding="utf-8")
    flags = ("--num-blocks", "128", "--max-model-len", "1000", "--disk-tier", "off")
    with running_server(str(model), tmp_path_factory.mktemp("data"), *flags) as running:
        yield running


def test_openai_sees_reasoning_items_and_reasoning_content(server: Server) -> None:
    fields: dict[str, Any] = {"model": server.model, "temperature": 0}
    with server.client() as client:
        chat = client.chat.completions.create(messages=QUESTION, max_tokens=9, **fields)
        chunks = list(
            client.chat.completions.create(messages=QUESTION, max_tokens=9, stream=True, **fields)
        )
        whole = client.responses.create(input="2 + 1?", max_output_tokens=9, **fields)
        events = list(
            client.responses.create(input="2 + 1?", max_output_tokens=9, stream=True, **fields)
        )
    thought = getattr(chat.choices[0].message, "reasoning_content")  # noqa: B009 - an extra field
    assert thought
    assert chat.choices[0].message.content == ""
    assert chat.usage is not None
    assert chat.usage.completion_tokens_details is not None
    assert chat.usage.completion_tokens_details.reasoning_tokens == 9
    deltas = [getattr(chunk.choices[0].delta, "reasoning_content", "") for chunk in chunks]
    assert "".join(delta or "" for delta in deltas) == thought
    [item] = whole.output
    assert item.type == "reasoning"
    assert item.content is not None
    assert item.content[0].text == thought
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == 9
    told = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(told) == thought


def test_anthropic_sees_thinking_blocks_whole_and_streamed(server: Server) -> None:
    anthropic = pytest.importorskip("anthropic", reason="pip install -e '.[dev]'")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    fields: dict[str, Any] = {"model": server.model, "max_tokens": 9, "messages": QUESTION}
    fields["extra_body"] = {"seed": 5}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    [block] = whole.content
    assert block.type == "thinking"
    assert block.thinking
    assert len(block.signature) == 64
    assert streamed.content == whole.content
    assert "thinking" in kinds
    assert "signature" in kinds
    assert whole.usage.output_tokens_details.thinking_tokens == 9


def test_gemini_sees_thoughts(server: Server) -> None:
    genai = pytest.importorskip("google.genai", reason="pip install -e '.[dev]'")
    client = genai.Client(api_key="none", http_options={"base_url": server.url})
    config: dict[str, Any] = {"max_output_tokens": 9, "temperature": 0}
    shown = client.models.generate_content(
        model=server.model,
        contents="2 + 1?",
        config={**config, "thinking_config": {"include_thoughts": True}},
    )
    hidden = client.models.generate_content(model=server.model, contents="2 + 1?", config=config)
    [part] = shown.candidates[0].content.parts
    assert part.thought is True
    assert part.text
    assert not hidden.text
    assert hidden.usage_metadata.thoughts_token_count == 9


def test_json_that_was_asked_for_comes_behind_the_thought_or_not_at_all(server: Server) -> None:
    with server.client() as client:
        answer = client.chat.completions.create(
            model=server.model,
            messages=QUESTION,
            response_format={"type": "json_object"},
            max_tokens=9,
        )
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].finish_reason == "length"
