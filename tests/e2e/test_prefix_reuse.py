"""Guards the product: `cached_tokens` over HTTP is exactly what was reused, to the token, and salts keep
apart what they should (tested in pairs: the miss alone would also pass with caching off)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam
from openai.types.completion_usage import CompletionUsage

from tests.e2e.server import Server


def cached(usage: CompletionUsage | None) -> int:
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    tokens = usage.prompt_tokens_details.cached_tokens
    assert tokens is not None
    extra: dict[str, Any] = usage.model_extra or {}
    assert extra["prompt_cache_hit_tokens"] == tokens
    assert extra["prompt_cache_miss_tokens"] == usage.prompt_tokens - tokens
    return tokens


def complete(server: Server, prompt: list[int], **extra: object) -> CompletionUsage:
    with server.client() as client:
        answer = client.completions.create(
            model=server.model, prompt=prompt, temperature=0, max_tokens=1, extra_body=extra
        )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    return answer.usage


@pytest.mark.parametrize("num_tokens", [2, 15, 16, 17, 32, 100])
def test_a_repeated_prompt_reuses_all_but_its_last_token(
    tiny_server: Server, num_tokens: int
) -> None:
    prompt = [(num_tokens + 3 * i) % 200 for i in range(num_tokens)]
    salt = f"repeated-{num_tokens}"
    assert cached(complete(tiny_server, prompt, cache_salt=salt)) == 0
    assert cached(complete(tiny_server, prompt, cache_salt=salt)) == num_tokens - 1


def test_reuse_ends_at_the_token_that_differs_even_inside_a_block(tiny_server: Server) -> None:
    prompt = list(range(40))
    complete(tiny_server, prompt, cache_salt="diverges")
    other = [*prompt[:21], 199, *prompt[22:]]
    assert cached(complete(tiny_server, other, cache_salt="diverges")) == 21


def test_a_salt_hits_itself_and_misses_every_other(tiny_server: Server) -> None:
    prompt = [201, 7] * 25
    assert cached(complete(tiny_server, prompt, cache_salt="mine")) == 0
    assert cached(complete(tiny_server, prompt, cache_salt="mine")) == 49
    assert cached(complete(tiny_server, prompt, cache_salt="yours")) == 0
    assert cached(complete(tiny_server, prompt)) == 0
    assert cached(complete(tiny_server, prompt)) == 49


def test_a_streamed_answer_reports_the_same_reuse(tiny_server: Server) -> None:
    prompt = [9] * 33
    complete(tiny_server, prompt, cache_salt="streamed")
    with tiny_server.client() as client:
        chunks = list(
            client.completions.create(
                model=tiny_server.model,
                prompt=prompt,
                max_tokens=2,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"cache_salt": "streamed"},
            )
        )
    assert cached(chunks[-1].usage) == 32


def test_several_answers_to_one_prompt_count_its_reuse_once(tiny_server: Server) -> None:
    prompt = [5] * 40
    complete(tiny_server, prompt, cache_salt="forked")
    with tiny_server.client() as client:
        answer = client.completions.create(
            model=tiny_server.model,
            prompt=prompt,
            n=4,
            max_tokens=3,
            extra_body={"cache_salt": "forked", "ignore_eos": True},
        )
    assert cached(answer.usage) == 39
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 40
    assert answer.usage.completion_tokens == 12


def test_metrics_add_up_to_what_the_answers_reported(tiny_server: Server) -> None:
    before = tiny_server.metrics()
    prompt = [11] * 64
    usages = [complete(tiny_server, prompt, cache_salt="metered") for _ in range(3)]
    after = tiny_server.metrics()
    reused = after("prefix_cache_hit_tokens_total") - before("prefix_cache_hit_tokens_total")
    asked = after("prompt_tokens_total") - before("prompt_tokens_total")
    assert reused == sum(cached(usage) for usage in usages) == 2 * 63
    assert asked == 3 * 64


def test_the_first_answer_warms_the_rest_of_a_burst(tiny_server: Server) -> None:
    """Requests that arrive together with one prefix compute it once."""
    prefix = [13] * 96

    async def ask_all() -> list[CompletionUsage | None]:
        async with tiny_server.async_client() as client:
            calls = [
                client.completions.create(
                    model=tiny_server.model,
                    prompt=[*prefix, 100 + i],
                    max_tokens=1,
                    extra_body={"cache_salt": "burst"},
                )
                for i in range(8)
            ]
            return [answer.usage for answer in await asyncio.gather(*calls)]

    counts = sorted(cached(usage) for usage in asyncio.run(ask_all()))
    assert counts == [0] + [96] * 7


END_OF_TURN = 2
"""Id of ``<|im_end|>`` in the default model."""


def chat(
    server: Server, messages: list[ChatCompletionMessageParam], max_tokens: int, **extra: object
) -> ChatCompletion:
    with server.client() as client:
        return client.chat.completions.create(
            model=server.model,
            messages=messages,
            temperature=0,
            max_tokens=max_tokens,
            extra_body=extra,
        )


def test_a_real_prompt_sent_twice_reuses_all_but_its_last_token(real_server: Server) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello, twice."}]
    chat(real_server, messages, 1)
    usage = chat(real_server, messages, 1).usage
    assert usage is not None
    assert usage.prompt_tokens > 16
    assert cached(usage) == usage.prompt_tokens - 1


@pytest.mark.parametrize(("reason", "rendered_again"), [("stop", 15), ("length", 16)])
def test_a_follow_up_turn_reuses_the_first_turn_and_its_answer_but_the_last_token(
    real_server: Server, reason: str, rendered_again: int
) -> None:
    """The token that was sampled last has never been fed to the model, so it has no K/V: the
    end-of-turn mark after a full stop, a piece of a word after a cut. Everything behind it is new: the
    template's line break and the user's turn. See docs/prefix-caching.md."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": f"You are a helpful assistant; case {reason}."},
        {"role": "user", "content": "Name three colours."},
    ]
    ending: dict[str, object] = {"min_tokens": 5, "logit_bias": {str(END_OF_TURN): 100}}
    first = chat(real_server, messages, 5 if reason == "length" else 48, **ending)
    assert first.choices[0].finish_reason == reason
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And a fourth?"},
    ]
    second = chat(real_server, messages, 1)
    assert first.usage is not None
    assert first.usage.completion_tokens == (5 if reason == "length" else 6)
    assert cached(second.usage) == first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert second.usage is not None
    assert second.usage.prompt_tokens - cached(second.usage) == rendered_again
