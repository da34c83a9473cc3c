"""Answering: one response from its first token to the store, as the events that a stream tells of it.

created ─► in_progress ─► events of the items ─► completed | incomplete | failed

Most responses are one generation. Where the model calls the search tool, the server runs it and generates
again, behind what was found; see `tool_search.run_rounds`. Usage is the sum over all of them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from starlette.types import Scope

from ostinato.api.answer_reader import AnswerReader
from ostinato.api.backend import EncodedPrompt, ServedModel
from ostinato.api.context import ApiContext, to_requests
from ostinato.api.failure import failure_of
from ostinato.api.generation import Deltas, Tally, open_streams, watched
from ostinato.api.middleware import request_id_of
from ostinato.api.openai_responses import render
from ostinato.api.openai_responses.continuation import Continuation, continuation_of
from ostinato.api.openai_responses.conversation import Conversation, continued, num_segments
from ostinato.api.openai_responses.output import Output
from ostinato.api.openai_responses.output_items import Event
from ostinato.api.openai_responses.request import ResponsesRequest
from ostinato.api.openai_responses.store import ResponseStore, StoredResponse
from ostinato.api.prompt import Prompt
from ostinato.api.recording import Recording, note_error
from ostinato.api.sse import frame
from ostinato.api.tool_search import Progress, Round, Searched, run_rounds
from ostinato.api.usage import TokenUsage, add_usage
from ostinato.cache.types import TenantId
from ostinato.engine.outputs import FinishReason
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import EngineStoppedError, RequestError
from ostinato.insight.metrics import RequestTimer
from ostinato.product.diagnosis import Fingerprint, diagnose

logger = logging.getLogger("ostinato.api")


@dataclass(slots=True)
class _Generation:
    """One of the generations that an answer is made of.

    Attributes:
        rendered: its prompt, as the model's template has it.
        computed: the same as it was computed.
        tally: of its tokens.
        token_ids: that it generated.
    """

    rendered: EncodedPrompt
    computed: EncodedPrompt
    tally: Tally
    token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ResponseCall:
    """One response on its way. Nothing is computed before its first event is asked for.

    Attributes:
        context, store: of the server.
        body: as the client sent it; checked.
        begun: the response object at its beginning.
        tenant: whose it is.
        model: that answers.
        params: of the first generation, without tools.
        conversation: that is answered.
        fingerprint: of the prompt.
        timer: told of every delta.
        recording: of the request.
    """

    context: ApiContext
    store: ResponseStore
    body: ResponsesRequest
    begun: dict[str, Any]
    tenant: TenantId
    model: ServedModel
    params: SamplingParams
    conversation: Conversation
    fingerprint: Fingerprint
    timer: RequestTimer
    recording: Recording
    _generations: list[_Generation] = field(default_factory=list)

    @property
    def response_id(self) -> str:
        name: str = self.begun["id"]
        return name

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events, the last with the finished response, which is stored by then.

        Raises:
            RequestError: the response can never be made; in this dialect's terms.
            EngineStoppedError: the engine ended in the middle.
        """
        toolbox = self.conversation.toolbox
        wants_logprobs = self.body.wants_logprobs
        output = Output(self.response_id, toolbox, wants_logprobs=wants_logprobs)
        prompt = self.conversation.rendered.source
        assert isinstance(prompt, Prompt)  # it was rendered from messages
        last: Progress | None = None
        async with aclosing(run_rounds(prompt, toolbox.searches, self._open_round)) as steps:
            async for step in steps:
                if isinstance(step, Searched):
                    for event in output.searched(step.result.names):
                        yield event
                    continue
                if last is None:
                    self._begin()
                    yield {"type": "response.created", "response": self.begun}
                    yield {"type": "response.in_progress", "response": self.begun}
                last = step
                for event in output.feed(step):
                    yield event
        if last is None or last.delta.finish_reason is None:
            raise EngineStoppedError("the engine ended the stream before the answer was finished")
        for event in self._end(output, last):
            yield event
        response = await self._finished(output, last)
        yield {"type": f"response.{response['status']}", "response": response}

    async def _open_round(self, number: int, prompt: Prompt, found: Sequence[str]) -> Round:
        """Start one generation: the first of the response, or one behind a search."""
        try:
            return await self._opened(number, prompt, found)
        except RequestError as error:
            raise self.body.in_client_terms(error) from error

    async def _opened(self, number: int, prompt: Prompt, found: Sequence[str]) -> Round:
        conversation, backend = self.conversation, self.context.backend
        rendered, computed = conversation.rendered, conversation.computed
        round_id, params = self.response_id, self.params
        if number > 0:
            round_id = f"{round_id}-{number}"
            params = self._with_rest(params)
            rendered = await backend.encode(prompt)
            computed = await self._continued(rendered)
        searched = found if number > 0 else None
        use = self.body.tool_use(self.model, conversation.toolbox, searched)
        if use is not None:
            params = use.constrain(params)
        requests, billing = to_requests(
            self.context,
            self.model,
            round_id,
            self.tenant,
            self.body,
            params,
            self.recording,
            [computed],
        )
        [deltas] = await open_streams(backend, requests)
        parser = None if use is None else use.parser()
        reader = AnswerReader(f"{round_id}/0", computed.reasoning, parser)
        generation = _Generation(rendered, computed, Tally(billing, [reader]))
        self._generations.append(generation)
        return Round(self._kept(generation, number, deltas), reader)

    async def _kept(self, generation: _Generation, number: int, deltas: Deltas) -> Deltas:
        async with aclosing(watched(deltas, number, self.timer, generation.tally)) as passing:
            async for delta in passing:
                generation.token_ids += delta.token_ids
                yield delta

    def _with_rest(self, params: SamplingParams) -> SamplingParams:
        """A bound of the whole response is one of all its generations together."""
        if params.max_tokens is None:
            return params
        return replace(params, max_tokens=max(1, params.max_tokens - self._usage().output))

    async def _continued(self, rendered: EncodedPrompt) -> EncodedPrompt:
        """The prompt behind a search, with the tokens that the search was generated as."""
        last = self._generations[-1]
        left = self._continuation(is_cut_off=False)
        assert isinstance(last.rendered.source, Prompt)
        assert isinstance(rendered.source, Prompt)
        turn = rendered.source.messages[len(last.rendered.source.messages)]
        if left is None:
            return rendered
        ends = self.model.end_token_ids
        return await continued(left, rendered, num_segments([turn]), ends, self.context.backend)

    def _usage(self) -> TokenUsage:
        return add_usage(generation.tally.usage() for generation in self._generations)

    def _end(self, output: Output, last: Progress) -> list[Event]:
        """The last events of items. Searches beside calls of the client's, or one too many, found nothing."""
        if self.body.is_prewarm:
            return []
        events: list[Event] = []
        searches = self.conversation.toolbox.searches
        if last.delta.finish_reason is not FinishReason.LENGTH:
            for call in last.reader.calls:
                events += output.searched(()) if call.name in searches else []
        return events + output.finish(is_cut_off=self._is_cut_off(last))

    def _is_cut_off(self, last: Progress) -> bool:
        return last.delta.finish_reason is FinishReason.LENGTH and not self.body.is_prewarm

    async def frames(self, scope: Scope) -> AsyncGenerator[str, None]:
        """`events`, as they are sent. What fails in the middle becomes the last event."""
        numbers = count()

        def written(event: Event) -> str:
            return frame({**event, "sequence_number": next(numbers)}, event["type"])

        has_begun = False
        try:
            async with aclosing(self.events()) as events:
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

    def _begin(self) -> None:
        """The response has begun: from now on others may be compared with it."""
        book = self.context.prompt_cache.fingerprints
        book.put(self.tenant, self.response_id, self.fingerprint)

    async def _finished(self, output: Output, last: Progress) -> dict[str, Any]:
        """The response at its end, stored if it is to be."""
        self.timer.finish()
        usage, is_cut_off = self._usage(), self._is_cut_off(last)
        completed = int(self.context.clock.time())
        response = render.finished(
            self.begun, output.items, usage, completed, is_cut_off=is_cut_off
        )
        wanted = self.body.cache_options.comparison_response_id
        if wanted is not None:
            response["prompt_cache_diagnostics"] = self._diagnostics(wanted, usage)
        if self.body.is_stored:
            stored = self._stored(response, is_cut_off=is_cut_off)
            await self.store.put(self.tenant, stored)
        return response

    def _diagnostics(self, compared_id: str, usage: TokenUsage) -> dict[str, Any]:
        compared = self.context.prompt_cache.fingerprints.find(self.tenant, compared_id)
        if compared is None:
            return render.NOT_FOUND
        return render.diagnostics(diagnose(compared, self.fingerprint), usage)

    def _stored(self, response: dict[str, Any], *, is_cut_off: bool) -> StoredResponse:
        left = self._continuation(is_cut_off=is_cut_off)
        return StoredResponse(response, self.conversation.items, left)

    def _continuation(self, *, is_cut_off: bool) -> Continuation | None:
        """What the last generation leaves."""
        last = self._generations[-1]
        return continuation_of(
            last.rendered,
            last.computed,
            last.token_ids,
            self.model.end_token_ids,
            is_cut_off=is_cut_off,
        )
