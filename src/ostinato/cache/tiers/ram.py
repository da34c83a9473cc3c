"""RamTier: blocks in one bounded region of memory, whose pages are committed as they are first used.

Bytes are copied by NumPy, which lets other threads run meanwhile. Nothing here can fail but by a bug, so there
is no checksum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ostinato.cache.eviction.base import EvictionPolicy
from ostinato.cache.retention import TenantBudgets
from ostinato.cache.tiers.base import LoadJob, StoreJob
from ostinato.cache.tiers.entry import Removal, TierEntry, must_wipe
from ostinato.cache.tiers.slotted import SlottedTier
from ostinato.cache.types import Tier
from ostinato.clock import Clock
from ostinato.errors import ConfigError

Bytes = npt.NDArray[np.uint8]


class RamTier(SlottedTier):
    """See `SlottedTier` for the arguments; a block takes its content and nothing else.

    Raises:
        ConfigError: if not even one block fits, or the system does not give that much address space.
    """

    def __init__(
        self,
        block_bytes: int,
        capacity_bytes: int,
        policy: EvictionPolicy[TierEntry],
        budgets: TenantBudgets,
        clock: Clock,
    ) -> None:
        super().__init__(Tier.RAM, block_bytes, block_bytes, capacity_bytes, policy, budgets, clock)
        slots = capacity_bytes // block_bytes
        try:
            # Address space: the system gives pages when they are written to, huge ones where it can. From NumPy
            # as the device's blocks are, so that both begin at the same offset within a page. Otherwise copies
            # between them may run at half speed, each load waiting for a store 4096 bytes away.
            arena = np.empty((slots, block_bytes), dtype=np.uint8)
        except MemoryError as error:
            raise ConfigError(
                f"the RAM tier cannot have {capacity_bytes} bytes: give it fewer"
            ) from error
        self._blocks: Bytes | None = arena

    def write(self, job: StoreJob, at: int, data: memoryview) -> bool:
        np.copyto(self._block(job.places[at]), np.frombuffer(data, dtype=np.uint8))
        return True

    def read(self, job: LoadJob, at: int, out: memoryview) -> bool:
        np.copyto(np.frombuffer(out, dtype=np.uint8), self._block(job.places[at]))
        return True

    def _freed(self, entry: TierEntry, removal: Removal) -> None:
        if must_wipe(entry.retention, removal):
            self._block(entry.slot).fill(0)

    def _block(self, slot: int) -> Bytes:
        assert self._blocks is not None, "the tier is closed"
        block: Bytes = self._blocks[slot]
        return block

    def close(self) -> None:
        self._blocks = None
