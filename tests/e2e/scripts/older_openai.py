"""Responses and caching fields through whatever `openai` is first on the path. Arguments: base URL, model.

Fields that older SDKs do not know go in `extra_body`, and come back as extras of the models.
"""

from __future__ import annotations

import asyncio
import sys

import openai

URL, MODEL = sys.argv[1:]
CLIENT = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
LOOK = {
    "type": "function",
    "name": "look",
    "description": None,
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"at": {"type": "string", "enum": ["here", "there"]}},
        "required": ["at"],
        "additionalProperties": False,
    },
}


def whole_and_continued() -> None:
    first = CLIENT.responses.create(
        model=MODEL,
        input="hello there",
        max_output_tokens=6,
        extra_body={"ignore_eos": True},
    )
    assert first.usage is not None
    second = CLIENT.responses.create(
        model=MODEL,
        input="go on",
        previous_response_id=first.id,
        max_output_tokens=6,
        extra_body={"prompt_cache_options": {"comparison_response_id": first.id}},
    )
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    extras = second.model_extra or {}
    assert extras["prompt_cache_diagnostics"] == {"type": "cache_hit"}, extras
    assert CLIENT.responses.retrieve(second.id).output_text == second.output_text
    assert len(CLIENT.responses.input_items.list(second.id).data) == 3
    CLIENT.responses.delete(second.id)


def streamed() -> None:
    with CLIENT.responses.stream(
        model=MODEL,
        input="hello",
        tools=[LOOK],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=90,
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    [call] = final.output
    assert call.type == "function_call"
    assert call.name == "look"


async def from_async() -> None:
    async with openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as client:
        stream = await client.responses.create(
            model=MODEL,
            input="hello",
            stream=True,
            max_output_tokens=4,
            extra_body={"ignore_eos": True},
        )
        kinds = [event.type async for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.incomplete"


def chat() -> None:
    answer = CLIENT.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello there"}],
        max_tokens=2,
        extra_body={"prompt_cache_key": "k"},
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    hit = (answer.usage.model_extra or {})["prompt_cache_hit_tokens"]
    assert answer.usage.prompt_tokens_details.cached_tokens == hit


whole_and_continued()
streamed()
asyncio.run(from_async())
chat()
print(f"openai {openai.__version__}")
