"""Tiers below the device whose blocks hold nothing: bookkeeping, eviction and write policy are the real ones.

A block counts one byte, so that a tier's bound is its number of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.cache.eviction import EvictionPolicy
from ostinato.cache.retention import TenantBudgets
from ostinato.cache.tiers.base import LoadJob, StoreJob
from ostinato.cache.tiers.carrier import BlockCarrier
from ostinato.cache.tiers.entry import TierEntry
from ostinato.cache.tiers.slotted import SlottedTier
from ostinato.cache.tiers.transfer import TransferJob, Transfers
from ostinato.cache.types import BlockId, Tier
from ostinato.clock import Clock

BLOCK_BYTES = 1


class NullTier(SlottedTier):
    """A level of any kind.

    Args:
        tier: which.
        num_blocks: its bound.
        policy: ranks what may go.
        clock: of promises.
        budgets: of tenants, in blocks.
    """

    def __init__(
        self,
        tier: Tier,
        num_blocks: int,
        policy: EvictionPolicy[TierEntry],
        clock: Clock,
        budgets: TenantBudgets | None = None,
    ) -> None:
        budgets = TenantBudgets() if budgets is None else budgets
        super().__init__(tier, BLOCK_BYTES, BLOCK_BYTES, num_blocks, policy, budgets, clock)

    def write(self, job: StoreJob, at: int, data: memoryview) -> bool:
        return True

    def read(self, job: LoadJob, at: int, out: memoryview) -> bool:
        return True

    def close(self) -> None:
        return None


class NullCarrier(BlockCarrier):
    """The device's side of a copy of nothing."""

    block_bytes = BLOCK_BYTES

    def __init__(self) -> None:
        self._nothing = memoryview(bytearray(BLOCK_BYTES))

    def source(self, block_id: BlockId) -> memoryview:
        return self._nothing

    def target(self, block_id: BlockId) -> memoryview:
        return self._nothing

    def arrived(self, block_id: BlockId) -> None:
        return None


class InstantTransfers(Transfers):
    """A job has ended when `submit` returns, in the thread that called it."""

    def __init__(self) -> None:
        super().__init__()
        self._finished: list[TransferJob] = []

    def submit(self, job: TransferJob) -> None:
        while (task := job.take_task(0.0)) is not None:
            job.run_task(task)
            job.end_task(task)
        job.has_ended(0.0)
        self._finished.append(job)

    def poll(self) -> Sequence[TransferJob]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, timeout: float) -> None:
        return None

    def close(self, timeout: float) -> None:
        return None
