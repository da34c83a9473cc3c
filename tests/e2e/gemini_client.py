"""What users of google-genai do, against the server at ``argv[1]`` with the model ``argv[2]``.

A program of its own, so that it can be run with an older version of the SDK. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from google import genai
from google.genai import types

BOOK = "the rain in the land of the red sun " * 8


def client_of(url: str) -> genai.Client:
    return genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url))


def config(**more: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(temperature=0.0, max_output_tokens=6, **more)


def cache_life(client: genai.Client, model: str) -> dict[str, Any]:
    made = client.caches.create(
        model=model,
        config=types.CreateCachedContentConfig(
            system_instruction=BOOK, display_name="book", ttl="300s"
        ),
    )
    assert made.name
    used = client.models.generate_content(
        model=model, contents="hello", config=config(cached_content=made.name)
    )
    moved = client.caches.update(name=made.name, config=types.UpdateCachedContentConfig(ttl="600s"))
    listed = [one.name for one in client.caches.list()]
    got = client.caches.get(name=made.name)
    client.caches.delete(name=made.name)
    try:
        client.caches.get(name=made.name)
        gone = None
    except genai.errors.ClientError as error:
        gone = [error.code, error.status]
    assert made.usage_metadata is not None
    assert used.usage_metadata is not None
    assert made.expire_time is not None
    assert moved.expire_time is not None
    return {
        "total": made.usage_metadata.total_token_count,
        "cached": used.usage_metadata.cached_content_token_count,
        "later": moved.expire_time > made.expire_time,
        "listed": made.name in listed,
        "display_name": got.display_name,
        "gone": gone,
    }


async def in_async(client: genai.Client, model: str) -> list[str]:
    whole = await client.aio.models.generate_content(model=model, contents="hello", config=config())
    stream = await client.aio.models.generate_content_stream(
        model=model, contents="hello", config=config()
    )
    pieces = [piece.text or "" async for piece in stream]
    return [whole.text or "", "".join(pieces)]


def main(url: str, model: str) -> dict[str, Any]:
    client = client_of(url)
    whole = client.models.generate_content(model=model, contents="hello", config=config())
    pieces = list(
        client.models.generate_content_stream(model=model, contents="hello", config=config())
    )
    counted = client.models.count_tokens(model=model, contents="hello")
    try:
        client.models.generate_content(
            model=model, contents=types.Part.from_bytes(data=b"x", mime_type="image/png")
        )
        refused = None
    except genai.errors.ClientError as error:
        refused = [error.code, error.status, error.message]
    assert whole.usage_metadata is not None
    assert whole.candidates
    return {
        "version": genai.version.__version__,
        "text": whole.text,
        "streamed": "".join(piece.text or "" for piece in pieces),
        "pieces": len(pieces),
        "finish": whole.candidates[0].finish_reason,
        "last": pieces[-1].candidates[0].finish_reason if pieces[-1].candidates else None,
        "prompt": whole.usage_metadata.prompt_token_count,
        "counted": counted.total_tokens,
        "async": asyncio.run(in_async(client, model)),
        "models": [one.name for one in client.models.list()],
        "model": client.models.get(model=model).input_token_limit,
        "refused": refused,
        "cache": cache_life(client, model),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])))
