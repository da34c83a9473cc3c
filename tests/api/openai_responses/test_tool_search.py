"""Guards tool search in Responses: the server runs it inside one response, or leaves it to the client; what is
found is appended, so that every token in front of it stays; and it is read back as the same prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ostinato.api.app import create_app
from ostinato.api.backend import (
    EncodedPrompt,
    GenerationRequest,
    PromptInput,
    ServedModel,
)
from ostinato.api.prompt import Prompt, Role
from ostinato.api.tool_search import MAX_ROUNDS, NOTHING_FOUND
from ostinato.clock import ManualClock
from ostinato.engine.grammar.spec import Grammar, TriggeredGrammar
from ostinato.engine.outputs import OutputDelta
from ostinato.models.chat_encoding import encode_segments
from ostinato.models.chat_template import ChatTemplate
from ostinato.models.tokenizer import Tokenizer
from ostinato.models.tools.syntax import ToolCallStyle
from tests.api.anthropic.tools import ScriptedBackend
from tests.api.openai_responses.test_responses import ask, events, refuse
from tests.tiny import tiny_tokenizer_json, tiny_vocabulary
from tests.tool_template import HERMES_TEMPLATE

END = tiny_vocabulary()["<|im_end|>"]
TOKENIZER = Tokenizer.from_json(
    json.dumps(tiny_tokenizer_json()), bos_token_id=None, eos_token_ids=(END,)
)
TEMPLATE = ChatTemplate(HERMES_TEMPLATE, bos_token="", eos_token="")
TINY = cast(Any, SimpleNamespace(name="tiny", tokenizer=TOKENIZER, chat_template=TEMPLATE))

SEARCH = {"type": "tool_search"}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "defer_loading": True,
}
MAIL: dict[str, Any] = {**WEATHER, "name": "send_mail", "description": "Sends a mail."}
CRM: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {**WEATHER, "name": "find_customer"},
        {**WEATHER, "name": "ping", "defer_loading": False},
    ],
}
TOOLS = [SEARCH, WEATHER, MAIL]
QUESTION = {"role": "user", "content": "hello"}


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def output_of(called: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": called["call_id"], "output": "rain"}


LOOKS = call("tool_search", query="weather")
CALLS = call("get_weather", city="Oslo")


class TokenBackend(ScriptedBackend):
    """Answers prepared texts, in real tokens, to prompts in real tokens."""

    def models(self) -> Sequence[ServedModel]:
        [model] = super().models()
        return (replace(model, end_token_ids=frozenset((END,))),)

    async def encode(self, prompt: PromptInput) -> EncodedPrompt:
        assert isinstance(prompt, Prompt)
        chat = encode_segments(
            TINY,
            prompt.template_messages(),
            tools=prompt.template_tools(),
            variables=prompt.template_variables,
        )
        return EncodedPrompt(prompt, chat.token_ids, prompt.segments(), chat.boundaries)

    def _delta(
        self, request: GenerationRequest, index: int, position: int, word: str
    ) -> OutputDelta:
        delta = super()._delta(request, index, position, word)
        token_ids = written(word)
        if delta.finish_reason is not None:
            token_ids = [*token_ids, END]
        return replace(delta, token_ids=tuple(token_ids))


def written(text: str) -> list[int]:
    """As no tokenizer would write it: byte by byte."""
    return list(text.encode())


@pytest.fixture
def backend() -> TokenBackend:
    answers = [("I look.\n", LOOKS), (CALLS,)]
    return TokenBackend(tool_call_style=ToolCallStyle.HERMES, answers=answers)


@pytest.fixture
def client(backend: TokenBackend) -> Iterator[TestClient]:
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        yield client


def prompt(backend: TokenBackend, at: int) -> Prompt:
    source = backend.requests[at].prompt.source
    assert isinstance(source, Prompt)
    return source


def token_ids(backend: TokenBackend, at: int) -> list[int]:
    ids: list[int] = backend.requests[at].prompt.token_ids.tolist()
    return ids


def test_a_search_and_the_call_behind_it_are_one_response(
    client: TestClient, backend: TokenBackend
) -> None:
    response = ask(client, tools=TOOLS)
    said, looked, found, called = response["output"]
    assert said["content"][0]["text"] == "I look."
    assert looked["id"].startswith("tsc_")
    assert (looked["type"], looked["execution"]) == ("tool_search_call", "server")
    assert (looked["call_id"], looked["status"]) == (None, "completed")
    assert looked["arguments"] == {"query": "weather"}
    assert (found["type"], found["execution"]) == ("tool_search_output", "server")
    assert found["tools"] == [WEATHER]
    assert called["type"] == "function_call"
    assert json.loads(called["arguments"]) == {"city": "Oslo"}
    assert response["status"] == "completed"
    assert response["usage"]["output_tokens"] == 3
    assert response["tools"][0] == SEARCH


def test_every_token_in_front_of_what_was_found_stays(
    client: TestClient, backend: TokenBackend
) -> None:
    ask(client, tools=TOOLS)
    before, behind = prompt(backend, 0), prompt(backend, 1)
    names = [tool["function"]["name"] for tool in before.template_tools()]
    assert names == ["tool_search"]
    assert behind.template_tools() == before.template_tools()
    generated = [*written("I look.\n"), *written(LOOKS)]
    known = [*token_ids(backend, 0), *generated]
    assert token_ids(backend, 1)[: len(known)] == known
    assert '"get_weather"' in behind.messages[-1].text


def test_other_deferred_tools_leave_the_prompt_as_it_is(
    client: TestClient, backend: TokenBackend
) -> None:
    backend.answers = [("Well.",)]
    ask(client, tools=TOOLS)
    ask(client, tools=[SEARCH, MAIL, {**WEATHER, "name": "other"}])
    assert token_ids(backend, 0) == token_ids(backend, 1)


def test_a_continued_response_begins_with_all_that_was_computed_and_generated(
    client: TestClient, backend: TokenBackend
) -> None:
    first = ask(client, tools=TOOLS)
    result = {
        "type": "function_call_output",
        "call_id": first["output"][-1]["call_id"],
        "output": "rain",
    }
    ask(client, [result], tools=TOOLS, previous_response_id=first["id"])
    known = [*token_ids(backend, 1), *written(CALLS)]
    assert token_ids(backend, 2)[: len(known)] == known
    assert prompt(backend, 2).messages[-1].text == "rain"


def test_items_that_are_sent_back_become_the_same_prompt(
    client: TestClient, backend: TokenBackend
) -> None:
    backend.answers = [("I look.\n", LOOKS, LOOKS), (CALLS,)]
    first = ask(client, tools=TOOLS)
    kinds = [item["type"] for item in first["output"]]
    assert kinds == [
        "message",
        *("tool_search_call",) * 2,
        *("tool_search_output",) * 2,
        "function_call",
    ]
    parsed = Response.model_validate(first)
    resent = [item.to_dict() for item in parsed.output]
    ask(client, [QUESTION, *resent, output_of(resent[-1]), QUESTION], tools=TOOLS)
    computed, again = prompt(backend, 1), prompt(backend, 2)
    assert again.template_messages()[0] == computed.template_messages()[0]
    for mine, theirs in zip(computed.messages, again.messages, strict=False):
        assert (mine.role, mine.text) == (theirs.role, theirs.text)
        assert [c.arguments for c in mine.tool_calls] == [c.arguments for c in theirs.tool_calls]
    rendered = encode_segments(
        TINY,
        computed.template_messages(),
        tools=computed.template_tools(),
        add_generation_prompt=False,
    )
    whole = rendered.token_ids.tolist()
    assert token_ids(backend, 2)[: len(whole)] == whole


def test_a_tool_that_was_found_before_may_be_called_at_once(
    client: TestClient, backend: TokenBackend
) -> None:
    first = ask(client, tools=TOOLS)
    names = _callable(backend)
    assert names == {"tool_search", "get_weather"}
    backend.answers = [("Well.",)]
    answer = output_of(first["output"][-1])
    ask(client, [answer, QUESTION], tools=TOOLS, previous_response_id=first["id"])
    assert _callable(backend) == {"tool_search", "get_weather"}
    ask(client, tools=TOOLS)
    assert _callable(backend) == {"tool_search"}


def _callable(backend: TokenBackend) -> set[str]:
    """Names that the last answer could call."""
    spec = backend.requests[-1].params.grammar
    assert isinstance(spec, TriggeredGrammar)
    names = ("tool_search", "get_weather", "send_mail", "crm.find_customer", "crm.ping")
    return {name for name in names if f'\\"{name}\\"' in spec.triggers[0].grammar.text}


def test_a_stream_tells_of_the_search_in_order_and_the_sdk_reads_it(client: TestClient) -> None:
    stream = events(client, tools=TOOLS)
    reads: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for event in stream:
        assert reads.validate_python(event).type == event["type"]
    told = [
        (event["type"].removeprefix("response."), event.get("item", {}).get("type"))
        for event in stream
        if "delta" not in event["type"]
    ]
    assert told == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", "message"),
        ("content_part.added", None),
        ("output_text.done", None),
        ("content_part.done", None),
        ("output_item.done", "message"),
        ("output_item.added", "tool_search_call"),
        ("output_item.done", "tool_search_call"),
        ("output_item.added", "tool_search_output"),
        ("output_item.done", "tool_search_output"),
        ("output_item.added", "function_call"),
        ("function_call_arguments.done", None),
        ("output_item.done", "function_call"),
        ("completed", None),
    ]
    done = [event for event in stream if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2, 3]
    assert [event["item"] for event in done] == stream[-1]["response"]["output"]


def test_a_search_that_the_client_runs_ends_the_response(
    client: TestClient, backend: TokenBackend
) -> None:
    asks = {"type": "object", "properties": {"goal": {"type": "string"}}}
    own = {"type": "tool_search", "execution": "client", "description": "Find.", "parameters": asks}
    backend.answers = [(call("tool_search", goal="rain"),), (CALLS,)]
    first = ask(client, tools=[own])
    [looked] = first["output"]
    assert (looked["type"], looked["execution"]) == ("tool_search_call", "client")
    assert looked["call_id"].startswith("call_")
    assert looked["arguments"] == {"goal": "rain"}
    [schema] = prompt(backend, 0).template_tools()
    assert schema["function"] == {"name": "tool_search", "description": "Find.", "parameters": asks}
    found = {
        "type": "tool_search_output",
        "execution": "client",
        "call_id": looked["call_id"],
        "tools": [WEATHER],
    }
    second = ask(client, [found], tools=[own], previous_response_id=first["id"])
    assert second["output"][0]["name"] == "get_weather"
    assert prompt(backend, 1).messages[-1].role is Role.TOOL
    known = [*token_ids(backend, 0), *written(call("tool_search", goal="rain"))]
    assert token_ids(backend, 1)[: len(known)] == known


def test_functions_of_a_namespace_are_found_and_called_in_it(
    client: TestClient, backend: TokenBackend
) -> None:
    backend.answers = [
        (call("tool_search", query="customer"),),
        (call("crm.find_customer", city="x"),),
    ]
    first = ask(client, tools=[SEARCH, CRM])
    _, found, called = first["output"]
    assert found["tools"] == [{**CRM, "tools": CRM["tools"][:1]}]
    assert (called["name"], called["namespace"]) == ("find_customer", "crm")
    assert _callable(backend) == {"tool_search", "crm.find_customer", "crm.ping"}
    ask(client, [QUESTION, *first["output"], output_of(called), QUESTION], tools=[SEARCH, CRM])
    [turn] = [m for m in prompt(backend, -1).messages if m.tool_calls][1:]
    assert turn.tool_calls[0].name == "crm.find_customer"


def test_additional_tools_of_the_client_are_appended_and_may_be_called(
    client: TestClient, backend: TokenBackend
) -> None:
    backend.answers = [(CALLS,)]
    tool = {name: value for name, value in WEATHER.items() if name != "defer_loading"}
    more = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    response = ask(client, [QUESTION, more], tools=[])
    assert response["output"][0]["name"] == "get_weather"
    assert '"get_weather"' in prompt(backend, 0).messages[-1].text
    assert prompt(backend, 0).template_tools() == []


def test_a_forced_search_is_forced_once(client: TestClient, backend: TokenBackend) -> None:
    ask(client, tools=TOOLS, tool_choice={"type": "function", "name": "tool_search"})
    forced, free = (request.params.grammar for request in backend.requests)
    assert isinstance(forced, Grammar)
    assert isinstance(free, TriggeredGrammar)


def test_a_model_that_searches_for_ever_is_stopped(
    client: TestClient, backend: TokenBackend
) -> None:
    backend.answers = [(LOOKS,)]
    output = ask(client, tools=TOOLS)["output"]
    kinds = [item["type"] for item in output]
    assert kinds == ["tool_search_call", "tool_search_output"] * (MAX_ROUNDS + 1)
    assert output[-1]["tools"] == []


def test_a_search_that_finds_nothing_says_so_and_reads_the_same_when_it_comes_back(
    client: TestClient, backend: TokenBackend
) -> None:
    backend.answers = [(call("tool_search", query="zebra"),), ("No.",)]
    first = ask(client, tools=TOOLS)
    assert first["output"][1]["tools"] == []
    assert prompt(backend, 1).messages[-1].text == NOTHING_FOUND
    ask(client, [QUESTION, *first["output"], QUESTION], tools=TOOLS)
    assert prompt(backend, 2).messages[2].text == NOTHING_FOUND


def test_the_bound_of_a_response_is_one_of_all_its_generations(
    client: TestClient, backend: TokenBackend
) -> None:
    ask(client, tools=TOOLS, max_output_tokens=20)
    assert [request.params.max_tokens for request in backend.requests] == [20, 18]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([WEATHER], "tools[0].defer_loading"),
        (
            [{"type": "namespace", "name": "crm", "tools": [WEATHER]}],
            "tools[0].tools[0].defer_loading",
        ),
        ([SEARCH, SEARCH], "tools[1].name"),
        ([{**SEARCH, "execution": "elsewhere"}], "tools[0].execution"),
        ([{**SEARCH, "execution": "client", "parameters": 3}], "tools[0].parameters"),
        ([{**SEARCH, "execution": "client", "description": 3}], "tools[0].description"),
        ([SEARCH, {"type": "namespace", "name": "crm"}], "tools[1].tools"),
        ([SEARCH, {"type": "namespace", "tools": []}], "tools[1].name"),
        ([SEARCH, {**CRM, "tools": [{"type": "custom", "name": "x"}]}], "tools[1].tools[0].type"),
        ([SEARCH, {"type": "function"}], "tools[1].name"),
        ([{"type": "mcp", "server_label": "x"}], "tools[0].type"),
    ],
)
def test_what_cannot_be_searched_is_refused_and_named(
    client: TestClient, backend: TokenBackend, tools: list[Any], param: str
) -> None:
    assert refuse(client, tools=tools)["param"] == param
    assert backend.requests == []


def test_a_search_output_with_something_else_than_functions_is_refused(client: TestClient) -> None:
    item = {"type": "tool_search_output", "tools": [{"type": "mcp"}]}
    assert refuse(client, input=[QUESTION, item])["param"] == "input[1].tools[0].type"
