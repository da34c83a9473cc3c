"""Answering: one response from its first token to the store, as the events that a stream tells of it.

created ─► in_progress ─► events of the items ─► completed | incomplete | failed
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any

from starlette.types import Scope

from ostinato.api.backend import ServedModel
from ostinato.api.billing import Billing
from ostinato.api.context import ApiContext
from ostinato.api.failure import failure_of
from ostinato.api.generation import Deltas, Tally, run
from ostinato.api.middleware import request_id_of
from ostinato.api.openai_responses import render
from ostinato.api.openai_responses.continuation import continuation_of
from ostinato.api.openai_responses.conversation import Conversation
from ostinato.api.openai_responses.output import Event, Output
from ostinato.api.openai_responses.request import ResponsesRequest
from ostinato.api.openai_responses.store import ResponseStore, StoredResponse
from ostinato.api.recording import note_error
from ostinato.api.sse import frame
from ostinato.api.usage import TokenUsage
from ostinato.cache.types import TenantId
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.errors import EngineStoppedError
from ostinato.insight.metrics import RequestTimer
from ostinato.product.diagnosis import Fingerprint, diagnose

logger = logging.getLogger("ostinato.api")


@dataclass(frozen=True, slots=True)
class ResponseCall:
    """One response on its way.

    Attributes:
        context, store: of the server.
        body: as the client sent it.
        begun: the response object at its beginning.
        tenant: whose it is.
        model: that answers.
        conversation: that is answered.
        fingerprint: of the prompt.
        timer: told of every delta.
        billing: of the prompt.
    """

    context: ApiContext
    store: ResponseStore
    body: ResponsesRequest
    begun: dict[str, Any]
    tenant: TenantId
    model: ServedModel
    conversation: Conversation
    fingerprint: Fingerprint
    timer: RequestTimer
    billing: Billing

    @property
    def response_id(self) -> str:
        name: str = self.begun["id"]
        return name

    async def events(self, streams: Sequence[Deltas]) -> AsyncGenerator[Event, None]:
        """All events, the last with the finished response, which is stored by then.

        Raises:
            EngineStoppedError: the engine ended in the middle.
        """
        tally, output = Tally(self.billing), self._output()
        token_ids: list[int] = []
        last: OutputDelta | None = None
        async with aclosing(run(streams, self.timer)) as deltas:
            async for prompt_index, delta in deltas:
                tally.add(prompt_index, delta)
                if last is None:
                    self._begin()
                    yield {"type": "response.created", "response": self.begun}
                    yield {"type": "response.in_progress", "response": self.begun}
                last = delta
                token_ids += delta.token_ids
                for event in output.feed(delta):
                    yield event
        if last is None or last.finish_reason is None:
            raise EngineStoppedError("the engine ended the stream before the answer was finished")
        is_cut_off = last.finish_reason is FinishReason.LENGTH and not self.body.is_prewarm
        if not self.body.is_prewarm:
            for event in output.finish(is_cut_off=is_cut_off):
                yield event
        response = self._finished(output, tally.usage(), is_cut_off)
        if self.body.is_stored:
            await self.store.put(self.tenant, self._stored(response, token_ids, is_cut_off))
        yield {"type": f"response.{response['status']}", "response": response}

    async def frames(self, streams: Sequence[Deltas], scope: Scope) -> AsyncGenerator[str, None]:
        """`events`, as they are sent. What fails in the middle becomes the last event."""
        numbers = count()

        def written(event: Event) -> str:
            return frame({**event, "sequence_number": next(numbers)}, event["type"])

        has_begun = False
        try:
            async with aclosing(self.events(streams)) as events:
                async for event in events:
                    has_begun = True
                    yield written(event)
        except Exception as error:
            if not has_begun:
                raise
            note_error(scope, error)
            failure = failure_of(error, request_id_of(scope))
            if failure.status == 500:
                logger.error("response %s failed in mid-stream", self.response_id, exc_info=error)
            response = render.failed(self.begun, "server_error", failure.message)
            yield written({"type": "response.failed", "response": response})

    def _output(self) -> Output:
        use = None if self.body.is_prewarm else self.body.tool_use(self.model)
        reader = None if use is None else use.reader(self.response_id, 0)
        return Output(self.response_id, reader, wants_logprobs=self.body.wants_logprobs)

    def _begin(self) -> None:
        """The response has begun: from now on others may be compared with it."""
        book = self.context.prompt_cache.fingerprints
        book.put(self.tenant, self.response_id, self.fingerprint)

    def _finished(self, output: Output, usage: TokenUsage, is_cut_off: bool) -> dict[str, Any]:
        completed = int(self.context.clock.time())
        response = render.finished(
            self.begun, output.items, usage, completed, is_cut_off=is_cut_off
        )
        wanted = self.body.cache_options.comparison_response_id
        if wanted is not None:
            response["prompt_cache_diagnostics"] = self._diagnostics(wanted, usage)
        return response

    def _diagnostics(self, compared_id: str, usage: TokenUsage) -> dict[str, Any]:
        compared = self.context.prompt_cache.fingerprints.find(self.tenant, compared_id)
        if compared is None:
            return render.NOT_FOUND
        return render.diagnostics(diagnose(compared, self.fingerprint), usage)

    def _stored(
        self, response: dict[str, Any], token_ids: Sequence[int], is_cut_off: bool
    ) -> StoredResponse:
        conversation = self.conversation
        continuation = continuation_of(
            conversation.rendered,
            conversation.computed,
            token_ids,
            self.model.end_token_ids,
            is_cut_off=is_cut_off,
        )
        return StoredResponse(response, conversation.items, continuation)
