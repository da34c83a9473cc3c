"""SlottedTier: the bookkeeping verbs of a tier whose blocks lie in a `TierDirectory`'s slots."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.cache.eviction.base import EvictionPolicy
from ostinato.cache.eviction.retaining import Retaining
from ostinato.cache.retention import Retention, TenantBudgets
from ostinato.cache.tiers.base import (
    KVTier,
    LoadJob,
    StoreJob,
    TierAnswer,
    TierBlock,
    TierStats,
)
from ostinato.cache.tiers.directory import TierDirectory
from ostinato.cache.tiers.entry import EntryState, Removal, TierEntry
from ostinato.cache.tiers.failures import TierFailures
from ostinato.cache.tiers.slots import SlotAllocator
from ostinato.cache.types import BlockHash, Tier
from ostinato.clock import Clock
from ostinato.errors import ConfigError


class SlottedTier(KVTier):
    """A tier but for how bytes are written and read.

    Args:
        tier: which level.
        block_bytes: content of a block.
        slot_bytes: what a block takes, content and bookkeeping together.
        capacity_bytes: bound.
        policy: ranks the blocks that nothing was promised to.
        budgets: of tenants, in bytes of this tier; owned by the tier from here on.
        clock: for hard deadlines.

    Raises:
        ConfigError: if not even one block fits.
    """

    def __init__(
        self,
        tier: Tier,
        block_bytes: int,
        slot_bytes: int,
        capacity_bytes: int,
        policy: EvictionPolicy[TierEntry],
        budgets: TenantBudgets,
        clock: Clock,
    ) -> None:
        if capacity_bytes < slot_bytes:
            raise ConfigError(
                f"the {tier} tier has {capacity_bytes} bytes, but one K/V block takes {slot_bytes}: "
                "give it more, or switch it off"
            )
        self.tier = tier
        self.block_bytes = block_bytes
        self.capacity_bytes = capacity_bytes
        self._failures = TierFailures(tier)
        self._loaded = 0
        self._clock = clock
        self._open_stores: dict[StoreJob, list[TierEntry]] = {}
        self._open_loads: dict[LoadJob, list[TierEntry]] = {}
        self._directory = TierDirectory(
            SlotAllocator(capacity_bytes // slot_bytes),
            slot_bytes,
            Retaining(policy, clock, budgets, slot_bytes, capacity_bytes),
            clock,
            self._removed,
            self._freed,
            self._prolonged,
        )

    def _removed(self, entry: TierEntry, removal: Removal) -> None:
        """Nobody finds `entry`, which was ready, any more. For tiers that must say so elsewhere."""

    def _freed(self, entry: TierEntry, removal: Removal) -> None:
        """Nobody moves bytes of `entry` any more; its slot is about to be free."""

    def _prolonged(self, entry: TierEntry) -> None:
        """What is promised to `entry` has changed."""

    @property
    def used_bytes(self) -> int:
        return self._directory.used_slots * self._directory.slot_bytes

    def lookup(self, key: BlockHash) -> TierAnswer:
        return self._directory.answer(key)

    def prepare_store(self, blocks: Sequence[TierBlock]) -> StoreJob | None:
        reserved = self._directory.reserve(blocks)
        if reserved is None:
            return None
        places = tuple(entry.slot for _, entry in reserved)
        job = StoreJob(tuple(block for block, _ in reserved), places)
        if reserved:
            self._open_stores[job] = [entry for _, entry in reserved]
        return job

    def complete_store(self, job: StoreJob, num_written: int) -> None:
        self._directory.commit(self._open_stores.pop(job, []), num_written)

    def prepare_load(self, keys: Sequence[BlockHash]) -> LoadJob:
        entries = self._directory.pin(keys)
        job = LoadJob(tuple(keys), tuple(entry.slot for entry in entries))
        self._open_loads[job] = entries
        return job

    def complete_load(self, job: LoadJob, num_read: int) -> None:
        self._loaded += num_read
        self._directory.unpin(self._open_loads.pop(job), sorted(job.failed))

    def touch(self, keys: Sequence[BlockHash]) -> None:
        self._directory.touch(keys)

    def retain(self, keys: Sequence[BlockHash], retention: Retention | None) -> None:
        self._directory.retain(keys, retention)

    def retention(self, key: BlockHash) -> Retention | None:
        entry = self._directory.get(key)
        return None if entry is None else entry.retention

    def erase(self, keys: Sequence[BlockHash]) -> None:
        self._directory.erase(keys)

    def expire(self) -> None:
        self._directory.expire()

    def stats(self) -> TierStats:
        directory = self._directory
        writing = sum(
            e.state is EntryState.WRITING for es in self._open_stores.values() for e in es
        )
        return TierStats(
            tier=self.tier,
            capacity_bytes=self.capacity_bytes,
            used_bytes=self.used_bytes,
            num_blocks=len(directory) - writing,
            num_writing=writing,
            num_pinned=len({entry for es in self._open_loads.values() for entry in es}),
            tenant_bytes=directory.tenant_bytes(),
            stored_blocks=directory.stored,
            loaded_blocks=self._loaded,
            evicted_blocks=directory.removed[Removal.EVICTED],
            expired_blocks=directory.removed[Removal.EXPIRED],
            erased_blocks=directory.removed[Removal.ERASED],
            refused_blocks=directory.refused,
            failures=self._failures.counts(),
        )

    def check_integrity(self) -> None:
        self._directory.check_integrity()
