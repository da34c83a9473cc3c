"""Guards the engine over RAM, disk and remote: transfers end when they like, reads and writes fail when they
like, bytes on the disk change, requests are broken off while they load, and the device loses all, at any step.
Still every answer has exactly the tokens that it would have got alone, no block is lost, and what a failed load
did not bring is computed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from ostinato.cache.eviction import DEFAULT_POLICY, POLICIES
from ostinato.cache.tiers.base import KVTier, TierFailure
from ostinato.cache.tiers.carrier import RawCarrier
from ostinato.cache.tiers.disk_files import BLOCKS_NAME
from ostinato.cache.tiers.hierarchy import HierarchyStats, TierHierarchy
from ostinato.cache.tiers.policy import PrefetchStop, WritePolicy
from ostinato.cache.types import Tier
from ostinato.clock import Clock
from tests.cache.tiers.manual import FaultyTier, ManualTransfers
from tests.cache.tiers.tools import TierMaker, new_format
from tests.engine.harness import EchoStorage, collect
from tests.properties.test_engine_machine import MAX_STEPS_TO_DRAIN, EngineMachine
from tests.properties.test_tier_machine import FaultyIO

Fate = Literal["arrives", "fails", "is damaged", "is broken off"]
FATES: tuple[Fate, ...] = ("arrives", "fails", "is damaged", "is broken off")


class TieredEngineMachine(EngineMachine):
    """`EngineMachine` with a hierarchy below, whose transfers and faults are rules. The disk is a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.transfers = ManualTransfers()
        self.tiers: list[KVTier] = []
        self.io = FaultyIO()
        self.folder = Path(tempfile.mkdtemp(prefix="ostinato-engine-"))
        self.broken_off_while_loading = 0

    def tiers_of(self, storage: EchoStorage, clock: Clock) -> TierHierarchy | None:  # type: ignore[override]
        block_bytes = storage.slots[0].nbytes
        levels = zip((Tier.RAM, Tier.DISK, Tier.REMOTE), self.sizes, strict=True)
        self.maker = TierMaker(
            "disk",
            self.folder,
            format=new_format(block_bytes),
            clock=clock,  # type: ignore[arg-type]
            io=self.io,
            policy=self.eviction,
        )
        self.tiers = [
            self.maker.make(size)
            if tier is Tier.DISK
            else FaultyTier(tier, block_bytes, size, clock, self.eviction)
            for tier, size in levels
            if size
        ]
        if not self.tiers:
            return None
        return TierHierarchy(
            self.tiers,
            RawCarrier(storage, block_bytes),
            self.transfers,
            block_size=storage.spec.block_size,
            write_policy=self.write_policy,
            prefetch_stop=self.prefetch,
            clock=clock,
        )

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.sampled_from([1, 4]),
        prefix_index=st.sampled_from(["radix", "block_hash"]),
        spare=st.integers(0, 32),
        seats=st.integers(2, 8),
        write_policy=st.sampled_from(WritePolicy),
        prefetch=st.sampled_from(PrefetchStop),
        eviction=st.sampled_from(sorted(POLICIES)),
        sizes=st.tuples(*map(st.sampled_from, ([0, 2, 8, 40], [0, 4, 60, 60], [0, 60]))),
    )
    def build(
        self,
        num_blocks: int,
        block_size: int,
        prefix_index: Any,
        spare: int,
        seats: int,
        write_policy: WritePolicy,
        prefetch: PrefetchStop,
        eviction: str,
        sizes: tuple[int, int, int],
    ) -> None:
        self.write_policy, self.prefetch, self.sizes = write_policy, prefetch, sizes
        self.eviction = eviction
        super().build(num_blocks, block_size, prefix_index, spare, None, seats, 0.0)

    # ------------------------------------------------------------------ what hits the tiers

    @precondition(lambda self: self.tiers and self.prompts)
    @rule(
        data=st.data(),
        fate=st.sampled_from(FATES),
        from_below=st.booleans(),
        behind_others=st.booleans(),
    )
    def come_again(
        self, data: st.DataObject, fate: Fate, from_below: bool, behind_others: bool
    ) -> None:
        known = data.draw(st.sampled_from(sorted(self.prompts)))
        longer = [*self.prompts[known], 1, 2, 1, 1, 2, 2, 1, 2]  # some blocks, whatever was drawn
        name = self.add(longer, 1, 1, True, self.tenants[known])
        self.come_again_for(name, fate, from_below=from_below, behind_others=behind_others)

    def come_again_for(
        self, name: str, fate: Fate, *, from_below: bool, behind_others: bool
    ) -> None:
        """A prompt comes again when the device has lost it; what happens to its load is its `fate`.

        Args:
            name: of the request that it was.
            fate: of the load.
            from_below: only the lowest tier still has it.
            behind_others: it has to queue for a seat, so that it is prefetched.
        """
        self._lose(from_below=from_below)
        if fate == "fails":
            self._spoil_reads(self.tiers[-1], 0)
        if fate == "is damaged":
            self._damage_the_disk()
        if behind_others:
            for _ in range(self.engine.scheduler.num_free_seqs):
                self.add([1], 4, 1, True, "b")
            self.step(1)
        again = self.add([*self.prompts[name], 1], 2, 1, True, self.tenants[name])
        self.step(1)
        if fate == "is broken off":
            waits_for = {one.request_id for one in self.engine.scheduler._loads}
            self.broken_off_while_loading += again in waits_for
            self.abort(again)
        if fate in ("fails", "is damaged") or behind_others:
            self.transfers.run()

    def _lose(self, *, from_below: bool) -> None:
        """Everything ends and is stored; then the device, and all tiers but the lowest, lose all."""
        for answer in self.engine.run(MAX_STEPS_TO_DRAIN).values():
            collect(answer.deltas, self.answers)
        self.settle()
        assert self.engine.manager.reset()
        self.settle()
        if from_below:
            self.engine.manager.tiers._stores.write_all_down()
            self.settle()
            for tier in self.tiers[:-1]:
                directory = tier._directory  # type: ignore[attr-defined]
                directory.erase([entry.key for entry in directory.entries()])

    @precondition(lambda self: self.transfers.queue)
    @rule(count=st.integers(1, 4))
    def run_transfers(self, count: int) -> None:
        self.transfers.run(count)

    @precondition(lambda self: self.tiers)
    @rule(data=st.data(), bad=st.integers(0, 3))
    def spoil_reads(self, data: st.DataObject, bad: int) -> None:
        self._spoil_reads(data.draw(st.sampled_from(self.tiers)), bad)

    def _spoil_reads(self, tier: KVTier, bad: int) -> None:
        if isinstance(tier, FaultyTier):
            tier.fails_read = lambda at: at >= bad
        else:
            self.io.next_read = "short" if bad % 2 else "broken"

    @precondition(lambda self: self.tiers)
    @rule(data=st.data(), bad=st.integers(0, 3))
    def spoil_writes(self, data: st.DataObject, bad: int) -> None:
        tier = data.draw(st.sampled_from(self.tiers))
        if isinstance(tier, FaultyTier):
            tier.fails_write = lambda at: at >= bad
        else:
            self.io.next_write = ("full", "torn", "broken", "broken")[bad]

    @precondition(lambda self: self.tiers)
    @rule()
    def damage_the_disk(self) -> None:
        self._damage_the_disk()

    def _damage_the_disk(self) -> None:
        """Another byte in every block."""
        path = self.folder / self.maker.format.name / BLOCKS_NAME
        if path.exists():
            damaged = bytearray(path.read_bytes())
            for at in range(0, len(damaged), self.maker.format.block_bytes):
                damaged[at] ^= 0x10
            with path.open("r+b") as file:
                file.write(damaged)

    @rule()
    def mend(self) -> None:
        self.io.next_read = self.io.next_write = None
        for tier in self.tiers:
            if isinstance(tier, FaultyTier):
                tier.fails_read = tier.fails_write = lambda at: False

    @precondition(lambda self: self.engine is not None)
    @rule()
    def lose_the_device(self) -> None:
        self.engine.manager.reset()

    # ------------------------------------------------------------------ the end

    def settle(self) -> None:
        assert self.engine is not None
        self.engine.step()
        while self.transfers.queue:
            self.transfers.run()
            self.engine.step()
        for tier in self.tiers:
            stats = tier.stats()
            assert (stats.num_writing, stats.num_pinned) == (0, 0)
            assert stats.used_bytes <= stats.capacity_bytes

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for tier in self.tiers:
                tier.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def tier_stats(self) -> HierarchyStats:
        found = self.engine.core.stats().tiers
        assert found is not None
        return found


TestTieredEngineMachine = TieredEngineMachine.TestCase
TestTieredEngineMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def directed(prefix_index: str, sizes: tuple[int, int, int], **fate: Any) -> TieredEngineMachine:
    """One prompt is served, comes again with that fate, and once more when all is well."""
    machine = TieredEngineMachine()
    machine.build(
        24,
        4,
        prefix_index,
        32,
        2,
        WritePolicy.WRITE_THROUGH,
        PrefetchStop.BEST_EFFORT,
        DEFAULT_POLICY,
        sizes,
    )
    name = machine.add([1, 2, 2] * 5, 2, 1, True, "a")
    machine.come_again_for(name, **fate)
    machine.mend()
    again = machine.add([*machine.prompts[name], 2], 2, 1, True, "a")
    machine.teardown()
    assert machine._finished(again)
    return machine


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash"])
@pytest.mark.parametrize("sizes", [(40, 0, 0), (0, 60, 0), (40, 60, 0), (8, 4, 60)], ids=str)
def test_a_load_is_reached_that_arrives_fails_or_is_broken_off(
    prefix_index: str, sizes: tuple[int, int, int]
) -> None:
    below: dict[str, Any] = {"from_below": True, "behind_others": False}
    levels = (Tier.RAM, Tier.DISK, Tier.REMOTE)
    lowest = [tier for tier, size in zip(levels, sizes, strict=True) if size][-1]
    arrived = directed(prefix_index, sizes, fate="arrives", **below).tier_stats().loads
    assert arrived.loaded_blocks[lowest] >= 3
    failed = directed(prefix_index, sizes, fate="fails", **below).tier_stats().loads
    assert failed.failed_blocks[lowest] >= 1
    machine = directed(prefix_index, sizes, fate="is broken off", **below)
    assert machine.broken_off_while_loading == 1


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash"])
def test_a_load_of_damaged_bytes_is_reached(prefix_index: str) -> None:
    machine = directed(
        prefix_index, (40, 60, 0), fate="is damaged", from_below=True, behind_others=False
    )
    stats = machine.tier_stats()
    assert stats.tiers[1].failures[TierFailure.CORRUPT] >= 1
    assert stats.loads.failed_blocks[Tier.DISK] >= 1


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash"])
@pytest.mark.parametrize("fate", FATES)
def test_a_prefetch_is_reached_that_arrives_fails_or_is_broken_off(
    prefix_index: str, fate: Fate
) -> None:
    machine = directed(prefix_index, (40, 60, 0), fate=fate, from_below=True, behind_others=True)
    stats = machine.tier_stats()
    if fate == "arrives":
        assert stats.loads.prefetched_blocks >= 3
        assert stats.loads.loaded_blocks[Tier.RAM] >= 3
    if fate == "is damaged":
        assert stats.tiers[1].failures[TierFailure.CORRUPT] >= 1
    if fate == "fails":
        assert stats.tiers[1].failures[TierFailure.IO_ERROR] >= 1
    if fate != "arrives":
        assert stats.loads.prefetched_blocks < 3
