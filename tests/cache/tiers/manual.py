"""Transfers that run when a test says so, in the test's own thread; and a tier whose bytes fail on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.cache.eviction import DEFAULT_POLICY, make_policy
from ostinato.cache.retention import TenantBudgets
from ostinato.cache.tiers.base import LoadJob, StoreJob
from ostinato.cache.tiers.ram import RamTier
from ostinato.cache.tiers.transfer import TransferJob, Transfers
from ostinato.cache.types import Tier
from ostinato.clock import Clock


class ManualTransfers(Transfers):
    """Nothing moves before `run`, or before somebody waits."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[TransferJob] = []
        self._finished: list[TransferJob] = []

    def submit(self, job: TransferJob) -> None:
        self.queue.append(job)

    def poll(self) -> Sequence[TransferJob]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, timeout: float) -> None:
        if not self._finished:
            self.run()

    def close(self, timeout: float) -> None:
        if not timeout:
            for job in self.queue:
                job.cancel()
        self.run()

    def run(self, num_jobs: int | None = None) -> None:
        """Run the most urgent jobs to their end."""
        self.queue.sort(key=lambda job: job.urgency)
        for job in self.queue[:num_jobs]:
            while (task := job.take_task(0.0)) is not None:
                job.run_task(task)
                job.end_task(task)
            assert job.has_ended(0.0)
            self._finished.append(job)
            self.notify()
        del self.queue[:num_jobs]


class FaultyTier(RamTier):
    """A RAM tier of any level that loses what it is told to lose.

    Attributes:
        fails_read: asked before each read, with its position in the job.
        fails_write: the same for writes.
    """

    def __init__(
        self,
        tier: Tier,
        block_bytes: int,
        num_blocks: int,
        clock: Clock,
        policy: str = DEFAULT_POLICY,
    ) -> None:
        order = make_policy(policy)
        super().__init__(block_bytes, num_blocks * block_bytes, order, TenantBudgets(), clock)
        self.tier = tier
        self.fails_read: Callable[[int], bool] = lambda at: False
        self.fails_write: Callable[[int], bool] = lambda at: False

    def write(self, job: StoreJob, at: int, data: memoryview) -> bool:
        if self.fails_write(at):
            job.failed.add(at)
            return False
        return super().write(job, at, data)

    def read(self, job: LoadJob, at: int, out: memoryview) -> bool:
        if self.fails_read(at):
            out[:] = bytes([0xA5]) * len(out)
            job.failed.add(at)
            return False
        return super().read(job, at, out)
