"""POST /v1/chat/completions.

A streamed answer is a first chunk for each choice with the role and empty content, then content, then for
each choice one chunk with an empty delta and the finish reason; with ``include_usage`` one chunk without
choices that carries the usage; then ``[DONE]``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.call import Call, Dialect, answer
from ostinato.api.chat_request import ChatRequest
from ostinato.api.context import ApiContext
from ostinato.api.generation import Answer, Deltas, Tally, collect, run
from ostinato.api.logprobs import chat_logprobs
from ostinato.api.sse import DONE, frame
from ostinato.api.usage import openai_usage
from ostinato.engine.outputs import OutputDelta

_Call: TypeAlias = Call[ChatRequest]


def chat_router(context: ApiContext) -> APIRouter:
    """The route, bound to a backend."""
    router = APIRouter(tags=["chat"])
    dialect: Dialect[ChatRequest] = Dialect("chatcmpl", _whole, _frames)

    @router.post("/v1/chat/completions", summary="Chat completion")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await answer(context, request, body, dialect)

    return router


async def _whole(call: _Call, streams: Sequence[Deltas]) -> Response:
    (answers,), usage = await collect(streams, call.num_answers, call.timer)
    return JSONResponse(
        {
            **call.head,
            "object": "chat.completion",
            "choices": [_choice(call, i, answer) for i, answer in enumerate(answers)],
            "usage": openai_usage(usage),
        }
    )


def _choice(call: _Call, index: int, answer: Answer) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": chat_logprobs(answer.logprobs) if call.body.logprobs else None,
        "finish_reason": answer.finish_reason.value,
        "stop_reason": answer.stop_reason,
    }


async def _frames(call: _Call, streams: Sequence[Deltas]) -> AsyncGenerator[str, None]:
    tally = Tally()
    opened = False
    async with aclosing(run(streams, call.timer)) as deltas:
        async for prompt_index, delta in deltas:
            tally.add(prompt_index, delta)
            if not opened:
                opened = True
                for index in range(call.num_answers):
                    yield _chunk(call, index, {"role": "assistant", "content": ""})
            for text in _delta_frames(call, delta):
                yield text
    if call.body.wants_usage_chunk:
        yield frame({**_head(call), "choices": [], "usage": openai_usage(tally.usage())})
    yield DONE


def _delta_frames(call: _Call, delta: OutputDelta) -> list[str]:
    frames = []
    logprobs = chat_logprobs(delta.logprobs) if call.body.logprobs and delta.logprobs else None
    if delta.text or logprobs:
        frames.append(_chunk(call, delta.index, {"content": delta.text}, logprobs=logprobs))
    if delta.finish_reason is not None:
        end = {"finish_reason": delta.finish_reason.value, "stop_reason": delta.stop_reason}
        frames.append(_chunk(call, delta.index, {}, **end))
    return frames


def _chunk(call: _Call, index: int, delta: Mapping[str, Any], **more: Any) -> str:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
    chunk = {**_head(call), "choices": [choice]}
    if call.body.wants_usage_chunk:
        chunk["usage"] = None
    return frame(chunk)


def _head(call: _Call) -> dict[str, Any]:
    return {**call.head, "object": "chat.completion.chunk"}
