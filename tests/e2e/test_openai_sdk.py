"""Guards what users of the `openai` SDK see, sync and async, streaming and not, against a live process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.server import Server, running_server

HELLO: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "You say hello."},
    {"role": "user", "content": "hello"},
]
EIGHT_TOKENS = {"ignore_eos": True}


def test_a_chat_answer_is_the_same_whole_streamed_sync_and_async(tiny_server: Server) -> None:
    with tiny_server.client() as client:
        whole = client.chat.completions.create(
            model=tiny_server.model,
            messages=HELLO,
            temperature=0,
            max_tokens=8,
            extra_body=EIGHT_TOKENS,
        )
        chunks = list(
            client.chat.completions.create(
                model=tiny_server.model,
                messages=HELLO,
                temperature=0,
                max_completion_tokens=8,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=EIGHT_TOKENS,
            )
        )
    async_whole, async_text = asyncio.run(_ask_async(tiny_server))
    text = whole.choices[0].message.content
    assert text
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == text
    assert async_whole == async_text == text
    assert whole.choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 8
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def _ask_async(server: Server) -> tuple[str | None, str]:
    async with server.async_client() as client:
        whole = await client.chat.completions.create(
            model=server.model,
            messages=HELLO,
            temperature=0,
            max_tokens=8,
            extra_body=EIGHT_TOKENS,
        )
        stream = await client.chat.completions.create(
            model=server.model,
            messages=HELLO,
            temperature=0,
            max_tokens=8,
            stream=True,
            extra_body=EIGHT_TOKENS,
        )
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
    return whole.choices[0].message.content, "".join(text)


def test_a_text_completion_is_the_same_whole_and_streamed(tiny_server: Server) -> None:
    with tiny_server.client() as client:
        whole = client.completions.create(
            model=tiny_server.model,
            prompt="the end",
            temperature=0,
            max_tokens=8,
            logprobs=2,
            extra_body=EIGHT_TOKENS,
        )
        chunks = list(
            client.completions.create(
                model=tiny_server.model,
                prompt="the end",
                temperature=0,
                max_tokens=8,
                logprobs=2,
                stream=True,
                extra_body=EIGHT_TOKENS,
            )
        )
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert len(logprobs.tokens) == 8
    streamed = [
        t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens or ()
    ]
    assert streamed == logprobs.tokens


def test_several_prompts_and_answers_come_back_in_order(tiny_server: Server) -> None:
    with tiny_server.client() as client:
        answer = client.completions.create(
            model=tiny_server.model,
            prompt=[[1, 2, 3], [4, 5, 6, 7]],
            n=2,
            temperature=0,
            max_tokens=3,
            extra_body={"ignore_eos": True},
        )
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 7
    assert answer.usage.completion_tokens == 12


def test_a_seed_repeats_its_answer(tiny_server: Server) -> None:
    with tiny_server.client() as client:
        first, second = (
            client.chat.completions.create(
                model=tiny_server.model,
                messages=HELLO,
                seed=11,
                temperature=1.5,
                max_tokens=12,
                extra_body={"ignore_eos": True},
            )
            for _ in range(2)
        )
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.system_fingerprint == second.system_fingerprint


def test_models_are_listed(tiny_server: Server) -> None:
    with tiny_server.client() as client:
        assert [model.id for model in client.models.list()] == [tiny_server.model]
        assert client.models.retrieve(tiny_server.model).object == "model"


def test_errors_reach_the_sdk_with_all_their_fields(tiny_server: Server) -> None:
    with tiny_server.client() as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="gpt-9", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as too_long:
            client.chat.completions.create(model=tiny_server.model, messages=HELLO, max_tokens=5000)
        with pytest.raises(openai.BadRequestError) as foreign_token:
            client.completions.create(model=tiny_server.model, prompt=[10**6])
        with pytest.raises(openai.BadRequestError) as no_tools:
            client.chat.completions.create(
                model=tiny_server.model,
                messages=HELLO,
                tools=[{"type": "function", "function": {"name": "f"}}],
            )
    assert unknown.value.code == "model_not_found"
    assert unknown.value.request_id
    assert too_long.value.code == "context_length_exceeded"
    assert too_long.value.param == "max_tokens"
    assert "1000" in too_long.value.message
    assert foreign_token.value.param == "prompt"
    assert "1000000" in foreign_token.value.message
    assert no_tools.value.param == "tools"
    assert "no place for tools" in no_tools.value.message


def test_a_prompt_beyond_the_context_streams_no_status_200(tiny_server: Server) -> None:
    with tiny_server.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=tiny_server.model, prompt=[1] * 1001, stream=True)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "prompt"
    assert "1001" in refused.value.message


def test_a_prompt_that_never_fits_the_pool_is_refused_and_others_are_served(
    tiny_model: Path, tmp_path: Path
) -> None:
    with (
        running_server(str(tiny_model), tmp_path, "--num-blocks", "4") as server,
        server.client() as client,
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(model=server.model, prompt=[1] * 65, max_tokens=1)
        answer = client.completions.create(model=server.model, prompt=[1] * 60, max_tokens=4)
    assert refused.value.code == "kv_capacity_exceeded"
    assert "64" in refused.value.message
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 60
