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

from ostinato.api.answer_reader import AnswerEvent, AnswerReader, Thought
from ostinato.api.call import Call, Dialect, answer
from ostinato.api.chat_request import ChatRequest
from ostinato.api.context import ApiContext
from ostinato.api.generation import Answer, Deltas, Tally, collect, run
from ostinato.api.logprobs import chat_logprobs
from ostinato.api.sse import DONE, frame
from ostinato.api.usage import openai_usage
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.models.tools.events import AnswerText, CallArguments, CallStarted

_Call: TypeAlias = Call[ChatRequest]


def chat_router(context: ApiContext) -> APIRouter:
    """The route, bound to a backend."""
    router = APIRouter(tags=["chat"])
    dialect: Dialect[ChatRequest] = Dialect("chatcmpl-", _whole, _frames)

    @router.post("/v1/chat/completions", summary="Chat completion")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        return await answer(context, request, body, dialect)

    return router


async def _whole(call: _Call, streams: Sequence[Deltas]) -> Response:
    readers = _readers(call)
    (answers,), usage = await collect(streams, call.num_answers, call.timer, call.billing, readers)
    choices = [_choice(call, index, answer, readers[index]) for index, answer in enumerate(answers)]
    return JSONResponse(
        {
            **call.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": openai_usage(usage),
        }
    )


def _choice(call: _Call, index: int, answer: Answer, reader: AnswerReader) -> dict[str, Any]:
    content = reader.text or (None if reader.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reader.thought:
        message["reasoning_content"] = reader.thought
    if reader.calls:
        message["tool_calls"] = [
            {
                "id": made.call_id,
                "type": "function",
                "function": {"name": made.name, "arguments": made.arguments},
            }
            for made in reader.calls
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(answer.logprobs) if call.body.logprobs else None,
        "finish_reason": _finish_reason(answer.finish_reason, reader),
        "stop_reason": answer.stop_reason,
    }


def _readers(call: _Call) -> list[AnswerReader]:
    """One for each answer."""
    use = call.body.tool_use(call.model)
    [prompt] = call.prompts
    return [
        AnswerReader(
            f"{call.head['id']}/{index}", prompt.reasoning, None if use is None else use.parser()
        )
        for index in range(call.num_answers)
    ]


def _finish_reason(reason: FinishReason, reader: AnswerReader) -> str:
    if reader.calls and reason is FinishReason.STOP:
        return "tool_calls"
    return reason.value


async def _frames(call: _Call, streams: Sequence[Deltas]) -> AsyncGenerator[str, None]:
    readers = _readers(call)
    tally = Tally(call.billing, readers)
    opened = False
    async with aclosing(run(streams, call.timer)) as deltas:
        async for prompt_index, delta in deltas:
            tally.add(prompt_index, delta)
            if not opened:
                opened = True
                for index in range(call.num_answers):
                    yield _chunk(call, index, {"role": "assistant", "content": ""})
            for text in _delta_frames(call, delta, readers[delta.index]):
                yield text
    usage = tally.usage()
    if call.body.wants_usage_chunk:
        yield frame({**_head(call), "choices": [], "usage": openai_usage(usage)})
    yield DONE


def _delta_frames(call: _Call, delta: OutputDelta, reader: AnswerReader) -> list[str]:
    """What a delta shows: thoughts, content, the beginning of a call with its name, pieces of arguments."""
    frames = []
    logprobs = chat_logprobs(delta.logprobs) if call.body.logprobs and delta.logprobs else None
    pieces = [_piece(event, reader) for event in reader.read(delta)]
    if logprobs:  # tokens of calls have theirs too: they come with whatever is shown first
        first = pieces.pop(0) if pieces else {"content": ""}
        frames.append(_chunk(call, delta.index, first, logprobs=logprobs))
    frames += [_chunk(call, delta.index, piece) for piece in pieces]
    if delta.finish_reason is not None:
        reason = _finish_reason(delta.finish_reason, reader)
        end = {"finish_reason": reason, "stop_reason": delta.stop_reason}
        frames.append(_chunk(call, delta.index, {}, **end))
    return frames


def _piece(event: AnswerEvent, reader: AnswerReader) -> dict[str, Any]:
    match event:
        case Thought(text):
            return {"reasoning_content": text}
        case AnswerText(text):
            return {"content": text}
        case CallStarted(index, name):
            call = {"index": index, "id": reader.call_id(index), "type": "function"}
            return {"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _chunk(call: _Call, index: int, delta: Mapping[str, Any], **more: Any) -> str:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
    chunk = {**_head(call), "choices": [choice]}
    if call.body.wants_usage_chunk:
        chunk["usage"] = None
    return frame(chunk)


def _head(call: _Call) -> dict[str, Any]:
    return {**call.head, "object": "chat.completion.chunk"}
