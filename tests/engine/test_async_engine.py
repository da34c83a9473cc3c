"""Guards the bridge between event loops and the engine's thread: nothing is lost, leaked or left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.engine import async_engine
from ostinato.engine.async_engine import THREAD_NAME, AsyncEngine
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.tier_care import MOST_SECONDS_UNTENDED
from ostinato.errors import (
    EngineOverloadedError,
    EngineStoppedError,
    InvalidRequestError,
    RequestFailedError,
)
from tests.engine.harness import CountingCare, Engine, expected_tokens, request, tokens

TIMEOUT = 60.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert all(thread.name != THREAD_NAME for thread in threading.enumerate())


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[AsyncEngine]:
    served = AsyncEngine(engine.core, OstinatoConfig())
    served.start()
    try:
        yield served
    finally:
        await asyncio.to_thread(served.stop)
        assert served._waiters == {}


def play(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scene, TIMEOUT))


async def answer(engine: AsyncEngine, name: str, prompt: list[int], **options: Any) -> list[int]:
    deltas = [delta async for delta in engine.generate(request(name, prompt, **options))]
    return [token for delta in deltas for token in delta.token_ids]


async def idle(engine: AsyncEngine, harness: Engine) -> None:
    """Return when an abort that was sent before has been obeyed: commands are taken in order."""
    await answer(engine, "after", [1], max_tokens=1)
    while harness.scheduler.has_work:
        await asyncio.sleep(0)


def test_many_callers_get_their_own_tokens() -> None:
    async def scene() -> None:
        harness = Engine(num_blocks=40)
        prompts = {f"r{seed}": tokens(5 + seed % 7, seed) for seed in range(30)}
        async with serving(harness) as engine:
            got = await asyncio.gather(
                *(
                    answer(engine, name, prompt, max_tokens=12, ignore_eos=True)
                    for name, prompt in prompts.items()
                )
            )
        for name, tokens_got in zip(prompts, got, strict=True):
            assert tokens_got == expected_tokens(prompts[name], 12, ignore_eos=True)
        harness.assert_idle()

    play(scene())


def test_all_n_answers_come_through_one_iterator() -> None:
    async def scene() -> None:
        async with serving(Engine()) as engine:
            ends = [
                delta.index
                async for delta in engine.generate(request("a", tokens(6), n=3, max_tokens=4))
                if delta.finish_reason
            ]
        assert sorted(ends) == [0, 1, 2]

    play(scene())


def test_closing_the_iterator_frees_the_blocks() -> None:
    async def scene() -> None:
        harness = Engine(num_blocks=300, max_model_len=1200)
        async with serving(harness) as engine:
            stream = engine.generate(request("a", tokens(9), max_tokens=1000, ignore_eos=True))
            async with aclosing(stream):
                first = await anext(stream)
                assert first.finish_reason is None
            await idle(engine, harness)
            stats = engine.stats()
        assert stats.requests_finished_total[FinishReason.ABORT] == 1
        assert stats.generated_tokens_total < 1000
        harness.assert_idle()

    play(scene())


def test_cancelling_who_waits_aborts_too() -> None:
    async def scene() -> None:
        harness = Engine(num_blocks=300, max_model_len=1200)
        async with serving(harness) as engine:
            tasks = [
                asyncio.create_task(
                    answer(engine, f"r{seed}", tokens(9, seed), max_tokens=1000, ignore_eos=True)
                )
                for seed in range(6)
            ]
            while engine.stats().running < 6:
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await idle(engine, harness)
            assert engine.stats().requests_finished_total[FinishReason.ABORT] == 6
        harness.assert_idle()

    play(scene())


def test_an_iterator_that_is_never_started_costs_nothing() -> None:
    async def scene() -> None:
        async with serving(Engine()) as engine:
            stream = engine.generate(request("a", tokens(4), max_tokens=4))
            await stream.aclose()
            assert await answer(engine, "a", tokens(4), max_tokens=1)

    play(scene())


def test_what_cannot_be_served_is_refused_before_it_is_queued() -> None:
    async def scene() -> None:
        harness = Engine()
        async with serving(harness) as engine:
            with pytest.raises(InvalidRequestError):
                engine.validate(request("a", []))
            with pytest.raises(InvalidRequestError):
                await answer(engine, "a", [])
            assert await answer(engine, "b", [1], max_tokens=1)
        assert harness.core.stats().prompt_tokens_total == 1

    play(scene())


def test_what_the_engine_refuses_later_reaches_the_caller_and_nobody_else() -> None:
    async def scene() -> None:
        harness = Engine(num_blocks=300, max_model_len=1200)
        async with serving(harness) as engine:
            stream = engine.generate(request("a", tokens(4), max_tokens=1000, ignore_eos=True))
            await anext(stream)
            with pytest.raises(InvalidRequestError, match="in use"):
                await answer(engine, "a", tokens(4), max_tokens=1)
            assert isinstance(await anext(stream), OutputDelta)
            await stream.aclose()

    play(scene())


def test_too_many_waiting_requests_are_told_so() -> None:
    async def scene() -> None:
        harness = Engine(max_waiting=1, max_num_seqs=1, num_blocks=300, max_model_len=1200)
        gate = threading.Event()
        harness.spy.before = lambda scheduled: gate.wait(TIMEOUT)
        async with serving(harness) as engine:
            tasks = [
                asyncio.create_task(answer(engine, f"r{seed}", tokens(4, seed), max_tokens=1))
                for seed in range(3)
            ]
            await asyncio.sleep(0)
            gate.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [one for one in results if isinstance(one, EngineOverloadedError)]
        assert refused
        assert len(refused) < 3

    play(scene())


def test_a_failed_step_reaches_its_requests_and_the_engine_goes_on() -> None:
    async def scene() -> None:
        harness = Engine()

        def explode_once(scheduled: object) -> None:
            harness.spy.before = lambda scheduled: None
            raise FloatingPointError("tripped")

        harness.spy.before = explode_once
        async with serving(harness) as engine:
            with pytest.raises(RequestFailedError, match="tripped"):
                await answer(engine, "a", tokens(4), max_tokens=4)
            assert len(await answer(engine, "b", tokens(4), max_tokens=2, ignore_eos=True)) == 2

    play(scene())


def test_stopping_ends_running_requests_with_abort() -> None:
    async def scene() -> None:
        harness = Engine(num_blocks=300, max_model_len=1200)
        async with serving(harness) as engine:
            stream = engine.generate(request("a", tokens(4), max_tokens=1000, ignore_eos=True))
            await anext(stream)
            await asyncio.to_thread(engine.stop)
            rest = [delta async for delta in stream]
            assert rest[-1].finish_reason is FinishReason.ABORT
            with pytest.raises(EngineStoppedError, match="stopped"):
                await answer(engine, "b", [1])
            engine.stop()  # a second time does nothing
        harness.assert_idle()

    play(scene())


def test_tiers_are_seen_to_between_steps_and_once_there_is_nothing_to_do() -> None:
    async def scene() -> None:
        clock = ManualClock()
        harness, care = Engine(clock=clock), CountingCare(clock)
        harness.core.tiers = care
        async with serving(harness) as engine:
            await answer(engine, "a", tokens(9), max_tokens=8, ignore_eos=True)
            for _ in range(8):  # seven times between steps, and when the engine rests
                assert await asyncio.to_thread(care.tended.acquire, timeout=TIMEOUT)

    play(scene())


def test_who_asks_again_at_once_does_not_wait_for_the_tiers_which_are_seen_to_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_engine, "REST_SECONDS", TIMEOUT)

    async def scene() -> None:
        clock = ManualClock()
        harness, care = Engine(clock=clock), CountingCare(clock)
        harness.core.tiers = care
        async with serving(harness) as engine:
            for number in range(40):
                await answer(engine, f"{number}", tokens(9), max_tokens=1)
            assert care.times == 0
            clock.advance(MOST_SECONDS_UNTENDED)
            await answer(engine, "later", tokens(9), max_tokens=1)
            await answer(engine, "and again", tokens(9), max_tokens=1)
            assert care.times == 1

    play(scene())


def test_a_dying_engine_tells_everybody_why() -> None:
    async def scene() -> None:
        harness = Engine(num_blocks=300, max_model_len=1200)
        async with serving(harness) as engine:
            streams = [
                engine.generate(request(name, tokens(4), max_tokens=1000, ignore_eos=True))
                for name in ("a", "b")
            ]
            for stream in streams:
                await anext(stream)

            def bug() -> None:
                raise ZeroDivisionError("a bug in the scheduler")

            harness.scheduler.schedule = bug
            for stream in streams:
                with pytest.raises(EngineStoppedError, match="a bug in the scheduler") as caught:
                    async for _ in stream:
                        pass
                assert isinstance(caught.value.__cause__, ZeroDivisionError)
            with pytest.raises(EngineStoppedError, match="has died"):
                await answer(engine, "c", [1])

    play(scene())


def test_an_engine_that_is_not_started_refuses_and_starts_only_once() -> None:
    async def scene() -> None:
        engine = AsyncEngine(Engine().core, OstinatoConfig())
        engine.stop()
        with pytest.raises(EngineStoppedError, match="not started"):
            await answer(engine, "a", [1])
        engine.start()
        with pytest.raises(RuntimeError, match="only once"):
            engine.start()
        await asyncio.to_thread(engine.stop)

    play(scene())


def test_two_event_loops_share_one_engine() -> None:
    harness = Engine()
    engine = AsyncEngine(harness.core, OstinatoConfig())
    engine.start()
    results: dict[int, list[int]] = {}

    def client(seed: int) -> None:
        results[seed] = asyncio.run(
            answer(engine, f"r{seed}", tokens(6, seed), max_tokens=8, ignore_eos=True)
        )

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    engine.stop()
    for seed in range(2):
        assert results[seed] == expected_tokens(tokens(6, seed), 8, ignore_eos=True)


def test_requests_of_a_closed_event_loop_are_aborted() -> None:
    harness = Engine(num_blocks=300, max_model_len=1200)
    engine = AsyncEngine(harness.core, OstinatoConfig())
    engine.start()
    loop = asyncio.new_event_loop()
    stream = engine.generate(request("lost", tokens(4), max_tokens=1000, ignore_eos=True))
    loop.run_until_complete(anext(stream))
    loop.close()  # without closing the iterator
    assert asyncio.run(answer(engine, "b", tokens(4), max_tokens=2, ignore_eos=True))
    engine.stop()
    assert engine.stats().running == 0
    harness.assert_idle()
