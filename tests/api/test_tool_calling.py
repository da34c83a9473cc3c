"""Guards tool calling on the wire of Chat Completions: the shape of calls whole and streamed, what each
`tool_choice` asks of the engine, and that a model which cannot call says so."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.backend import ServedModel
from ostinato.clock import ManualClock
from ostinato.engine.grammar.spec import Grammar, GrammarSpec, TriggeredGrammar
from ostinato.engine.outputs import FinishReason
from ostinato.models.tools.syntax import ToolCallStyle
from tests.api.fake import MODEL, FakeBackend
from tests.api.http import CHAT, refused

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
CALL = (
    "I add.",
    "\n<tool",
    "_call>\n",
    '{"name": "add", "arguments": {"a"',
    ": 1",
    "}}",
    "\n</tool_call>",
)


class ToolBackend(FakeBackend):
    """A fake model that writes Hermes calls."""

    style: ToolCallStyle | None = ToolCallStyle.HERMES

    def models(self) -> Sequence[ServedModel]:
        return (ServedModel(MODEL, 1_700_000_000, "tests", 2048, "fp_0123", self.style),)


@pytest.fixture
def backend() -> ToolBackend:
    return ToolBackend(words=CALL)


@pytest.fixture
def client(backend: ToolBackend) -> Iterator[TestClient]:
    app = create_app(backend, clock=ManualClock())
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def ask(client: TestClient, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "1 + 1?"}]
    body = {"model": MODEL, "messages": messages, "tools": [ADD, STOP], **fields}
    return client.post(CHAT, json=body)


def grammar(client: TestClient, backend: ToolBackend, **fields: Any) -> GrammarSpec | None:
    """What the engine was told to keep to."""
    response = ask(client, **fields)
    assert response.status_code == 200, response.text
    spec = backend.requests[-1].params.grammar
    assert spec is None or isinstance(spec, Grammar | TriggeredGrammar)
    return spec


def test_a_call_is_part_of_the_message_and_ends_it(client: TestClient) -> None:
    [choice] = ask(client).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["message"]["content"] == "I add."
    assert choice["finish_reason"] == "tool_calls"
    assert (call["type"], call["function"]) == (
        "function",
        {"name": "add", "arguments": '{"a": 1}'},
    )
    assert call["id"].startswith("call_")


def test_content_is_null_where_there_are_calls_only(
    client: TestClient, backend: ToolBackend
) -> None:
    backend.words = CALL[1:]
    [choice] = ask(client).json()["choices"]
    assert choice["message"]["content"] is None


def test_a_stream_gives_the_name_once_and_then_pieces_of_the_arguments(client: TestClient) -> None:
    lines = [line[6:] for line in ask(client, stream=True).text.splitlines() if line]
    chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert lines[-1] == "[DONE]"
    first = chunks[2]["delta"]["tool_calls"][0]
    assert [chunk["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "I add."},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": first["id"],
                    "type": "function",
                    "function": {"name": "add", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
        {},
    ]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * 6 + ["tool_calls"]


def test_ids_of_calls_differ_between_answers_and_between_responses(
    client: TestClient, backend: ToolBackend
) -> None:
    backend.words = (*CALL, *CALL[1:])
    ids = [
        call["id"]
        for response in (ask(client, n=2), ask(client, n=2))
        for choice in response.json()["choices"]
        for call in choice["message"]["tool_calls"]
    ]
    assert len(set(ids)) == len(ids) == 8


def test_a_call_that_was_cut_off_says_length(client: TestClient, backend: ToolBackend) -> None:
    backend.words, backend.finish = CALL[:5], FinishReason.LENGTH
    [choice] = ask(client).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": 1'


def test_log_probabilities_come_along_with_calls(client: TestClient) -> None:
    whole = ask(client, logprobs=True).json()["choices"][0]["logprobs"]["content"]
    lines = ask(client, logprobs=True, stream=True).text.splitlines()
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line and "[DONE]" not in line]
    streamed = [one for c in chunks if c["logprobs"] for one in c["logprobs"]["content"]]
    assert [one["token"] for one in whole] == [one["token"] for one in streamed] == list(CALL)


def test_an_answer_is_free_until_it_calls_unless_a_call_is_required(
    client: TestClient, backend: ToolBackend
) -> None:
    assert isinstance(grammar(client, backend), TriggeredGrammar)
    assert isinstance(grammar(client, backend, tool_choice="auto"), TriggeredGrammar)
    required = grammar(client, backend, tool_choice="required")
    assert isinstance(required, Grammar)
    assert '"add' in required.text.replace('\\"', '"')
    assert "stop" in required.text


def test_without_calls_the_mark_is_forbidden_and_the_tools_stay_in_the_prompt(
    client: TestClient, backend: ToolBackend
) -> None:
    spec = grammar(client, backend, tool_choice="none")
    assert isinstance(spec, Grammar)
    assert spec.text.startswith("start: TEXT")
    assert "<tool_call>" in spec.text
    source: Any = backend.requests[-1].prompt.source
    assert source.template_tools() == [ADD, STOP]
    [choice] = ask(client, tool_choice="none").json()["choices"]
    assert "tool_calls" not in choice["message"]
    form = grammar(client, backend, tool_choice="none", response_format={"type": "json_object"})
    assert isinstance(form, Grammar)
    assert form.param == "response_format"


def test_without_parallel_calls_one_is_the_most(client: TestClient, backend: ToolBackend) -> None:
    auto = grammar(client, backend, parallel_tool_calls=False)
    assert isinstance(auto, TriggeredGrammar)
    assert auto.max_matches == 1
    many = grammar(client, backend, tool_choice="required")
    one = grammar(client, backend, tool_choice="required", parallel_tool_calls=False)
    assert isinstance(many, Grammar)
    assert isinstance(one, Grammar)
    assert ")*" in many.text.splitlines()[0]
    assert ")*" not in one.text.splitlines()[0]


@pytest.mark.parametrize(
    ("choice", "is_required"),
    [
        ({"type": "function", "function": {"name": "stop"}}, True),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "stop"}}],
                },
            },
            True,
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "stop"}}],
                },
            },
            False,
        ),
    ],
)
def test_only_the_named_tools_may_be_called_and_all_stay_in_the_prompt(
    client: TestClient, backend: ToolBackend, choice: dict[str, Any], is_required: bool
) -> None:
    spec = grammar(client, backend, tool_choice=choice)
    assert isinstance(spec, Grammar if is_required else TriggeredGrammar)
    texts = spec.text if isinstance(spec, Grammar) else spec.triggers[0].grammar.text
    assert "stop" in texts
    assert '\\"add\\"' not in texts
    source: Any = backend.requests[-1].prompt.source
    assert source.template_tools() == [ADD, STOP]


def test_json_and_tools_together_allow_either(client: TestClient, backend: ToolBackend) -> None:
    spec = grammar(client, backend, response_format={"type": "json_object"})
    assert isinstance(spec, Grammar)
    assert "| answer" in spec.text


def test_a_mark_that_is_a_special_token_is_asked_for(
    client: TestClient, backend: ToolBackend
) -> None:
    grammar(client, backend)
    assert backend.requests[-1].params.shown_special_tokens == ("<tool_call>",)


def test_without_a_known_style_calls_stay_text_and_cannot_be_required(
    client: TestClient, backend: ToolBackend
) -> None:
    backend.style = None
    [choice] = ask(client).json()["choices"]
    assert choice["message"]["content"] == "".join(CALL)
    assert "tool_calls" not in choice["message"]
    error = refused(ask(client, tool_choice="required"), 400)
    assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")
    assert "--tool-call-parser" in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": {"type": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "x", "tools": []}}},
            "tool_choice.allowed_tools.mode",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [ADD, ADD]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
            "tools[0].function.parameters",
        ),
        ({"structured_outputs": {"regex": "a"}}, "tools"),
    ],
)
def test_what_is_malformed_is_refused_and_named(
    client: TestClient, backend: ToolBackend, fields: dict[str, Any], param: str
) -> None:
    assert refused(ask(client, **fields), 400)["param"] == param
    assert backend.requests == []
