"""Guards what users of the `openai` SDK see of Responses and prompt caching, against a live process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam, Response
from pydantic import BaseModel

from tests.e2e.sdk_folder import install, run_script
from tests.e2e.server import Server, running_server
from tests.tiny import tiny_vocabulary
from tests.tool_template import write_tool_model

OLDER = "openai==1.109.1"
SCRIPTS = Path(__file__).parent / "scripts"
END = tiny_vocabulary()["<|im_end|>"]
QUOTE = tiny_vocabulary()['"']
ENDS_SOON: dict[str, Any] = {"logit_bias": {str(END): 4.0}, "seed": 7, "min_tokens": 3}
LOOK: FunctionToolParam = {
    "type": "function",
    "name": "look",
    "description": "Look somewhere.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "string", "enum": ["here", "there"]}},
        "required": ["at"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A random model whose template knows tools."""
    folder = tmp_path_factory.mktemp("responses")
    model = write_tool_model(folder / "tiny")
    flags = ("--num-blocks", "256", "--max-model-len", "2000", "--disk-tier", "off")
    with running_server(str(model), folder / "data", *flags) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def test_a_response_is_the_same_whole_streamed_sync_and_async(server: Server) -> None:
    asked: dict[str, Any] = {
        "model": server.model,
        "input": "hello",
        "temperature": 0,
        "max_output_tokens": 8,
    }

    async def from_async() -> tuple[str, str]:
        async with server.async_client() as client:
            whole = await client.responses.create(**asked)
            stream = await client.responses.create(**asked, stream=True)
            deltas = [e.delta async for e in stream if e.type == "response.output_text.delta"]
            return whole.output_text, "".join(deltas)

    with server.client() as client:
        whole = client.responses.create(**asked)
        events = list(client.responses.create(**asked, stream=True))
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == whole.output_text
    assert asyncio.run(from_async()) == (whole.output_text, whole.output_text)
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_stream_helper_gets_its_final_response(server: Server, client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=server.model, input="hello there", max_output_tokens=60, extra_body=ENDS_SOON
    ) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text == "".join(deltas)


def test_a_continued_response_reads_prompt_and_answer(
    server: Server, client: openai.OpenAI
) -> None:
    more: dict[str, Any] = {"model": server.model, "extra_body": ENDS_SOON}
    last = client.responses.create(input="hello there", max_output_tokens=60, **more)
    for turn in range(3):
        assert last.usage is not None
        assert last.status == "completed"
        expected = last.usage.input_tokens + last.usage.output_tokens - 1
        last = client.responses.create(
            input=f"turn {turn}",
            previous_response_id=last.id,
            max_output_tokens=60,
            prompt_cache_options={"comparison_response_id": last.id},
            **more,
        )
        assert cached(last) == expected
        assert last.prompt_cache_diagnostics is not None
        assert last.prompt_cache_diagnostics.type == "cache_hit"


def test_tools_are_called_and_answered(server: Server, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": server.model, "tools": [LOOK], "parallel_tool_calls": False}
    first = client.responses.create(
        input="hello", tool_choice={"type": "function", "name": "look"}, **asked
    )
    [call] = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["at"] in ("here", "there")
    second = client.responses.create(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "nothing"}],
        previous_response_id=first.id,
        tool_choice="none",
        max_output_tokens=4,
        **asked,
    )
    assert first.usage is not None
    assert cached(second) >= first.usage.input_tokens + first.usage.output_tokens - 1
    allowed = client.responses.create(
        input="hello",
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "look"}],
        },
        **asked,
    )
    assert allowed.output[0].type == "function_call"
    assert cached(allowed) == first.usage.input_tokens - 1  # the choice is no part of the prompt


def test_a_streamed_call_comes_in_the_documented_order(
    server: Server, client: openai.OpenAI
) -> None:
    stream = client.responses.create(
        model=server.model,
        input="hello",
        tools=[LOOK],
        tool_choice="required",
        parallel_tool_calls=False,
        stream=True,
    )
    kinds = [event.type.removeprefix("response.") for event in stream]
    assert list(dict.fromkeys(kinds)) == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]


class Place(BaseModel):
    """What an answer is parsed into."""

    inside: bool
    floor: int


def test_a_schema_is_held_and_parsed(server: Server, client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"inside": {"type": "boolean"}, "floor": {"enum": [1, 2, 3]}},
        "required": ["inside", "floor"],
        "additionalProperties": False,
    }
    response = client.responses.create(
        model=server.model,
        input="where?",
        text={"format": {"type": "json_schema", "name": "p", "schema": schema, "strict": True}},
    )
    place = Place.model_validate_json(response.output_text)
    assert place.floor in (1, 2, 3)


def test_stored_responses_are_read_listed_and_deleted(
    server: Server, client: openai.OpenAI
) -> None:
    made = client.responses.create(model=server.model, input="one", max_output_tokens=2)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    [item] = client.responses.input_items.list(made.id).data
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    unstored = client.responses.create(
        model=server.model, input="one", store=False, max_output_tokens=1
    )
    with pytest.raises(openai.BadRequestError, match="never stored"):
        client.responses.create(model=server.model, input="two", previous_response_id=unstored.id)


def test_inputs_are_counted(server: Server, client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model=server.model, input="hello there")
    made = client.responses.create(model=server.model, input="hello there", max_output_tokens=1)
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


def test_a_prewarm_a_marked_part_and_what_is_repeated(
    server: Server, client: openai.OpenAI
) -> None:
    part: Any = {
        "type": "input_text",
        "text": "a long and common part " * 4,
        "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"},
    }

    def create(question: str, **options: Any) -> Response:
        content = [part, {"type": "input_text", "text": question}]
        return client.responses.create(
            model=server.model,
            input=[{"role": "user", "content": content}],
            prompt_cache_key="mine",
            prompt_cache_options={"mode": "explicit", **options},
            max_output_tokens=2,
        )

    warm = create("?", prewarm=True)
    assert warm.output == []
    assert warm.usage is not None
    written = warm.usage.input_tokens_details
    assert written.cache_write_tokens > 40
    assert written.cache_write_tokens_details is not None
    assert written.cache_write_tokens_details.ttl_12h_tokens == written.cache_write_tokens
    used = create("what now?")
    assert cached(used) >= written.cache_write_tokens
    assert used.prompt_cache_key == "mine"
    assert used.prompt_cache_options is not None
    assert (used.prompt_cache_options.mode, used.prompt_cache_options.ttl) == ("explicit", "30m")


def test_a_miss_is_diagnosed(server: Server, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": server.model, "max_output_tokens": 1}
    first = client.responses.create(input="a question", instructions="rules one", **asked)
    second = client.responses.create(
        input="a question",
        instructions="other rules",
        prompt_cache_options={"comparison_response_id": first.id},
        **asked,
    )
    found = second.prompt_cache_diagnostics
    assert found is not None
    assert found.type == "cache_miss"
    assert found.reason == "input_changed"
    assert second.usage is not None
    assert found.cache_missed_tokens == second.usage.input_tokens


def test_a_chat_part_may_carry_a_breakpoint(server: Server, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=server.model,
        messages=[
            {
                "role": "user",
                "content": [
                    {
                        "type": "text",
                        "text": "a part that no other test sends",
                        "prompt_cache_breakpoint": {"mode": "explicit"},
                    },
                    {"type": "text", "text": "and the rest"},
                ],
            }
        ],
        prompt_cache_key="k",
        prompt_cache_options={"mode": "explicit"},
        max_tokens=1,
    )
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    assert details is not None
    assert details.cache_write_tokens is not None
    assert 0 < details.cache_write_tokens < answer.usage.prompt_tokens


def test_what_is_not_served_is_a_clear_refusal(server: Server, client: openai.OpenAI) -> None:
    image: Any = [{"type": "input_image", "image_url": "data:image/png;base64,", "detail": "low"}]
    with pytest.raises(openai.BadRequestError, match="text only, not images"):
        client.responses.create(model=server.model, input=[{"role": "user", "content": image}])
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.create(model=server.model, input="x", background=True)
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        client.responses.cancel("resp_1")


@pytest.mark.slow
def test_an_older_sdk_works_unchanged(server: Server, sdk_cache: Path) -> None:
    folder = install(OLDER, sdk_cache)
    printed = run_script(SCRIPTS / "older_openai.py", folder, f"{server.url}/v1", server.model)
    assert printed.strip() == "openai 1.109.1"


def test_what_a_search_appends_is_computed_and_all_before_it_is_read(
    server: Server, client: openai.OpenAI
) -> None:
    """Random words find nothing, but the search is run and goes on: from the cache, to the token."""
    deferred: Any = {**LOOK, "defer_loading": True, "strict": False}
    asked: dict[str, Any] = {
        "model": server.model,
        "input": "hello there, search",
        "tools": [{"type": "tool_search"}, deferred],
        "tool_choice": {"type": "function", "name": "tool_search"},
        "extra_body": {"seed": 3, "logit_bias": {str(QUOTE): 6.0}},
    }
    alone = client.responses.input_tokens.count(model=server.model, input="hello there, search")
    with client.responses.stream(**asked, max_output_tokens=200) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response() if kinds[-1] == "response.completed" else None
    whole = client.responses.create(**asked, max_output_tokens=200)
    items = [item.type for item in whole.output]
    assert items[:2] == ["tool_search_call", "tool_search_output"]
    if final is not None:
        assert [item.type for item in final.output] == items
    search, found = whole.output[:2]
    assert search.type == "tool_search_call"
    assert found.type == "tool_search_output"
    assert (search.execution, search.call_id, search.status) == ("server", None, "completed")
    assert isinstance(search.arguments, dict)
    assert found.tools == []
    assert whole.usage is not None
    # Asked before, the first generation reads all but a token; the second reads the first, answer included.
    first = client.responses.input_tokens.count(
        **{name: asked[name] for name in ("model", "input", "tools")}
    ).input_tokens
    assert first > alone.input_tokens
    assert whole.usage.input_tokens > 2 * first
    uncached = whole.usage.input_tokens - cached(whole)
    assert uncached < whole.usage.input_tokens - 2 * first + 2
