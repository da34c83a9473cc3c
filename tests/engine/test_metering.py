"""Guards the meters: told exactly once for each request, and in sum exactly what the engine's own counters say,
whoever leaves when, whatever fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ostinato.config import OstinatoConfig
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.metering import Metering
from ostinato.engine.outputs import FinishReason, OutputDelta, RequestEnd
from ostinato.engine.request import EngineRequest
from ostinato.errors import EngineStoppedError, OstinatoError
from tests.engine import harness
from tests.engine.harness import Engine


@dataclass
class Count:
    """A meter that remembers."""

    begun: int = 0
    ends: list[RequestEnd] = field(default_factory=list)

    def begin(self) -> None:
        self.begun += 1

    def end(self, end: RequestEnd) -> None:
        self.ends.append(end)

    @property
    def only(self) -> RequestEnd:
        assert self.begun == len(self.ends) == 1
        return self.ends[0]


def delta(index: int, tokens: int, reason: FinishReason | None = None) -> OutputDelta:
    return OutputDelta("r", index, "", (1,), (), reason, None, None, tokens)


def test_answers_add_up_and_the_worst_end_counts() -> None:
    meter = Count()
    metering = Metering(meter)
    with metering.beginning():
        pass
    metering.add(delta(0, 1))
    metering.add(delta(1, 1, FinishReason.LENGTH))
    metering.add(delta(0, 2, FinishReason.STOP))
    metering.end()
    metering.end()
    assert meter.only == RequestEnd(None, 3, FinishReason.LENGTH)


def test_what_could_not_be_handed_over_ends_at_once() -> None:
    meter = Count()
    metering = Metering(meter)
    with pytest.raises(ZeroDivisionError), metering.beginning():
        raise ZeroDivisionError
    assert meter.only == RequestEnd()


def served(engine: Engine) -> AsyncEngine:
    return AsyncEngine(engine.core, OstinatoConfig())


def request(name: str, prompt: list[int], **params: Any) -> EngineRequest:
    return harness.request(name, prompt, **{"max_tokens": 6, "ignore_eos": True, **params})


async def take(engine: AsyncEngine, asked: EngineRequest, meter: Count, leave_after: int) -> None:
    """Take so many deltas, then go."""
    stream = cast(AsyncGenerator[OutputDelta, None], engine.generate(asked, meter))
    async with aclosing(stream):
        taken = 0
        async for _ in stream:
            taken += 1
            if taken == leave_after:
                return


def assert_adds_up(engine: AsyncEngine, meters: list[Count]) -> None:
    stats = engine.stats()
    ends = [meter.only for meter in meters]
    reports = [end.report for end in ends if end.report is not None]
    assert sum(report.prompt_tokens for report in reports) == stats.prompt_tokens_total
    assert sum(report.cached_tokens for report in reports) == stats.cached_tokens_total
    assert sum(end.num_output_tokens for end in ends) == stats.generated_tokens_total


@pytest.mark.parametrize("seed", range(4))
def test_the_sum_over_meters_is_what_the_engine_counts(seed: int) -> None:
    """A pool for a few, so that many are preempted; half of the callers leave early."""
    rng = random.Random(seed)
    parts = Engine(num_blocks=24, max_num_seqs=24)
    engine = served(parts)
    meters: list[Count] = []

    async def ask(number: int) -> None:
        meter = Count()
        meters.append(meter)
        prompt = [rng.randrange(3)] * rng.randrange(1, 7) + [number % 60]
        leave_after = rng.choice([1, 5, 1000, 1000])
        asked = request(f"r{number}", prompt, n=rng.choice([1, 1, 3]), max_tokens=20)
        if rng.random() < 0.2:  # gone before it was ever admitted, or nearly
            task = asyncio.create_task(take(engine, asked, meter, 1000))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            return
        await take(engine, asked, meter, leave_after)

    async def together() -> None:
        await asyncio.gather(*(ask(number) for number in range(40)))

    engine.start()
    asyncio.run(together())
    engine.stop()
    assert len(meters) == 40
    assert engine.stats().preemptions_total > 0
    assert engine.stats().requests_finished_total[FinishReason.ABORT] > 0
    parts.assert_idle()
    assert_adds_up(engine, meters)


def test_a_stop_ends_every_meter_with_what_was_counted() -> None:
    engine = served(Engine(num_blocks=400))
    meters = [Count() for _ in range(5)]

    async def stop_in_the_middle() -> None:
        asked = [request(f"r{i}", [i, 1, 2], max_tokens=200) for i in range(5)]
        tasks = [
            asyncio.create_task(take(engine, one, meter, 10_000))
            for one, meter in zip(asked, meters, strict=True)
        ]
        while engine.stats().generated_tokens_total < 20:
            await asyncio.sleep(0)
        await asyncio.to_thread(engine.stop)
        await asyncio.gather(*tasks)

    engine.start()
    asyncio.run(stop_in_the_middle())
    assert_adds_up(engine, meters)
    assert {meter.only.finish_reason for meter in meters} == {FinishReason.ABORT}


def test_a_request_that_is_refused_or_comes_too_late_ends_with_nothing() -> None:
    engine = served(Engine())
    twin, late = Count(), Count()

    async def ask() -> None:
        first = cast(
            AsyncGenerator[OutputDelta, None],
            engine.generate(request("same", [1, 2], max_tokens=100)),
        )
        async with aclosing(first):
            await anext(first)
            with pytest.raises(OstinatoError, match="in use"):
                await take(engine, request("same", [1, 2]), twin, 1)
        await asyncio.to_thread(engine.stop)
        with pytest.raises(EngineStoppedError):
            await take(engine, request("late", [1, 2]), late, 1)

    engine.start()
    asyncio.run(ask())
    assert twin.only == late.only == RequestEnd()


def test_a_request_whose_computation_fails_keeps_its_prompt_and_what_was_generated() -> None:
    parts = Engine()
    engine = served(parts)
    meter, other = Count(), Count()
    steps = 0

    def fail_from_the_third_step_on(scheduled: object) -> None:
        nonlocal steps
        steps += 1
        if steps >= 3:
            raise FloatingPointError("a kernel failed")

    parts.spy.before = fail_from_the_third_step_on

    async def ask() -> None:
        with pytest.raises(OstinatoError, match="a kernel failed"):
            await take(engine, request("r", [1, 2, 3]), meter, 100)
        with pytest.raises(OstinatoError, match="a kernel failed"):
            await take(engine, request("s", [9, 8]), other, 100)

    engine.start()
    asyncio.run(ask())
    engine.stop()
    assert_adds_up(engine, [meter, other])
    assert meter.only.finish_reason is FinishReason.ERROR
    assert meter.only.num_output_tokens == 2
    assert other.only.report is not None
    assert other.only.num_output_tokens == 0
