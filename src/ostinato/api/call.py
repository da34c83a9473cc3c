"""The way of a generating call, the same in every dialect: check, open all streams, then stream or wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request, Response

from ostinato.api.backend import EncodedPrompt, ServedModel
from ostinato.api.billing import Billing
from ostinato.api.connection import (
    CLIENT_CLOSED_REQUEST,
    ClientDisconnectedError,
    until_disconnect,
)
from ostinato.api.context import ApiContext, new_answer_id, prepare
from ostinato.api.fields import GenerationBody
from ostinato.api.generation import Deltas, open_streams
from ostinato.api.middleware import request_id_of
from ostinato.api.recording import recording_of
from ostinato.api.sse import EventStream
from ostinato.api.tenants import tenant_of
from ostinato.errors import RequestError
from ostinato.insight.metrics import RequestTimer

BodyT = TypeVar("BodyT", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class Call(Generic[BodyT]):
    """One call on its way.

    Attributes:
        body: as the client sent it.
        head: the fields that begin every object of the answer.
        num_answers: answers to each prompt.
        timer: told of every delta.
        model: that answers.
        billing: of its prompts.
        prompts: as they are computed.
    """

    body: BodyT
    head: Mapping[str, Any]
    num_answers: int
    timer: RequestTimer
    model: ServedModel
    billing: Billing
    prompts: Sequence[EncodedPrompt]


@dataclass(frozen=True, slots=True)
class Dialect(Generic[BodyT]):
    """How one endpoint writes what was generated.

    Attributes:
        id_prefix: of the answers' ids.
        whole: waits for everything and returns one response.
        frames: the events of a streamed answer.
    """

    id_prefix: str
    whole: Callable[[Call[BodyT], Sequence[Deltas]], Coroutine[Any, Any, Response]]
    frames: Callable[[Call[BodyT], Sequence[Deltas]], AsyncGenerator[str, None]]


async def answer(
    context: ApiContext, request: Request, body: BodyT, dialect: Dialect[BodyT]
) -> Response:
    """Serve one call.

    Raises:
        RequestError: the call can never be served; in the dialect's own terms.
    """
    timer = context.metrics.start_request()
    recording = recording_of(request.scope)
    recording.timer = timer
    recording.asked.take_body(body)
    model = context.served_model(body.model)
    body.check()
    params = body.constrained(body.to_params(), model)
    answer_id = new_answer_id(dialect.id_prefix)
    recording.asked.response_id = answer_id
    recording.asked.answers = params.n
    head = {
        "id": answer_id,
        "created": int(context.clock.time()),
        "model": model.id,
        "system_fingerprint": model.fingerprint,
    }
    tenant = tenant_of(request.scope)
    try:
        requests, billing = await until_disconnect(
            request.receive, prepare(context, model, answer_id, tenant, body, params, recording)
        )
        streams = await until_disconnect(request.receive, open_streams(context.backend, requests))
    except RequestError as error:
        raise body.in_client_terms(error) from error
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    prompts = [one.prompt for one in requests]
    call = Call(body, head, params.n, timer, model, billing, prompts)
    if body.streams:
        return EventStream(dialect.frames(call, streams), request_id_of(request.scope))
    try:
        return await until_disconnect(request.receive, dialect.whole(call, streams))
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
