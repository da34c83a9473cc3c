"""From a backend's deltas to finished answers: several prompts run side by side, pieces are put together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from ostinato.api.backend import Backend, GenerationRequest
from ostinato.api.billing import Billing
from ostinato.api.usage import TokenUsage, add_usage, usage_of
from ostinato.engine.outputs import FinishReason, OutputDelta, TokenLogprob
from ostinato.errors import EngineStoppedError
from ostinato.insight.metrics import RequestTimer

Deltas = AsyncGenerator[OutputDelta, None]


class DeltaReader(Protocol):
    """Whatever reads one answer."""

    def read(self, delta: OutputDelta) -> Sequence[object]:
        """Take the next delta of the answer."""
        ...

    @property
    def num_reasoning_tokens(self) -> int | None:
        """How many of its tokens were thoughts; None if that is not known."""
        ...


@dataclass(slots=True)
class Answer:
    """One finished answer."""

    text: str
    logprobs: list[TokenLogprob]
    finish_reason: FinishReason
    stop_reason: str | int | None


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: OutputDelta | None = None


class Tally:
    """Adds up one call's usage from the deltas that pass: each prompt once, each answer's last count.

    Args:
        billing: of the call; told of the first delta of each prompt and of the end of each answer.
        readers: of the answers to the call's only prompt, which know its thoughts; somebody else has them read.
    """

    def __init__(self, billing: Billing, readers: Sequence[DeltaReader] = ()) -> None:
        self._billing = billing
        self._readers = readers
        self._outputs: dict[tuple[int, int], int] = {}
        self._token_ids: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._last: dict[int, OutputDelta] = {}

    def add(self, prompt_index: int, delta: OutputDelta) -> None:
        answer = prompt_index, delta.index
        self._outputs[answer] = delta.num_output_tokens
        self._token_ids[answer] += delta.token_ids
        if delta.report is not None:
            self._last[prompt_index] = delta
            self._billing.settle(prompt_index, delta.report)
        if delta.finish_reason is not None and delta.report is not None:
            self._billing.finish(prompt_index, self._token_ids.pop(answer))

    def usage(self) -> TokenUsage:
        """The sum so far."""
        records = []
        for prompt_index, delta in self._last.items():
            assert delta.report is not None
            output = sum(n for (p, _), n in self._outputs.items() if p == prompt_index)
            split = self._billing.settle(prompt_index, delta.report)
            reasoning = self._reasoning()
            if reasoning is not None:
                self._billing.count_reasoning(prompt_index, reasoning)
            records.append(usage_of(delta.report, output, split, reasoning))
        return add_usage(records)

    def _reasoning(self) -> int | None:
        counts = [reader.num_reasoning_tokens for reader in self._readers]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None


async def open_streams(backend: Backend, requests: Sequence[GenerationRequest]) -> list[Deltas]:
    """Check all requests before any of them starts.

    Of several, no more run at once than an idle backend takes; the others follow as those finish.

    Raises:
        RequestError: one of them can never be served.
    """
    streams = [await backend.stream(request) for request in requests]
    if len(streams) == 1:
        return streams
    limits = backend.health()
    running = max(1, limits.max_num_seqs // requests[0].params.n)
    places = asyncio.Semaphore(running + limits.max_waiting)
    return [_in_turn(stream, places) for stream in streams]


async def _in_turn(stream: Deltas, places: asyncio.Semaphore) -> Deltas:
    async with places, aclosing(stream):
        async for delta in stream:
            yield delta


async def run(
    streams: Sequence[Deltas], timer: RequestTimer
) -> AsyncGenerator[tuple[int, OutputDelta], None]:
    """All deltas with the index of their prompt, as they come. Closing this closes the streams.

    Raises:
        EngineStoppedError: an answer was cut off by the engine.
    """
    async with aclosing(_merge(streams)) as merged:
        async for prompt_index, delta in merged:
            if delta.finish_reason is FinishReason.ABORT:
                raise EngineStoppedError("the engine stopped before the answer was finished")
            timer.observe(prompt_index, delta)
            yield prompt_index, delta
    timer.finish()


async def watched(
    deltas: Deltas, number: int, timer: RequestTimer, tally: Tally
) -> AsyncGenerator[OutputDelta, None]:
    """The deltas of one of several generations that make up an answer. Closing this closes them.

    Raises:
        EngineStoppedError: it was cut off by the engine.
    """
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.finish_reason is FinishReason.ABORT:
                raise EngineStoppedError("the engine stopped before the answer was finished")
            timer.observe(number, delta)
            tally.add(0, delta)
            yield delta


async def collect(
    streams: Sequence[Deltas],
    num_answers: int,
    timer: RequestTimer,
    billing: Billing,
    readers: Sequence[DeltaReader] = (),
) -> tuple[list[list[Answer]], TokenUsage]:
    """Wait for everything.

    Args:
        streams: one a prompt.
        num_answers: to each prompt.
        timer: told of every delta.
        billing: of the prompts.
        readers: of the answers to the only prompt, which read them; none: nobody does.

    Returns:
        For each prompt its `num_answers` answers in order, and the usage of the call.
    """
    tally = Tally(billing, readers)
    choices = [[_Choice() for _ in range(num_answers)] for _ in streams]
    async with aclosing(run(streams, timer)) as deltas:
        async for prompt_index, delta in deltas:
            tally.add(prompt_index, delta)
            if readers:
                readers[delta.index].read(delta)
            choice = choices[prompt_index][delta.index]
            choice.texts.append(delta.text)
            choice.logprobs.extend(delta.logprobs)
            choice.last = delta
    return [[_answer(choice) for choice in row] for row in choices], tally.usage()


def _answer(choice: _Choice) -> Answer:
    if choice.last is None or choice.last.finish_reason is None:
        raise EngineStoppedError("the engine ended the stream before the answer was finished")
    return Answer(
        text="".join(choice.texts),
        logprobs=choice.logprobs,
        finish_reason=choice.last.finish_reason,
        stop_reason=choice.last.stop_reason,
    )


async def _merge(streams: Sequence[Deltas]) -> AsyncGenerator[tuple[int, OutputDelta], None]:
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for delta in only:
                yield 0, delta
        return
    queue: asyncio.Queue[tuple[int, OutputDelta] | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(i, s, queue)) for i, s in enumerate(streams)]
    try:
        for _ in pumps:
            while (item := await queue.get()) is not None:
                yield item
            for pump in pumps:
                if pump.done():
                    pump.result()  # raises what ended it
    finally:
        await _cancel_all(pumps)


async def _pump(
    index: int, stream: Deltas, queue: asyncio.Queue[tuple[int, OutputDelta] | None]
) -> None:
    """Move one stream into the queue; a None says that it has ended, well or not."""
    try:
        async with aclosing(stream):
            async for delta in stream:
                queue.put_nowait((index, delta))
    finally:
        queue.put_nowait(None)


async def _cancel_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
