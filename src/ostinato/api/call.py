"""The way of a generating call, the same in every dialect: check, open all streams, then stream or wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request, Response

from ostinato.api.connection import ClientDisconnectedError, until_disconnect
from ostinato.api.context import CLIENT_CLOSED_REQUEST, ApiContext, new_answer_id, to_requests
from ostinato.api.fields import GenerationBody
from ostinato.api.generation import Deltas, open_streams
from ostinato.api.middleware import request_id_of
from ostinato.api.sse import EventStream
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
    """

    body: BodyT
    head: Mapping[str, Any]
    num_answers: int
    timer: RequestTimer


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
    model = context.served_model(body.model)
    body.check()
    params = body.to_params()
    answer_id = new_answer_id(dialect.id_prefix)
    head = {
        "id": answer_id,
        "created": int(context.clock.time()),
        "model": model.id,
        "system_fingerprint": model.fingerprint,
    }
    requests = to_requests(
        answer_id,
        body,
        body.to_prompts(),
        params,
        clips_max_tokens=body.max_tokens_is_default,
    )
    try:
        streams = await until_disconnect(request.receive, open_streams(context.backend, requests))
    except RequestError as error:
        raise body.in_client_terms(error) from error
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    call = Call(body, head, params.n, timer)
    if body.streams:
        return EventStream(dialect.frames(call, streams), request_id_of(request.scope))
    try:
        return await until_disconnect(request.receive, dialect.whole(call, streams))
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
