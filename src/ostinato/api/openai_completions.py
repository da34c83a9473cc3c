"""POST /v1/completions: raw text or token ids in, text out; no chat template.

With several prompts the choices are numbered prompt by prompt: answer j of prompt i is choice i × n + j.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.completion_request import CompletionRequest
from ostinato.api.connection import ClientDisconnectedError, until_disconnect
from ostinato.api.context import CLIENT_CLOSED_REQUEST, ApiContext, new_answer_id, to_requests
from ostinato.api.generation import Answer, Deltas, Tally, collect, open_streams, run
from ostinato.api.logprobs import legacy_logprobs, text_length
from ostinato.api.middleware import request_id_of
from ostinato.api.sse import DONE, EventStream, frame
from ostinato.api.usage import openai_usage
from ostinato.engine.outputs import OutputDelta, TokenLogprob
from ostinato.insight.metrics import RequestTimer


@dataclass(frozen=True, slots=True)
class _Call:
    """One text completion on its way."""

    body: CompletionRequest
    head: Mapping[str, Any]
    num_answers: int
    timer: RequestTimer

    def logprobs(self, tokens: Sequence[TokenLogprob], first_offset: int) -> dict[str, Any] | None:
        if self.body.logprobs is None:
            return None
        return legacy_logprobs(tokens, self.body.logprobs, first_offset)


def completions_router(context: ApiContext) -> APIRouter:
    """The route, bound to a backend."""
    router = APIRouter(tags=["completions"])

    @router.post("/v1/completions", summary="Text completion")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        timer = context.metrics.start_request()
        model = context.served_model(body.model)
        body.check()
        params = body.to_params()
        answer_id = new_answer_id("cmpl")
        head = {
            "id": answer_id,
            "object": "text_completion",
            "created": int(context.clock.time()),
            "model": model.id,
            "system_fingerprint": model.fingerprint,
        }
        requests = to_requests(answer_id, body, body.to_prompts(), params)
        streams = await open_streams(context.backend, requests)
        call = _Call(body, head, params.n, timer)
        if body.streams:
            return EventStream(_frames(call, streams), request_id_of(request.scope))
        try:
            return await until_disconnect(request.receive, _whole(call, streams))
        except ClientDisconnectedError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)

    return router


async def _whole(call: _Call, streams: Sequence[Deltas]) -> Response:
    rows, usage = await collect(streams, call.num_answers, call.timer)
    answers = [answer for row in rows for answer in row]
    choices = [_choice(call, i, answer) for i, answer in enumerate(answers)]
    return JSONResponse({**call.head, "choices": choices, "usage": openai_usage(usage)})


def _choice(call: _Call, index: int, answer: Answer) -> dict[str, Any]:
    return {
        "index": index,
        "text": answer.text,
        "logprobs": call.logprobs(answer.logprobs, 0),
        "finish_reason": answer.finish_reason.value,
        "stop_reason": answer.stop_reason,
    }


async def _frames(call: _Call, streams: Sequence[Deltas]) -> AsyncGenerator[str, None]:
    tally = Tally()
    offsets: Counter[int] = Counter()
    async with aclosing(run(streams, call.timer)) as deltas:
        async for prompt_index, delta in deltas:
            tally.add(prompt_index, delta)
            index = prompt_index * call.num_answers + delta.index
            if delta.text or delta.logprobs or delta.finish_reason is not None:
                yield _chunk(call, index, delta, offsets[index])
            offsets[index] += text_length(delta.logprobs)
    if call.body.wants_usage_chunk:
        yield frame({**call.head, "choices": [], "usage": openai_usage(tally.usage())})
    yield DONE


def _chunk(call: _Call, index: int, delta: OutputDelta, first_offset: int) -> str:
    choice = {
        "index": index,
        "text": delta.text,
        "logprobs": call.logprobs(delta.logprobs, first_offset),
        "finish_reason": None if delta.finish_reason is None else delta.finish_reason.value,
        "stop_reason": delta.stop_reason,
    }
    chunk = {**call.head, "choices": [choice]}
    if call.body.wants_usage_chunk:
        chunk["usage"] = None
    return frame(chunk)
