"""What users of the `anthropic` SDK do. Arguments: base URL, model. Prints one JSON object.

A program of its own, so that it can be run with an older version of the SDK; what that does not know yet goes
through `extra_body`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import anthropic

BOOK = "the rain in the land of the red sun " * 12
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
EIGHT: dict[str, Any] = {"max_tokens": 8, "extra_body": {"ignore_eos": True, "seed": 7}}
LOOK: dict[str, Any] = {
    "name": "look",
    "description": "Look somewhere.",
    "input_schema": {
        "type": "object",
        "properties": {"at": {"type": "string", "enum": ["here", "there"]}},
        "required": ["at"],
        "additionalProperties": False,
    },
}
ONE_CALL: dict[str, Any] = {
    "tools": [{**LOOK, "cache_control": {"type": "ephemeral"}}],
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "max_tokens": 80,
}
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def counters(message: Any) -> list[int]:
    usage = message.usage
    return [
        usage.input_tokens,
        usage.cache_read_input_tokens or 0,
        usage.cache_creation.ephemeral_5m_input_tokens,
        usage.cache_creation.ephemeral_1h_input_tokens,
    ]


def texts(client: anthropic.Anthropic, model: str) -> dict[str, Any]:
    asked = {"model": model, "messages": HELLO, **EIGHT}
    whole = client.messages.create(**asked)
    raw = list(client.messages.create(stream=True, **asked))
    with client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    return {
        "whole": text_of(whole),
        "events": [event.type for event in raw],
        "streamed": "".join(pieces),
        "final": text_of(final),
        "stop_reasons": [whole.stop_reason, final.stop_reason],
        "outputs": [whole.usage.output_tokens, final.usage.output_tokens],
        "request_id": whole._request_id,
    }


async def in_async(url: str, model: str) -> list[str]:
    asked = {"model": model, "messages": HELLO, **EIGHT}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            pieces = [piece async for piece in stream.text_stream]
    return [text_of(whole), "".join(pieces)]


def caching(client: anthropic.Anthropic, model: str) -> dict[str, Any]:
    def ask(**more: Any) -> Any:
        marks = {"5m": {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"}}
        system: Any = [
            {"type": "text", "text": BOOK, "cache_control": marks["1h"]},
            {"type": "text", "text": "Be brief.", "cache_control": marks["5m"]},
        ]
        return client.messages.create(
            model=model, system=system, messages=HELLO, **{**EIGHT, **more}
        )

    warm = ask(max_tokens=0, extra_body={})
    first = ask(extra_body={"diagnostics": {"previous_message_id": None}})
    second = ask(extra_body={"diagnostics": {"previous_message_id": warm.id}})
    other = client.messages.create(
        model=model,
        system=BOOK + "else",
        messages=HELLO,
        max_tokens=4,
        extra_body={
            "cache_control": {"type": "ephemeral"},
            "diagnostics": {"previous_message_id": first.id},
        },
    )
    return {
        "warm": [counters(warm), warm.stop_reason, len(warm.content), warm.usage.output_tokens],
        "first": counters(first),
        "second": counters(second),
        "other": counters(other),
        "diagnostics": [message.to_dict().get("diagnostics") for message in (first, second, other)],
    }


def tools(client: anthropic.Anthropic, model: str) -> dict[str, Any]:
    called = client.messages.create(model=model, messages=HELLO, **ONE_CALL)
    with client.messages.stream(model=model, messages=HELLO, **ONE_CALL) as stream:
        streamed = stream.get_final_message()
    call: Any = called.content[0]
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "a tree", "cache_control": {"type": "ephemeral"}}],
    }
    history: Any = [
        *HELLO,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    free = {**ONE_CALL, "tool_choice": {"type": "none"}, "max_tokens": 4}
    answered = client.messages.create(model=model, messages=history, **free)
    return {
        "stop_reason": called.stop_reason,
        "call": [call.type, call.name, call.input],
        "streamed": [streamed.content[0].type, streamed.content[0].input],
        "answered": [answered.stop_reason, counters(answered)],
        "prompt": sum(counters(called)),
    }


def refusals(client: anthropic.Anthropic, model: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    asked: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 1}
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    wrong = {
        "model": {"model": "claude-9"},
        "empty": {"messages": []},
        "image": {"messages": [{"role": "user", "content": [image]}]},
    }
    for name, change in wrong.items():
        try:
            client.messages.create(**{**asked, **change})
        except anthropic.APIStatusError as error:
            body: Any = error.body
            found[name] = [
                type(error).__name__,
                body["error"]["type"],
                error.request_id == body["request_id"],
            ]
    try:
        client.messages.create(**asked, extra_body={"temperature": 0.0})
        found["temperature"] = None
    except anthropic.BadRequestError as error:
        found["temperature"] = "temperature does not exist" in error.message
    return found


def main(url: str, model: str) -> dict[str, Any]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        form = client.messages.create(
            model=model,
            messages=HELLO,
            max_tokens=60,
            extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        )
        return {
            "version": anthropic.__version__,
            "texts": texts(client, model),
            "async": asyncio.run(in_async(url, model)),
            "caching": caching(client, model),
            "tools": tools(client, model),
            "json": json.loads(text_of(form)),
            "counted": client.messages.count_tokens(
                model=model, messages=HELLO, system=BOOK
            ).input_tokens,
            "models": [one.id for one in client.models.list()],
            "model": client.models.retrieve(model).type,
            "refusals": refusals(client, model),
        }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
