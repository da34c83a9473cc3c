"""generateContent and streamGenerateContent: from a body to answers.

A stream is one GenerateContentResponse after the other, each with the usage so far: as events without a last
mark (``alt=sse``), or as the elements of one JSON array.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from ostinato.api.answer_reader import AnswerReader
from ostinato.api.backend import EncodedPrompt, GenerationRequest, ServedModel
from ostinato.api.billing import Billing
from ostinato.api.connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnectedError,
    until_disconnect,
)
from ostinato.api.context import ApiContext, new_answer_id
from ostinato.api.gemini.cache_store import CachedContent
from ostinato.api.gemini.cached_contents import CachedContents
from ostinato.api.gemini.contents import CachedPrompt, build_prompt
from ostinato.api.gemini.render import AnswerParts, candidate, ending, response
from ostinato.api.gemini.request import in_client_terms, template_variables, to_params
from ostinato.api.gemini.wire import GenerateContentBody, PrefixFields
from ostinato.api.generation import Deltas, Tally, collect, open_streams, run
from ostinato.api.middleware import request_id_of
from ostinato.api.recording import recording_of
from ostinato.api.sse import EventStream, JsonArrayStream, frame
from ostinato.api.tenants import tenant_of
from ostinato.api.tool_calling import ToolUse
from ostinato.cache.types import TenantId
from ostinato.engine.outputs import OutputDelta
from ostinato.engine.reasoning import allow_reasoning
from ostinato.errors import InvalidRequestError, RequestError
from ostinato.insight.metrics import RequestTimer
from ostinato.models.reasoning.syntax import Reasoning
from ostinato.product.entries import Entry
from ostinato.product.prompt_cache import CachedRequest
from ostinato.product.segments import TTLClass

ID_PREFIX = "gen-"


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way.

    Attributes:
        head: the fields that end every object of the answer.
        num_answers: candidates.
        use: how answers call functions.
        reasoning: how they think.
        shows_thoughts: whether the client asked for thoughts.
        timer: told of every delta.
        billing: of the prompt.
    """

    head: Mapping[str, Any]
    num_answers: int
    use: ToolUse | None
    reasoning: Reasoning | None
    shows_thoughts: bool
    timer: RequestTimer
    billing: Billing

    def parts(self) -> list[AnswerParts]:
        """For each candidate."""
        answer_id = self.head["responseId"]
        parsers = (None if self.use is None else self.use.parser() for _ in range(self.num_answers))
        readers = (
            AnswerReader(f"{answer_id}/{index}", self.reasoning, parser)
            for index, parser in enumerate(parsers)
        )
        return [AnswerParts(reader, shows_thoughts=self.shows_thoughts) for reader in readers]


@dataclass(frozen=True, slots=True)
class Composed:
    """A request's prompt, and the cache object that it begins with, if it names one."""

    prompt: CachedPrompt
    head: PrefixFields
    held: CachedContent | None


async def open_call(
    context: ApiContext,
    contents: CachedContents,
    request: Request,
    body: GenerateContentBody,
    model_name: str,
) -> tuple[Call, Sequence[Deltas]]:
    """Check a request and start it.

    Raises:
        RequestError: it can never be served; in Gemini's own terms.
        ClientDisconnectedError: nobody waits any more.
    """
    timer = context.metrics.start_request()
    recording = recording_of(request.scope)
    recording.timer = timer
    recording.asked.model = model_name
    model = context.served_model(model_name)
    tenant = tenant_of(request.scope)
    composed = compose(contents, tenant, model, body)
    tools = composed.prompt.prompt.tools
    params, use = to_params(body, composed.head.tool_config, tools, model.tool_call_style)
    answer_id = new_answer_id(ID_PREFIX)
    recording.asked.response_id = answer_id
    recording.asked.answers = params.n
    try:
        encoded = await until_disconnect(
            request.receive, context.backend.encode(composed.prompt.prompt)
        )
        planned, retain = _plan(context, model, tenant, composed, encoded)
        meter = recording.meter()
        generation = GenerationRequest(
            request_id=answer_id,
            model=model.id,
            prompt=encoded,
            params=allow_reasoning(params, encoded.reasoning),
            tenant=tenant,
            retain=retain,
            meter=meter,
        )
        streams = await until_disconnect(
            request.receive, open_streams(context.backend, [generation])
        )
    except RequestError as error:
        raise in_client_terms(error) from error
    head = {"modelVersion": model.id, "responseId": answer_id}
    billing = Billing(context.prompt_cache, [planned], [meter])
    thinking = body.generation_config.thinking_config
    shows_thoughts = thinking is not None and thinking.include_thoughts is True
    call = Call(head, params.n, use, encoded.reasoning, shows_thoughts, timer, billing)
    return call, streams


def compose(
    contents: CachedContents, tenant: TenantId, model: ServedModel, body: GenerateContentBody
) -> Composed:
    """The prompt of a body.

    Raises:
        RequestError: it has no contents, a part that cannot be read, or a cache object that cannot be used.
    """
    if not body.contents:
        raise InvalidRequestError("contents must have at least one content", param="contents")
    held = None if body.cached_content is None else contents.find(tenant, body.cached_content)
    if held is None:
        head: PrefixFields = body
    else:
        _require_usable(held, model, body)
        head = PrefixFields.model_validate(json.loads(held.content))
    variables = template_variables(body.generation_config)
    cached = None if held is None else head
    return Composed(build_prompt(body, cached, variables), head, held)


def _require_usable(held: CachedContent, model: ServedModel, body: GenerateContentBody) -> None:
    if held.model != model.id:
        raise InvalidRequestError(
            f"this cache object was made with models/{held.model}, and works with it alone, "
            f"not with models/{model.id}",
            param="cachedContent",
        )
    for name, value in (
        ("systemInstruction", body.system_instruction),
        ("tools", body.tools),
        ("toolConfig", body.tool_config),
    ):
        if value is not None:
            raise InvalidRequestError(
                f"{name} cannot be given together with cachedContent: put it into the cache object",
                param=name,
            )


def _plan(
    context: ApiContext,
    model: ServedModel,
    tenant: TenantId,
    composed: Composed,
    encoded: EncodedPrompt,
) -> tuple[CachedRequest, tuple[tuple[int, float], ...]]:
    """How the request is billed, and what of its K/V is kept for how long."""
    planned = context.plan(model, encoded, tenant=tenant)
    held = composed.held
    num_tokens = composed.prompt.cached_tokens(encoded.boundaries)
    if held is None or num_tokens == 0:
        return planned, planned.plan.retain
    rest = held.expires - context.clock.time()
    promise = ((num_tokens, rest),) if rest > 0 else ()
    return _with_object(planned, held, num_tokens), (*planned.plan.retain, *promise)


def _with_object(planned: CachedRequest, held: CachedContent, num_tokens: int) -> CachedRequest:
    """A plan in which the object is an entry like those that breakpoints make, whatever the house rules."""
    plan = planned.plan
    [key] = plan.digests.keys([num_tokens]).values()
    entry = Entry(
        key, num_tokens, TTLClass.LONG, 0.0, held.expires, held.expires, planned.scope.tenant
    )
    reads = sorted((*plan.reads, entry), key=lambda read: -read.num_tokens)
    return replace(planned, plan=replace(plan, reads=tuple(reads)))


async def answer_whole(request: Request, call: Call, streams: Sequence[Deltas]) -> Response:
    """Wait for all candidates."""
    makers = call.parts()
    waiting = collect(streams, call.num_answers, call.timer, call.billing, makers)
    try:
        (answers,), usage = await until_disconnect(request.receive, waiting)
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    candidates = []
    for index, (answer, maker) in enumerate(zip(answers, makers, strict=True)):
        shown = candidate(index, maker.shown or [{"text": ""}], logprobs=answer.logprobs)
        candidates.append({**shown, **ending(answer.finish_reason, maker.malformed)})
    return JSONResponse(response(call.head, candidates, usage))


def answer_stream(request: Request, call: Call, streams: Sequence[Deltas], alt: str) -> Response:
    """Send the candidates as they come."""
    request_id = request_id_of(request.scope)
    if alt == "sse":
        return EventStream(_events(call, streams), request_id)
    return JsonArrayStream(_elements(call, streams), request_id)


async def _events(call: Call, streams: Sequence[Deltas]) -> AsyncGenerator[str, None]:
    async with aclosing(_responses(call, streams)) as responses:
        async for one in responses:
            yield frame(one)


async def _elements(call: Call, streams: Sequence[Deltas]) -> AsyncGenerator[str, None]:
    before = "["
    async with aclosing(_responses(call, streams)) as responses:
        async for one in responses:
            yield before + json.dumps(one, ensure_ascii=False)
            before = ",\r\n"
    yield "]"


async def _responses(call: Call, streams: Sequence[Deltas]) -> AsyncGenerator[dict[str, Any], None]:
    """The pieces of the answer. The last of a candidate says why it ended, and none is without a part."""
    makers = call.parts()
    tally = Tally(call.billing, makers)
    async with aclosing(run(streams, call.timer)) as deltas:
        async for prompt_index, delta in deltas:
            tally.add(prompt_index, delta)
            piece = _piece(makers[delta.index], delta)
            if piece is not None:
                yield response(call.head, [piece], tally.usage())


def _piece(maker: AnswerParts, delta: OutputDelta) -> dict[str, Any] | None:
    """What one delta adds to its candidate; None if it shows nothing yet."""
    parts = maker.read(delta)
    if delta.finish_reason is None:
        if not parts and not delta.logprobs:
            return None
        return candidate(delta.index, parts or [{"text": ""}], logprobs=delta.logprobs)
    shown = candidate(delta.index, parts or [{"text": ""}], logprobs=delta.logprobs)
    return {**shown, **ending(delta.finish_reason, maker.malformed)}
