"""Guards background copies: nothing behind a gap counts, a cancelled or failing job ends, no thread dies of a
bug, a store never keeps a load waiting, and a stop leaves nothing running.
"""

from __future__ import annotations

import threading

import pytest

from ostinato.cache.tiers.transfer import (
    TASK_BYTES,
    Lane,
    ThreadedTransfers,
    TransferJob,
    Urgency,
)
from ostinato.clock import ManualClock

SECONDS = 20.0


def transfers(threads: int = 2) -> ThreadedTransfers:
    return ThreadedTransfers(threads, ManualClock())


def finish(pool: ThreadedTransfers, *jobs: TransferJob) -> None:
    finished: list[TransferJob] = []
    while len(finished) < len(jobs):
        pool.wait(SECONDS)
        ended = pool.poll()
        assert ended, "nothing has ended in time"
        finished += ended
    assert set(finished) == set(jobs)


def job(
    count: int, fails_at: set[int] | None = None, urgency: Urgency = Urgency.LOAD
) -> TransferJob:
    return TransferJob(count, lambda at: at not in (fails_at or ()), TASK_BYTES // 3, urgency)


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 100])
def test_every_block_is_moved_once(count: int, threads: int) -> None:
    moved: list[int] = []
    one = TransferJob(count, lambda at: moved.append(at) is None, TASK_BYTES // 3, Urgency.STORE)
    pool = transfers(threads)
    pool.submit(one)
    finish(pool, one)
    assert sorted(moved) == list(range(count))
    assert one.num_moved == count
    pool.close(0.0)


@pytest.mark.parametrize("fails_at", [{0}, {1}, {5, 50}, {99}])
def test_what_lies_behind_a_failure_does_not_count(fails_at: set[int]) -> None:
    one, pool = job(100, fails_at), transfers(4)
    pool.submit(one)
    finish(pool, one)
    assert one.num_moved == min(fails_at)
    pool.close(0.0)


def test_an_exception_is_a_failure_and_the_thread_lives_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(at: int) -> bool:
        raise RuntimeError("a bug")

    pool = transfers()
    for _ in range(4):
        one = TransferJob(2, broken, 8, Urgency.LOAD)
        pool.submit(one)
        finish(pool, one)
        assert one.num_moved == 0
    assert "failed unexpectedly" in caplog.text
    pool.close(0.0)


def test_a_cancelled_job_ends_with_what_it_has_moved() -> None:
    one: TransferJob

    def move(at: int) -> bool:
        if at == 4:
            one.cancel()
        return True

    one = TransferJob(1000, move, TASK_BYTES, Urgency.LOAD)
    pool = transfers()
    pool.submit(one)
    finish(pool, one)
    assert 4 <= one.num_moved < 1000
    pool.close(0.0)


def test_stores_that_hang_do_not_keep_a_load_waiting() -> None:
    gate = threading.Event()
    stores = [
        TransferJob(1, lambda at: gate.wait(SECONDS), TASK_BYTES, Urgency.STORE) for _ in range(8)
    ]
    pool = transfers(3)
    for one in stores:
        pool.submit(one)
    load = job(3)
    pool.submit(load)
    finish(pool, load)
    gate.set()
    finish(pool, *stores)
    pool.close(0.0)


def test_a_server_that_hangs_keeps_nobody_waiting_who_wants_something_from_here() -> None:
    gate, entered = threading.Event(), threading.Event()

    def hang(at: int) -> bool:
        entered.set()
        return gate.wait(SECONDS)

    urgencies = (Urgency.LOAD, Urgency.STORE)
    hanging = [TransferJob(1, hang, TASK_BYTES, urgency, Lane.REMOTE) for urgency in urgencies]
    pool = transfers()
    for one in hanging:
        pool.submit(one)
    assert entered.wait(SECONDS)
    local = [job(3, urgency=urgency) for urgency in urgencies]
    for one in local:
        pool.submit(one)
    finish(pool, *local)
    gate.set()
    finish(pool, *hanging)
    pool.close(0.0)


def test_a_job_that_is_cancelled_while_another_hangs_before_it_has_finished_at_once() -> None:
    gate, entered = threading.Event(), threading.Event()

    def hang(at: int) -> bool:
        entered.set()
        return gate.wait(SECONDS)

    running, queued = TransferJob(2, hang, TASK_BYTES, Urgency.LOAD), job(3)
    pool = transfers()
    pool.submit(running)
    assert entered.wait(SECONDS)
    pool.submit(queued)
    pool.cancel(queued)
    pool.cancel(running)
    assert list(pool.poll()) == [queued]
    gate.set()
    finish(pool, running)
    assert (running.num_moved, running.num_done, queued.num_moved) == (1, 1, 0)
    pool.close(0.0)


def test_each_task_is_announced_before_its_blocks_are_moved() -> None:
    told: list[object] = []
    one = TransferJob(
        5,
        lambda at: told.append(at) is None,
        TASK_BYTES // 3,
        Urgency.LOAD,
        begin=lambda task: told.append(task),
    )
    pool = transfers()
    pool.submit(one)
    finish(pool, one)
    assert told == [range(3), 0, 1, 2, range(3, 5), 3, 4]
    assert one.num_done == 5
    pool.close(0.0)


def test_whoever_sleeps_is_told_of_every_end() -> None:
    told = threading.Semaphore(0)
    pool = transfers()
    pool.notify = lambda: told.release()
    pool.submit(job(5))
    pool.submit(job(5, {0}))
    assert told.acquire(timeout=SECONDS)
    assert told.acquire(timeout=SECONDS)
    assert len(pool.poll()) == 2
    pool.close(0.0)


def test_a_stop_lets_jobs_end_if_there_is_time() -> None:
    pool, jobs = transfers(), [job(50, urgency=Urgency.STORE) for _ in range(20)]
    for one in jobs:
        pool.submit(one)
    pool.close(SECONDS)
    assert len(pool.poll()) == 20
    assert all(one.num_moved == 50 for one in jobs)


def test_a_stop_without_time_cancels_and_leaves_no_thread() -> None:
    entered = threading.Event()
    pool = transfers()
    running = TransferJob(10_000, lambda at: entered.set() is None, TASK_BYTES, Urgency.STORE)
    pool.submit(running)
    assert entered.wait(SECONDS)
    queued = [job(10, urgency=Urgency.STORE) for _ in range(5)]
    for one in queued:
        pool.submit(one)
    pool.close(0.0)
    assert set(pool.poll()) == {running, *queued}
    assert not [t for t in threading.enumerate() if t.name.startswith("ostinato-transfer")]
    late = job(3)
    pool.submit(late)
    assert list(pool.poll()) == [late]
    assert late.num_moved == 0
    pool.close(0.0)


def test_without_a_job_there_is_no_thread() -> None:
    before = threading.active_count()
    pool = transfers()
    pool.wait(SECONDS)
    assert threading.active_count() == before
    pool.close(0.0)
