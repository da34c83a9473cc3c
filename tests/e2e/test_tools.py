"""Guards tools and structured output from end to end with the `openai` SDK: even a model of random weights
makes sound calls and valid JSON, the call that it made is found in the cache at the next turn, and a real small
model gets through a task of ten turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest

from tests.e2e.server import Server, running_server
from tests.tool_template import write_tool_model

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "minimum": 0, "maximum": 99},
                    "b": {"type": "integer", "minimum": 0, "maximum": 99},
                },
                "required": ["a", "b"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "description": "Ends the task"}},
]
QUESTION: list[Any] = [{"role": "user", "content": "1 + 2?"}]


class Person(pydantic.BaseModel):
    grown_up: bool
    sizes: list[int] = pydantic.Field(max_length=3)
    kind: str = pydantic.Field(max_length=12)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_tool_model(tmp_path_factory.mktemp("models") / "tiny-tools")
    flags = ("--num-blocks", "256", "--max-model-len", "2000")
    with running_server(str(model), tmp_path_factory.mktemp("data"), *flags) as running:
        yield running


def sum_of(call: Any) -> int:
    assert call.function.name == "add"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"a", "b"}
    return int(arguments["a"]) + int(arguments["b"])


@pytest.mark.parametrize("seed", range(4))
def test_random_weights_make_sound_calls(server: Server, seed: int) -> None:
    with server.client() as client:
        answer = client.chat.completions.create(
            model=server.model,
            messages=QUESTION,
            tools=TOOLS[:1],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=1.0,
            seed=seed,
        )
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [call] = choice.message.tool_calls or []
    assert 0 <= sum_of(call) <= 198


def test_a_streamed_call_is_the_same_as_a_whole_one(server: Server) -> None:
    fields: dict[str, Any] = {
        "model": server.model,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "temperature": 0,
    }
    with server.client() as client:
        whole = client.chat.completions.create(**fields).choices[0].message.tool_calls
        with client.chat.completions.stream(**fields) as stream:
            kinds = [event.type for event in stream]
            streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert whole
    assert streamed
    assert [call.function.name for call in streamed] == ["add"]
    assert streamed[0].function.arguments == whole[0].function.arguments  # type: ignore[union-attr,unused-ignore]
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert kinds.count("tool_calls.function.arguments.delta") > 2


def test_the_call_that_was_made_is_found_in_the_cache_at_the_next_turn(server: Server) -> None:
    fields: dict[str, Any] = {"model": server.model, "tools": TOOLS[:1], "temperature": 0}
    with server.client() as client:
        first = client.chat.completions.create(
            messages=QUESTION, tool_choice="required", parallel_tool_calls=False, **fields
        )
        [call] = first.choices[0].message.tool_calls or []
        made = first.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
        second = client.chat.completions.create(
            messages=[*QUESTION, made, result], max_tokens=1, **fields
        )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    read = second.usage.prompt_tokens_details.cached_tokens
    generated = first.usage.completion_tokens
    # The last generated token is never computed; all before it is reused, to the token.
    assert read == first.usage.prompt_tokens + generated - 1


def test_no_call_is_opened_where_none_is_wanted_and_the_prefix_stays(server: Server) -> None:
    fields: dict[str, Any] = {"model": server.model, "tools": TOOLS, "temperature": 0}
    biases = {str(byte): 40.0 for byte in b"<tool_call>"}
    with server.client() as client:
        first = client.chat.completions.create(messages=QUESTION, max_tokens=1, **fields)
        answer = client.chat.completions.create(
            messages=QUESTION, tool_choice="none", max_tokens=200, logit_bias=biases, **fields
        )
    assert answer.choices[0].message.tool_calls is None
    assert "<tool_call>" not in (answer.choices[0].message.content or "")
    assert first.usage is not None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1


def test_random_weights_write_what_pydantic_reads(server: Server) -> None:
    with server.client() as client:
        for seed in range(3):
            answer = client.chat.completions.parse(
                model=server.model,
                messages=QUESTION,
                response_format=Person,
                max_tokens=300,
                temperature=1.0,
                seed=seed,
            )
            assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_schema_that_cannot_be_enforced_is_a_bad_request(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "strin"}}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with server.client() as client, pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(
            model=server.model, messages=QUESTION, response_format=wanted, stream=True
        )
    assert refusal.value.param == "response_format.json_schema.schema.properties.a"


def test_the_default_model_has_no_place_for_tools_and_says_so(real_server: Server) -> None:
    with real_server.client() as client, pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=real_server.model, messages=QUESTION, tools=TOOLS)
    assert refusal.value.param == "tools"
    assert "no place for tools" in str(refusal.value)


@pytest.mark.slow
def test_a_real_model_calls_the_right_tool_by_itself(tool_server: Server) -> None:
    with tool_server.client() as client:
        for question, name in (("What is 12 + 30? Use a tool.", "add"), ("End the task.", "stop")):
            answer = client.chat.completions.create(
                model=tool_server.model,
                messages=[{"role": "user", "content": question}],
                tools=TOOLS,
                temperature=0,
                max_tokens=100,
            )
            [call] = answer.choices[0].message.tool_calls or []
            assert getattr(call, "function").name == name  # noqa: B009 - a union of kinds of calls


@pytest.mark.slow
def test_a_real_model_gets_through_ten_turns_with_a_growing_prefix(tool_server: Server) -> None:
    messages: list[Any] = [{"role": "system", "content": "Use the add tool for sums."}]
    shares = []
    with tool_server.client() as client:
        for turn in range(10):
            messages.append({"role": "user", "content": f"What is {turn} + {turn + 7}?"})
            answer = client.chat.completions.create(
                model=tool_server.model,
                messages=messages,
                tools=TOOLS[:1],
                tool_choice="required",
                parallel_tool_calls=False,
                temperature=0,
            )
            message = answer.choices[0].message
            [call] = message.tool_calls or []
            assert sum_of(call) == 2 * turn + 7
            messages.append(message.model_dump(exclude_none=True))
            content = str(sum_of(call))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            cached = answer.usage.prompt_tokens_details.cached_tokens or 0
            shares.append(cached / answer.usage.prompt_tokens)
    assert min(shares[1:]) > 0.8
    assert shares[-1] > 0.95
