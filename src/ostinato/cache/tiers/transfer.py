"""Moving blocks in the background: jobs, the threads that run them, and the queue that the engine polls.

    engine thread                                transfer threads (started with their first job)
    submit(job) ──► queued, by lane and urgency ► run: some blocks at a time, loads by several, stores by one
    poll()      ◄── finished ◄───────────────────  the last one ends the job  ──► notify()

A job moves blocks 0 … n − 1 and ends with the number of those that were moved without a gap: a block that
fails ends it, and what lies behind is not tried any more. Failures are results, never exceptions. A job that
was cancelled stops at the next block.

What goes over a network has a lane, and so threads, of its own: a server that hangs keeps nobody waiting who
wants something from RAM or disk.

Only the engine thread submits, polls and cancels; whoever moves the bytes touches no bookkeeping.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum

from ostinato.clock import Clock

_log = logging.getLogger(__name__)

THREAD_NAME = "ostinato-transfer"
TASK_BYTES = 2 * 2**20
"""A job is cut into tasks of about this many bytes: long enough that the hand-over costs nothing, and so short
that the threads of a job stay close to each other, which keeps a disk's reads nearly sequential."""

REMOTE_TASK_BYTES = 8 * 2**20
"""The same over a network, where each task may cost a round trip."""


class Lane(Enum):
    """Which threads move the bytes."""

    LOCAL = "local"
    """Between the device, RAM and disk."""
    REMOTE = "remote"
    """To and from a server."""


class Urgency(IntEnum):
    """Who goes first."""

    LOAD = 0
    """A request waits for it."""
    PREFETCH = 1
    """A request that is still in the queue will."""
    STORE = 2
    """Nobody waits for it."""


class TransferJob:
    """Blocks to move, in order.

    Args:
        num_blocks: how many.
        move: moves block `at`; False if that failed. Called from several threads at once, in ascending order
            within a task.
        block_bytes: length of a block.
        urgency: against other jobs of the lane.
        lane: which threads run it.
        begin: called with the blocks of each task before they are moved, by the thread that will.

    Attributes:
        num_done: blocks of the tasks that have ended; how far it has come while it runs.
        num_moved: leading blocks that were moved; final once the job has finished.
        seconds: from the start of its first block to the end of its last.
        is_cancelled: `cancel` was called.
    """

    __slots__ = (
        "_begin",
        "_first_failure",
        "_has_ended",
        "_lock",
        "_move",
        "_next",
        "_running",
        "_started",
        "block_bytes",
        "is_cancelled",
        "lane",
        "num_blocks",
        "num_done",
        "num_moved",
        "seconds",
        "urgency",
    )

    def __init__(
        self,
        num_blocks: int,
        move: Callable[[int], bool],
        block_bytes: int,
        urgency: Urgency,
        lane: Lane = Lane.LOCAL,
        begin: Callable[[range], None] | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = block_bytes
        self.urgency = urgency
        self.lane = lane
        self.num_done = 0
        self.num_moved = 0
        self.seconds = 0.0
        self.is_cancelled = False
        self._move = move
        self._begin = begin
        self._lock = threading.Lock()
        self._next = 0
        self._running = 0
        self._started: float | None = None
        self._first_failure = num_blocks
        self._has_ended = False

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def cancel(self) -> None:
        """Move nothing more; the job still finishes, with what was moved."""
        self.is_cancelled = True

    def take_task(self, now: float) -> range | None:
        """The next blocks to move, or None if no more are to be tried. The caller runs, then ends the task."""
        with self._lock:
            if self._is_exhausted():
                return None
            if self._started is None:
                self._started = now
            start = self._next
            task_bytes = TASK_BYTES if self.lane is Lane.LOCAL else REMOTE_TASK_BYTES
            self._next = min(start + max(1, task_bytes // self.block_bytes), self.num_blocks)
            self._running += 1
            return range(start, self._next)

    def run_task(self, task: range) -> None:
        """Move the blocks of `task`, up to the first failure."""
        if self._begin is not None and not self.is_cancelled:
            self._begin(task)
        for at in task:
            if self.is_cancelled or at >= self._first_failure or not self._try(at):
                with self._lock:
                    self._first_failure = min(self._first_failure, at)
                return

    def end_task(self, task: range) -> None:
        """`task`, from `take_task`, has been run."""
        with self._lock:
            self._running -= 1
            self.num_done += len(range(task.start, min(task.stop, self._first_failure)))

    def has_ended(self, now: float) -> bool:
        """True, once, when nothing runs and nothing more is to be tried: `num_moved` is final."""
        with self._lock:
            if self._has_ended or self._running or not self._is_exhausted():
                return False
            self._has_ended = True
            self.num_moved = min(self._first_failure, self._next)
            self.seconds = 0.0 if self._started is None else now - self._started
            return True

    def _is_exhausted(self) -> bool:
        tried_all = min(self._next, self.num_blocks) == self.num_blocks
        return tried_all or self.is_cancelled or self._first_failure < self.num_blocks

    def _try(self, at: int) -> bool:
        try:
            return self._move(at)
        except (
            Exception
        ):  # a bug of a tier must not take a thread, and all later transfers, with it
            _log.exception("moving block %d of %d failed unexpectedly", at, self.num_blocks)
            return False


class Transfers(ABC):
    """Runs jobs. All methods are the engine thread's.

    Attributes:
        notify: called, from any thread, whenever a job has finished.
    """

    def __init__(self) -> None:
        self.notify: Callable[[], None] = lambda: None

    @abstractmethod
    def submit(self, job: TransferJob) -> None:
        """Run `job` in the background; `poll` gives it back when it has finished, whatever came of it."""

    @abstractmethod
    def poll(self) -> Sequence[TransferJob]:
        """Jobs that have finished since the last call."""

    def cancel(self, job: TransferJob) -> None:
        """`job.cancel()`; if nothing of it is being moved, it has finished now."""
        job.cancel()

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Sleep until `poll` has something to give or nothing is under way, at most `timeout` seconds."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Let what was submitted end for `timeout` seconds, cancel the rest, wait for the blocks that are being
        moved, and take nothing more. `poll` then gives the last jobs. Idempotent."""


class ThreadedTransfers(Transfers):
    """A few daemon threads.

    Of each lane one takes the stores, and nothing else, at the lowest priority that the system has: nobody
    waits for a store, and one that took a core from the kernels would double the time to a first token.

    Args:
        num_threads: of the local lane, at least two; the remote one has two.
        clock: measures the jobs.
    """

    def __init__(self, num_threads: int, clock: Clock) -> None:
        super().__init__()
        self._num_threads = max(num_threads, 2)
        self._clock = clock
        self._changed = threading.Condition()
        self._queues: dict[tuple[Lane, Urgency], deque[TransferJob]] = {
            (lane, urgency): deque() for lane in Lane for urgency in Urgency
        }
        self._finished: deque[TransferJob] = deque()
        self._unfinished: set[TransferJob] = set()
        self._threads: list[threading.Thread] = []
        self._has_loaders: set[Lane] = set()
        self._has_storer: set[Lane] = set()
        self._is_closed = False

    def submit(self, job: TransferJob) -> None:
        with self._changed:
            self._unfinished.add(job)
            if self._is_closed:
                job.cancel()
            queue = self._queues[job.lane, job.urgency]
            queue.append(job)
            if self._is_closed or not job.num_blocks:
                self._drop_exhausted(queue)
            elif job.urgency is Urgency.STORE:
                self._start_storer(job.lane)
            else:
                self._start_loaders(job.lane)
            self._changed.notify_all()

    def cancel(self, job: TransferJob) -> None:
        with self._changed:
            job.cancel()
            self._drop_exhausted(self._queues[job.lane, job.urgency])

    def poll(self) -> Sequence[TransferJob]:
        if not self._finished:  # the hot path: no lock
            return ()
        with self._changed:
            finished, self._finished = self._finished, deque()
        return finished

    def wait(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._finished or not self._unfinished, timeout)

    def close(self, timeout: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._unfinished, timeout)
            self._is_closed = True
            for job in self._unfinished:
                job.cancel()
            for queue in self._queues.values():
                self._drop_exhausted(queue)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start_loaders(self, lane: Lane) -> None:
        if lane not in self._has_loaders:
            self._has_loaders.add(lane)
            for _ in range(self._num_threads - 1 if lane is Lane.LOCAL else 1):
                self._start(lambda: self._run(lane, (Urgency.LOAD, Urgency.PREFETCH)))

    def _start_storer(self, lane: Lane) -> None:
        if lane not in self._has_storer:
            self._has_storer.add(lane)
            self._start(lambda: self._run_stores(lane))

    def _start(self, target: Callable[[], None]) -> None:
        name = f"{THREAD_NAME}-{len(self._threads)}"
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run_stores(self, lane: Lane) -> None:
        _yield_to_others()
        self._run(lane, (Urgency.STORE,))

    def _run(self, lane: Lane, urgencies: tuple[Urgency, ...]) -> None:
        queues = [self._queues[lane, urgency] for urgency in urgencies]
        while (taken := self._take(queues)) is not None:
            job, task = taken
            job.run_task(task)
            job.end_task(task)
            with self._changed:
                self._hand_over_if_ended(job)

    def _take(self, queues: Sequence[deque[TransferJob]]) -> tuple[TransferJob, range] | None:
        """The most urgent task; sleeps while there is none. None when closed."""
        with self._changed:
            while True:
                for queue in queues:
                    while queue:
                        task = queue[0].take_task(self._clock.monotonic())
                        if task is not None:
                            return queue[0], task
                        self._hand_over_if_ended(queue.popleft())
                if self._is_closed:
                    return None
                self._changed.wait()

    def _drop_exhausted(self, queue: deque[TransferJob]) -> None:
        """Take out the jobs of which nothing more is to be tried. The lock is held."""
        for job in list(queue):
            if job.is_cancelled or not job.num_blocks:
                queue.remove(job)
                self._hand_over_if_ended(job)

    def _hand_over_if_ended(self, job: TransferJob) -> None:
        """Give `job` to `poll` if its last task has been run. The lock is held."""
        if job.has_ended(self._clock.monotonic()):
            self._unfinished.discard(job)
            self._finished.append(job)
            self._changed.notify_all()
            self.notify()


def _yield_to_others() -> None:
    """Give the calling thread the lowest priority, where threads have one of their own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
