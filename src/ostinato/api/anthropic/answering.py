"""Answering: one message from its first token to its last, searches for tools included.

Most messages are one generation. Where the model calls a search tool, the server runs it and generates again,
behind what was found; see `tool_search.run_rounds`. Usage is the sum over all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from ostinato.api.answer_reader import AnswerReader
from ostinato.api.anthropic.render import (
    NOT_FOUND,
    BlockWriter,
    Event,
    MessageBuilder,
    diagnostics,
    message_end,
    message_start,
)
from ostinato.api.anthropic.request import MessagesRequest
from ostinato.api.backend import EncodedPrompt, ServedModel
from ostinato.api.context import ApiContext, to_requests
from ostinato.api.fingerprints import fingerprint_of
from ostinato.api.generation import Tally, open_streams, watched
from ostinato.api.prompt import Prompt
from ostinato.api.recording import Recording
from ostinato.api.sse import frame
from ostinato.api.tool_search import (
    Progress,
    Round,
    Searched,
    SearchError,
    SearchResult,
    run_rounds,
)
from ostinato.api.usage import TokenUsage, add_usage
from ostinato.cache.types import TenantId
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import EngineStoppedError, RequestError
from ostinato.insight.metrics import RequestTimer
from ostinato.product.diagnosis import Fingerprint, diagnose

_TOO_MANY = SearchResult((), "No more searches in this answer.", SearchError.UNAVAILABLE)


@dataclass(slots=True)
class MessageCall:
    """One message on its way. Nothing is computed before its first event is asked for.

    Attributes:
        context: of the server.
        body: as the client sent it; checked.
        message_id: of the answer.
        tenant: whose it is.
        model: that answers.
        params: of the first generation, without tools.
        betas: that the client named.
        timer: told of every delta.
        recording: of the request.
    """

    context: ApiContext
    body: MessagesRequest
    message_id: str
    tenant: TenantId
    model: ServedModel
    params: SamplingParams
    betas: Sequence[str]
    timer: RequestTimer
    recording: Recording
    _tallies: list[Tally] = field(default_factory=list)
    _fingerprint: Fingerprint | None = None

    async def whole(self) -> dict[str, Any]:
        """The finished message.

        Raises:
            RequestError: the call can never be served; in Anthropic's terms.
            EngineStoppedError: the engine ended in the middle.
        """
        builder = MessageBuilder()
        async with aclosing(self.events()) as events:
            async for event in events:
                builder.add(event)
        return builder.message

    async def frames(self) -> AsyncGenerator[str, None]:
        """`events`, as they are sent; each has its name on a line of its own."""
        async with aclosing(self.events()) as events:
            async for event in events:
                yield frame(event, event["type"])

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events in Anthropic's order.

        Raises:
            RequestError: the call can never be served; in Anthropic's terms.
            EngineStoppedError: the engine ended in the middle.
        """
        parsed = self.body.parsed
        writer = BlockWriter(parsed.searches)
        last: Progress | None = None
        searched: set[str] = set()
        async with aclosing(run_rounds(parsed.prompt, parsed.searches, self._open_round)) as steps:
            async for step in steps:
                if isinstance(step, Searched):
                    searched.add(step.call.call_id)
                    for event in writer.searched(step.call, step.result):
                        yield event
                    continue
                if last is None:
                    yield self._start()
                last = step
                for event in writer.write(step.events, step.reader):
                    yield event
        if last is None or last.delta.finish_reason is None:
            raise EngineStoppedError("the engine ended the stream before the answer was finished")
        for call in last.reader.calls:  # beside calls of the client's, or one too many
            if call.name in parsed.searches and call.call_id not in searched:
                for event in writer.searched(call, _TOO_MANY):
                    yield event
        self.timer.finish()
        for event in (*writer.close(), *self._end(last)):
            yield event

    async def _open_round(self, number: int, prompt: Prompt, found: Sequence[str]) -> Round:
        """Start one generation: the first of the message, or one behind a search."""
        try:
            return await self._opened(number, prompt, found)
        except RequestError as error:
            raise self.body.in_client_terms(error) from error

    async def _opened(self, number: int, prompt: Prompt, found: Sequence[str]) -> Round:
        encoded = await self.context.backend.encode(prompt)
        round_id = self.message_id if number == 0 else f"{self.message_id}-{number}"
        use = self.body.tool_use(self.model, found)
        params = self.params
        if number > 0:
            params = replace(params, max_tokens=max(1, self.body.max_tokens - self._usage().output))
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
            [encoded],
        )
        if number == 0:
            self._fingerprint = self._fingerprint_of(encoded)
        [deltas] = await open_streams(self.context.backend, requests)
        parser = None if use is None else use.parser()
        reader = AnswerReader(f"{round_id}/0", encoded.reasoning, parser)
        tally = Tally(billing, [reader])
        self._tallies.append(tally)
        return Round(watched(deltas, number, self.timer, tally), reader)

    def _usage(self) -> TokenUsage:
        return add_usage(tally.usage() for tally in self._tallies)

    def _fingerprint_of(self, encoded: EncodedPrompt) -> Fingerprint:
        return fingerprint_of(
            self.context.prompt_cache.fingerprinter,
            encoded,
            tenant=self.tenant,
            model=self.model,
            settings=self.body.cache_settings(self.betas),
        )

    def _start(self) -> Event:
        """The message has begun: it is compared with an earlier one, and later ones may be with it."""
        event = message_start(self.message_id, self.model.id, self._usage())
        if self.body.diagnostics is not None:
            event["message"]["diagnostics"] = self._diagnostics(
                self.body.diagnostics.previous_message_id
            )
        assert self._fingerprint is not None  # the first round has made it
        book = self.context.prompt_cache.fingerprints
        book.put(self.tenant, self.message_id, self._fingerprint)
        return event

    def _diagnostics(self, previous_id: str | None) -> dict[str, Any] | None:
        if previous_id is None:
            return None
        previous = self.context.prompt_cache.fingerprints.find(self.tenant, previous_id)
        if previous is None:
            return NOT_FOUND
        assert self._fingerprint is not None  # see `_start`
        return diagnostics(diagnose(previous, self._fingerprint))

    def _end(self, last: Progress) -> list[Event]:
        usage = self._usage()
        reason = self._stop_reason(last.delta, last.reader, usage.output)
        sequence = last.delta.stop_reason if reason == "stop_sequence" else None
        return message_end(reason, None if sequence is None else str(sequence), usage)

    def _stop_reason(self, delta: OutputDelta, reader: AnswerReader, output: int) -> str:
        if delta.finish_reason is FinishReason.LENGTH:
            has_room = output < self.body.max_tokens
            return "model_context_window_exceeded" if has_room else "max_tokens"
        if isinstance(delta.stop_reason, str):
            return "stop_sequence"
        is_called = any(call.name not in self.body.parsed.searches for call in reader.calls)
        return "tool_use" if is_called else "end_turn"
