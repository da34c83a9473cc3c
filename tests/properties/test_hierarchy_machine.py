"""Guards K/V on its way down and back: whatever fails, dies or is damaged in between, at any step, what a
sequence reads is byte for byte what was computed for exactly its tokens in exactly its namespace; no block, pin
or byte of room is lost; and without faults nothing that was evicted is computed again.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ostinato.cache.block_table import BlockTable
from ostinato.cache.build import build_manager
from ostinato.cache.eviction import POLICIES
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.prefix_loader import LoadPlan, PrefixLoader
from ostinato.cache.storage import HostKVStorage
from ostinato.cache.tiers.base import KVTier
from ostinato.cache.tiers.carrier import RawCarrier
from ostinato.cache.tiers.disk_files import BLOCKS_NAME
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.tiers.loads import PrefixLoad
from ostinato.cache.tiers.policy import WritePolicy
from ostinato.cache.types import NamespaceKey, Tier
from tests.cache.tiers.manual import FaultyTier, ManualTransfers
from tests.cache.tiers.tools import TierMaker, new_format
from tests.properties.test_tier_machine import FaultyIO

SPEC = KVCacheSpec(2, 1, 4, KVDtype.FP32, 4)
NAMESPACES = {name: NamespaceKey(name.encode() * 32) for name in "ab"}
TOKEN_FLOATS = SPEC.bytes_per_token // 4


def content(name: str, tokens: list[int]) -> np.ndarray[Any, Any]:
    """K/V of the last of `tokens`, ``(layers, 2, kv heads, head dim)``: a function of all of them."""
    digest = hashlib.shake_128(f"{name}{tokens}".encode()).digest(TOKEN_FLOATS)
    return np.frombuffer(digest, dtype=np.uint8).astype(np.float32).reshape(2, 2, 1, 4)


@dataclass
class Sequence:
    """A request with blocks of its own, perhaps still loading."""

    name: str
    tokens: list[int]
    table: BlockTable
    computed: int
    plan: LoadPlan
    load: PrefixLoad | None

    @property
    def ids(self) -> np.ndarray[Any, Any]:
        return np.array(self.tokens, dtype=np.int32)


class HierarchyMachine(RuleBasedStateMachine):
    """Requests come, load, compute and go; transfers run, fail and are cut off; processes die."""

    prefix_index: Any = "radix"

    def __init__(self) -> None:
        super().__init__()
        self.sequences: list[Sequence] = []
        self.known: list[tuple[str, list[int]]] = []
        self.sound = True
        self.folder = Path(tempfile.mkdtemp(prefix="ostinato-hierarchy-"))
        self.io = FaultyIO()

    @initialize(
        blocks=st.integers(3, 12),
        ram=st.sampled_from([0, 2, 6, 100]),
        disk=st.sampled_from([0, 3, 12, 200]),
        policy=st.sampled_from(WritePolicy),
        eviction=st.sampled_from(sorted(POLICIES)),
    )
    def start(self, blocks: int, ram: int, disk: int, policy: WritePolicy, eviction: str) -> None:
        self.sizes = (blocks, ram, disk)
        self.policy = policy
        self.maker = TierMaker(
            "disk",
            self.folder / "kv",
            format=new_format(SPEC.bytes_per_block),
            io=self.io,
            policy=eviction,
        )
        self._open()

    def _open(self) -> None:
        blocks, ram, disk = self.sizes
        self.storage = HostKVStorage(SPEC, blocks)
        self.transfers = ManualTransfers()
        self.ram = FaultyTier(
            Tier.RAM, SPEC.bytes_per_block, max(ram, 1), self.maker.clock, self.maker.policy
        )
        tiers: list[KVTier] = [self.ram] if ram or not disk else []
        self.disk = self.maker.make(disk) if disk else None
        tiers += [self.disk] if self.disk is not None else []
        hierarchy = TierHierarchy(
            tiers,
            RawCarrier(self.storage, SPEC.bytes_per_block),
            self.transfers,
            block_size=SPEC.block_size,
            write_policy=self.policy,
            flush_seconds=1.0,
            clock=self.maker.clock,
        )
        self.tiers = tiers
        self.manager: KVCacheManager = build_manager(
            SPEC, self.storage, self.prefix_index, hierarchy
        )
        self.loader = PrefixLoader(self.manager, hierarchy)

    # ------------------------------------------------------------------ requests

    @precondition(lambda self: len(self.sequences) < 4)
    @rule(data=st.data(), name=st.sampled_from("ab"))
    def admit(self, data: st.DataObject, name: str) -> None:
        self._admit(name, self._draw_prompt(data, name))

    @rule(data=st.data(), name=st.sampled_from("ab"), loses_device=st.booleans())
    def serve(self, data: st.DataObject, name: str, loses_device: bool) -> None:
        """A request from its beginning to its end, so that there is much to find and to load."""
        self._serve(name, self._draw_prompt(data, name), loses_device)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), loses_device=st.booleans())
    def serve_again(self, data: st.DataObject, loses_device: bool) -> None:
        name, tokens = data.draw(st.sampled_from(self.known))
        self._serve(name, [*tokens, 0], loses_device)

    def _serve(self, name: str, tokens: list[int], loses_device: bool) -> None:
        if not self._admit(name, tokens):
            return
        one = self.sequences[-1]
        while one.load is not None:
            self._run_transfers(None)
        self._compute(one, len(tokens))
        self.sequences.pop()
        self.known.append((name, tokens))
        self.manager.release(one.table, one.ids, one.computed)
        if loses_device:
            self._run_transfers(None)
            self.manager.reset()

    def _admit(self, name: str, tokens: list[int]) -> bool:
        ids = np.array(tokens, dtype=np.int32)
        plan = self.loader.plan(self.manager.lookup(NAMESPACES[name], ids), ids)
        load = self.loader.tiers.pin(plan.runs)
        table = self.manager.allocate(plan.match, len(tokens))
        if table is None:
            self.loader.tiers.unpin(load)
            return False
        if plan.runs:
            self.loader.start(table, plan, load)
        self._check_report(name, tokens, plan)
        self.sequences.append(
            Sequence(name, tokens, table, plan.match.num_tokens, plan, load if plan.runs else None)
        )
        self._check_content(self.sequences[-1])
        return True

    def _draw_prompt(self, data: st.DataObject, name: str) -> list[int]:
        known = [tokens for space, tokens in self.known if space == name]
        head: list[int] = []
        if known and data.draw(st.booleans()):
            base = data.draw(st.sampled_from(known))
            head = base[: data.draw(st.integers(0, len(base)))]
        return head + data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=10))

    def _check_report(self, name: str, tokens: list[int], plan: LoadPlan) -> None:
        """Nothing is found that was never computed; all of it, if there is room and nothing ever failed."""
        reused = plan.num_tokens
        assert reused < len(tokens)
        whole = reused - reused % SPEC.block_size
        seen = [old[:whole] for space, old in self.known if space == name]
        assert not whole or tokens[:whole] in seen or self._is_under_way(name, tokens[:whole])
        if self._nothing_gets_lost():
            longest = max(
                (self._shared(old, tokens[:-1]) for old in seen_by(self, name)), default=0
            )
            assert reused >= longest - longest % SPEC.block_size

    def _is_under_way(self, name: str, tokens: list[int]) -> bool:
        return any(
            one.name == name and one.tokens[: len(tokens)] == tokens for one in self.sequences
        )

    def _nothing_gets_lost(self) -> bool:
        first = self.tiers[0].stats()
        lost = self.loader.tiers.stats().stores.lost
        return self.sound and not lost and not first.evicted_blocks and not self.transfers.queue

    @staticmethod
    def _shared(left: list[int], right: list[int]) -> int:
        count = 0
        while count < min(len(left), len(right)) and left[count] == right[count]:
            count += 1
        return count

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.sequences))
        if one.load is None:
            self._compute(one, data.draw(st.integers(one.computed, len(one.tokens))))

    def _compute(self, one: Sequence, target: int) -> None:
        for at in range(one.computed, target):
            block = one.table.block_ids[at // SPEC.block_size]
            self.storage.array[block, :, :, :, at % SPEC.block_size] = content(
                one.name, one.tokens[: at + 1]
            )
        one.computed = target
        self.manager.publish(one.table, one.ids, target)
        self._check_content(one)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """From whatever state; a load that is under way is broken off."""
        one = self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1)))
        if one.load is not None:
            one.load.cancel()
        elif data.draw(st.booleans()):
            self._compute(one, len(one.tokens))
        self.known.append((one.name, one.tokens[: one.computed]))
        self.manager.release(one.table, one.ids, one.computed)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """Its K/V cannot be trusted."""
        one = self.sequences.pop(data.draw(st.integers(0, len(self.sequences) - 1)))
        if one.load is not None:
            one.load.cancel()
        self.sound = False
        self.manager.discard(one.table)

    # ------------------------------------------------------------------ transfers

    @precondition(lambda self: self.transfers.queue)
    @rule(count=st.integers(1, 5))
    def run_transfers(self, count: int) -> None:
        self._run_transfers(count)

    def _run_transfers(self, count: int | None) -> None:
        self.transfers.run(count)
        self.loader.tiers.poll()
        self._take_arrived()

    def _take_arrived(self) -> None:
        for one in self.sequences:
            if one.load is None or not one.load.is_done:
                continue
            assert one.load.num_arrived == one.load.num_blocks or not self.sound
            one.computed = self.loader.finish(one.table, one.ids, one.plan, one.load)
            report = one.plan.report(one.load, SPEC.block_size)
            assert report.cached_tokens == one.computed
            one.load = None
            self._check_content(one)

    @rule()
    def lose_the_device(self) -> None:
        self.manager.reset()

    # ------------------------------------------------------------------ faults

    @rule(bad=st.integers(0, 2), reads=st.booleans())
    def spoil_ram(self, bad: int, reads: bool) -> None:
        self.sound = False
        if reads:
            self.ram.fails_read = lambda at: at >= bad
        else:
            self.ram.fails_write = lambda at: at >= bad

    @precondition(lambda self: self.disk)
    @rule(fault=st.sampled_from(["full", "torn", "broken"]))
    def spoil_a_write_to_disk(self, fault: str) -> None:
        self.sound = False
        self.io.next_write = fault

    @precondition(lambda self: self.disk)
    @rule(fault=st.sampled_from(["short", "broken"]))
    def spoil_a_read_from_disk(self, fault: str) -> None:
        self.sound = False
        self.io.next_read = fault

    @rule()
    def mend(self) -> None:
        self.ram.fails_read = self.ram.fails_write = lambda at: False
        self.io.next_read = self.io.next_write = None

    @precondition(lambda self: self.disk and self.disk.stats().num_blocks)
    @rule(data=st.data())
    def flip_a_byte(self, data: st.DataObject) -> None:
        self.sound = False
        path = self.maker.folder / self.maker.format.name / BLOCKS_NAME
        with path.open("r+b") as file:
            at = data.draw(st.integers(0, path.stat().st_size - 1))
            file.seek(at)
            old = file.read(1)[0]
            file.seek(at)
            file.write(bytes([old ^ 0x10]))

    @rule(kindly=st.booleans())
    def restart(self, kindly: bool) -> None:
        """Stopped, or killed at this very moment."""
        for one in self.sequences:
            if one.load is not None:
                one.load.cancel()
            if kindly:
                self.manager.release(one.table, one.ids, one.computed)
            self.known.append((one.name, one.tokens[: one.computed]))
        self.sequences.clear()
        if kindly and self.disk:
            self.loader.tiers.close()
        elif self.disk:
            after = self.folder / f"kv{len(self.maker.made)}"
            shutil.copytree(self.maker.folder, after)
            self.maker.folder = after
        self.sound = False
        self.io.next_read = self.io.next_write = None
        self._open()

    # ------------------------------------------------------------------ checks

    def _check_content(self, one: Sequence) -> None:
        for at in range(one.computed):
            block = one.table.block_ids[at // SPEC.block_size]
            stored = self.storage.array[block, :, :, :, at % SPEC.block_size]
            np.testing.assert_array_equal(stored, content(one.name, one.tokens[: at + 1]))

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity([one.table for one in self.sequences])
        for tier in self.tiers:
            stats = tier.stats()
            assert stats.used_bytes <= stats.capacity_bytes

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.io.next_read = self.io.next_write = None
            for one in self.sequences:
                if one.load is not None:
                    one.load.cancel()
                self.manager.release(one.table, one.ids, one.computed)
            while not self.loader.tiers.is_quiet:
                self.transfers.run()
                self.loader.tiers.poll()
            for tier in self.tiers:
                assert (tier.stats().num_writing, tier.stats().num_pinned) == (0, 0)
            stats = self.manager.stats()
            assert stats.free + stats.cached == stats.total
            self.books_agree()
            self.maker.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def seen_by(machine: HierarchyMachine, name: str) -> list[list[int]]:
    return [tokens for space, tokens in machine.known if space == name]


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash"])
def test_what_comes_back_is_what_was_computed(prefix_index: str) -> None:
    machine = type("Machine", (HierarchyMachine,), {"prefix_index": prefix_index})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
