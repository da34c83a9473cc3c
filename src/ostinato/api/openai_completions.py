"""POST /v1/completions: raw text or token ids in, text out; no chat template.

With several prompts the choices are numbered prompt by prompt: answer j of prompt i is choice i × n + j.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.call import Call, Dialect, answer
from ostinato.api.completion_request import CompletionRequest
from ostinato.api.context import ApiContext
from ostinato.api.generation import Answer, Deltas, Tally, collect, run
from ostinato.api.logprobs import legacy_logprobs, text_length
from ostinato.api.sse import DONE, frame
from ostinato.api.usage import openai_usage
from ostinato.engine.outputs import OutputDelta, TokenLogprob

_Call: TypeAlias = Call[CompletionRequest]


def completions_router(context: ApiContext) -> APIRouter:
    """The route, bound to a backend."""
    router = APIRouter(tags=["completions"])
    dialect: Dialect[CompletionRequest] = Dialect("cmpl-", _whole, _frames)

    @router.post("/v1/completions", summary="Text completion")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await answer(context, request, body, dialect)

    return router


async def _whole(call: _Call, streams: Sequence[Deltas]) -> Response:
    rows, usage = await collect(streams, call.num_answers, call.timer, call.billing)
    answers = [answer for row in rows for answer in row]
    choices = [_choice(call, i, answer) for i, answer in enumerate(answers)]
    return JSONResponse({**_head(call), "choices": choices, "usage": openai_usage(usage)})


def _choice(call: _Call, index: int, answer: Answer) -> dict[str, Any]:
    return {
        "index": index,
        "text": answer.text,
        "logprobs": _logprobs(call, answer.logprobs, 0),
        "finish_reason": answer.finish_reason.value,
        "stop_reason": answer.stop_reason,
    }


async def _frames(call: _Call, streams: Sequence[Deltas]) -> AsyncGenerator[str, None]:
    tally = Tally(call.billing)
    offsets: Counter[int] = Counter()
    async with aclosing(run(streams, call.timer)) as deltas:
        async for prompt_index, delta in deltas:
            tally.add(prompt_index, delta)
            index = prompt_index * call.num_answers + delta.index
            if delta.text or delta.logprobs or delta.finish_reason is not None:
                yield _chunk(call, index, delta, offsets[index])
            offsets[index] += text_length(delta.logprobs)
    if call.body.wants_usage_chunk:
        yield frame({**_head(call), "choices": [], "usage": openai_usage(tally.usage())})
    yield DONE


def _chunk(call: _Call, index: int, delta: OutputDelta, first_offset: int) -> str:
    choice = {
        "index": index,
        "text": delta.text,
        "logprobs": _logprobs(call, delta.logprobs, first_offset),
        "finish_reason": None if delta.finish_reason is None else delta.finish_reason.value,
        "stop_reason": delta.stop_reason,
    }
    chunk = {**_head(call), "choices": [choice]}
    if call.body.wants_usage_chunk:
        chunk["usage"] = None
    return frame(chunk)


def _logprobs(
    call: _Call, tokens: Sequence[TokenLogprob], first_offset: int
) -> dict[str, Any] | None:
    if call.body.logprobs is None:
        return None
    return legacy_logprobs(tokens, call.body.logprobs, first_offset)


def _head(call: _Call) -> dict[str, Any]:
    return {**call.head, "object": "text_completion"}
