"""Guards thoughts on the wire of every dialect: in a place of their own, whole and streamed, at every cut of
the text; counted; taken back; and left in the text of models that do not think."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.backend import EncodedPrompt, PromptInput
from ostinato.api.prompt import Prompt
from ostinato.clock import ManualClock
from ostinato.engine.grammar.spec import Grammar, ReasonedGrammar, TriggeredGrammar
from ostinato.models.reasoning.syntax import THINK, Reasoning
from ostinato.models.tools.syntax import ToolCallStyle
from tests.api.fake import MODEL, FakeBackend
from tests.api.test_recording import Recorded

TEXT = "<think>\nTwo and one.\n</think>\n\nThree."
THOUGHT, ANSWER = "Two and one.", "Three."
WORDS = ("<think>", "\n", "Two and", " one.", "\n</", "think>", "\n\n", "Three", ".")
NUM_THOUGHT = 6
"""Of the words up to the closing mark."""
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
HI = [{"role": "user", "content": "2 + 1?"}]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI = f"/v1beta/models/{MODEL}"


class ThinkingBackend(FakeBackend):
    """A fake model that thinks."""

    reasoning: Reasoning | None = Reasoning(THINK, is_open=False)

    async def encode(self, prompt: PromptInput) -> EncodedPrompt:
        encoded = await super().encode(prompt)
        thinks = self.reasoning if isinstance(prompt, Prompt) else None
        return replace(encoded, reasoning=thinks)


@pytest.fixture
def backend() -> ThinkingBackend:
    return ThinkingBackend(words=WORDS, tool_call_style=ToolCallStyle.HERMES)


@pytest.fixture
def client(backend: ThinkingBackend) -> Iterator[TestClient]:
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        yield client


def post(client: TestClient, url: str, body: dict[str, Any]) -> Any:
    response = client.post(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: TestClient, url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = client.post(url, json=body)
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": HI, **fields}


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "2 + 1?", **fields}


def message(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 99, "messages": HI, **fields}


def contents(*, shows: bool = True, **fields: Any) -> dict[str, Any]:
    config = {"thinkingConfig": {"includeThoughts": shows}}
    return {"contents": [{"parts": [{"text": "2 + 1?"}]}], "generationConfig": config, **fields}


def cuts() -> list[tuple[str, ...]]:
    """Ways to cut the text: into characters, and in two at every place."""
    return [tuple(TEXT), *((TEXT[:at], TEXT[at:]) for at in range(1, len(TEXT)))]


def from_chat(client: TestClient) -> tuple[str, str]:
    deltas = [chunk["choices"][0]["delta"] for chunk in stream(client, CHAT, chat(stream=True))]
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
    return thought, "".join(delta.get("content", "") for delta in deltas)


def from_responses(client: TestClient) -> tuple[str, str]:
    events = stream(client, RESPONSES, asked(stream=True))

    def told(kind: str) -> str:
        return "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta")

    return told("reasoning_text"), told("output_text")


def from_messages(client: TestClient) -> tuple[str, str]:
    deltas = [e["delta"] for e in stream(client, MESSAGES, message(stream=True)) if "delta" in e]
    thought = "".join(delta.get("thinking", "") for delta in deltas)
    return thought, "".join(delta.get("text", "") for delta in deltas)


def from_gemini(client: TestClient) -> tuple[str, str]:
    pieces = stream(client, f"{GEMINI}:streamGenerateContent?alt=sse", contents())
    parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
    thought = "".join(part["text"] for part in parts if part.get("thought"))
    return thought, "".join(part["text"] for part in parts if not part.get("thought"))


@pytest.mark.parametrize("told", [from_chat, from_responses, from_messages, from_gemini])
def test_a_stream_tells_thought_and_answer_apart_at_every_cut(
    client: TestClient, backend: ThinkingBackend, told: Any
) -> None:
    for words in cuts():
        backend.words = words
        assert told(client) == (THOUGHT, ANSWER), words


def test_chat_has_it_as_reasoning_content_and_counts_its_tokens(client: TestClient) -> None:
    answer = post(client, CHAT, chat())
    [choice] = answer["choices"]
    assert choice["message"]["reasoning_content"] == THOUGHT
    assert choice["message"]["content"] == ANSWER
    assert answer["usage"]["completion_tokens"] == len(WORDS)
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": NUM_THOUGHT}
    options = {"include_usage": True}
    last = stream(client, CHAT, chat(stream=True, stream_options=options))[-1]
    assert last["usage"] == answer["usage"]


def test_each_of_several_answers_has_its_own_thought(client: TestClient) -> None:
    answer = post(client, CHAT, chat(n=2))
    thoughts = [choice["message"]["reasoning_content"] for choice in answer["choices"]]
    assert thoughts == [THOUGHT, THOUGHT]
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": 2 * NUM_THOUGHT}


def test_responses_have_it_as_an_item_before_the_message(client: TestClient) -> None:
    answer = post(client, RESPONSES, asked())
    thought, said = answer["output"]
    assert thought["type"] == "reasoning"
    assert thought["id"].startswith("rs_")
    assert thought["summary"] == []
    assert thought["content"] == [{"type": "reasoning_text", "text": THOUGHT}]
    assert said["content"][0]["text"] == ANSWER
    assert answer["usage"]["output_tokens_details"] == {"reasoning_tokens": NUM_THOUGHT}


def test_a_streamed_thought_tells_its_events_in_order(client: TestClient) -> None:
    events = stream(client, RESPONSES, asked(stream=True))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_text.delta",
        "output_text.done",
        "completed",
    ]
    places = {e["type"]: e["output_index"] for e in events if "_text.d" in e["type"]}
    assert places["response.reasoning_text.done"] == 0
    assert places["response.output_text.done"] == 1
    finished = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert finished == events[-1]["response"]["output"]


def test_a_response_without_logprobs_of_thoughts(client: TestClient) -> None:
    answer = post(client, RESPONSES, asked(include=["message.output_text.logprobs"]))
    _, said = answer["output"]
    tokens = [one["token"] for one in said["content"][0]["logprobs"]]
    assert tokens[-2:] == ["Three", "."]
    assert "Two and" not in tokens


def test_anthropic_has_it_as_a_signed_block(client: TestClient) -> None:
    answer = post(client, MESSAGES, message())
    digest = hashlib.sha256(THOUGHT.encode()).hexdigest()
    assert answer["content"] == [
        {"type": "thinking", "thinking": THOUGHT, "signature": digest},
        {"type": "text", "text": ANSWER},
    ]
    assert answer["usage"]["output_tokens_details"] == {"thinking_tokens": NUM_THOUGHT}
    events = stream(client, MESSAGES, message(stream=True))
    kinds = [e.get("delta", {}).get("type", e["type"]) for e in events]
    assert list(dict.fromkeys(kinds)) == [
        "message_start",
        "content_block_start",
        "thinking_delta",
        "signature_delta",
        "content_block_stop",
        "text_delta",
        "message_delta",
        "message_stop",
    ]


def test_gemini_shows_thoughts_to_who_asks_and_counts_them_for_all(client: TestClient) -> None:
    url = f"{GEMINI}:generateContent"
    shown = post(client, url, contents())
    hidden = post(client, url, contents(shows=False))
    assert shown["candidates"][0]["content"]["parts"] == [
        {"text": THOUGHT, "thought": True},
        {"text": ANSWER},
    ]
    assert hidden["candidates"][0]["content"]["parts"] == [{"text": ANSWER}]
    for answer in (shown, hidden):
        usage = answer["usageMetadata"]
        assert usage["thoughtsTokenCount"] == NUM_THOUGHT
        assert usage["candidatesTokenCount"] == len(WORDS) - NUM_THOUGHT


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("url", "body"), [(CHAT, chat), (RESPONSES, asked), (MESSAGES, message)])
def test_the_ledger_knows_how_many_tokens_were_thoughts(
    backend: ThinkingBackend, url: str, body: Any, streamed: bool
) -> None:
    recorded = Recorded(backend)
    assert recorded.post(url, body(stream=streamed)).status_code == 200
    record = recorded.record()
    assert record.tokens.reasoning == NUM_THOUGHT
    assert record.tokens.output == len(WORDS)


def test_a_call_behind_a_thought_is_a_call_and_one_inside_it_is_not(
    client: TestClient, backend: ThinkingBackend
) -> None:
    backend.words = (f"<think>Maybe {CALL}?</think>\n\n", CALL)
    tool = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
    [choice] = post(client, CHAT, chat(tools=[tool]))["choices"]
    assert choice["message"]["reasoning_content"] == f"Maybe {CALL}?"
    assert choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"]) == 1
    flat = {"type": "function", "name": "add", "parameters": PARAMETERS}
    output = post(client, RESPONSES, asked(tools=[flat]))["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    named = {"name": "add", "input_schema": PARAMETERS}
    blocks = post(client, MESSAGES, message(tools=[named]))["content"]
    assert [block["type"] for block in blocks] == ["thinking", "tool_use"]


def test_what_answers_must_look_like_holds_behind_the_thought(
    client: TestClient, backend: ThinkingBackend
) -> None:
    post(client, CHAT, chat(response_format={"type": "json_object"}))
    params = backend.requests[-1].params
    assert isinstance(params.grammar, ReasonedGrammar)
    assert isinstance(params.grammar.grammar, Grammar)
    assert {"<think>", "</think>"} <= set(params.shown_special_tokens)
    tool = {"functionDeclarations": [{"name": "add"}]}
    post(client, f"{GEMINI}:generateContent", contents(tools=[tool]))
    spec = backend.requests[-1].params.grammar
    assert isinstance(spec, ReasonedGrammar)
    assert isinstance(spec.grammar, TriggeredGrammar)


def test_an_answer_that_begins_inside_a_thought_needs_no_opening_mark(
    client: TestClient, backend: ThinkingBackend
) -> None:
    backend.reasoning = Reasoning(THINK, is_open=True)
    backend.words = WORDS[1:]
    answer = post(client, CHAT, chat())
    assert answer["choices"][0]["message"]["reasoning_content"] == THOUGHT
    details = answer["usage"]["completion_tokens_details"]
    assert details == {"reasoning_tokens": NUM_THOUGHT - 1}


def test_a_thought_that_was_cut_off_stays_one(client: TestClient, backend: ThinkingBackend) -> None:
    backend.words = WORDS[:3]
    message_ = post(client, CHAT, chat())["choices"][0]["message"]
    assert (message_["reasoning_content"], message_["content"]) == ("Two and", "")
    output = post(client, RESPONSES, asked())["output"]
    assert [item["type"] for item in output] == ["reasoning"]


@pytest.mark.parametrize("told", [from_chat, from_responses, from_messages, from_gemini])
def test_models_that_do_not_think_keep_their_text(
    client: TestClient, backend: ThinkingBackend, told: Any
) -> None:
    backend.reasoning = None
    assert told(client) == ("", TEXT)


def test_raw_completions_are_never_split(client: TestClient) -> None:
    answer = post(client, "/v1/completions", {"model": MODEL, "prompt": "2 + 1 ="})
    assert answer["choices"][0]["text"] == TEXT


def reasonings(backend: ThinkingBackend) -> Sequence[str | None]:
    source = backend.requests[-1].prompt.source
    assert isinstance(source, Prompt)
    return [one.reasoning for one in source.messages if one.role == "assistant"]


def test_thoughts_come_back_to_the_prompt_in_every_dialect(
    client: TestClient, backend: ThinkingBackend
) -> None:
    said = post(client, CHAT, chat())["choices"][0]["message"]
    post(client, CHAT, chat(messages=[*HI, said, *HI]))
    assert reasonings(backend) == [THOUGHT]
    first = post(client, RESPONSES, asked())
    post(client, RESPONSES, asked(previous_response_id=first["id"]))
    assert reasonings(backend) == [THOUGHT]
    question = {"role": "user", "content": "2 + 1?"}
    post(client, RESPONSES, asked(input=[question, *first["output"], question]))
    assert reasonings(backend) == [THOUGHT]
    blocks = post(client, MESSAGES, message())["content"]
    turn = {"role": "assistant", "content": blocks}
    post(client, MESSAGES, message(messages=[*HI, turn, *HI]))
    assert reasonings(backend) == [THOUGHT]
    url = f"{GEMINI}:generateContent"
    answered = post(client, url, contents())["candidates"][0]["content"]
    asked_again = contents()["contents"][0]
    post(client, url, contents(contents=[asked_again, answered, asked_again]))
    assert reasonings(backend) == [THOUGHT]


@pytest.mark.parametrize(
    ("url", "body"),
    [
        (CHAT, chat(reasoning_effort="none")),
        (RESPONSES, asked(reasoning={"effort": "none"})),
        (MESSAGES, message(thinking={"type": "disabled"})),
        (
            f"{GEMINI}:generateContent",
            contents(generationConfig={"thinkingConfig": {"thinkingBudget": 0}}),
        ),
    ],
)
def test_each_dialect_can_switch_thinking_off(
    client: TestClient, backend: ThinkingBackend, url: str, body: dict[str, Any]
) -> None:
    post(client, url, body)
    source = backend.requests[-1].prompt.source
    assert isinstance(source, Prompt)
    assert source.template_variables == {"enable_thinking": False}
