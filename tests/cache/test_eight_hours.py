"""Guards eight hours of promises over device, RAM and disk: at no moment is a byte over a bound; what was
promised within a budget is found until its deadline, whatever others do; after it, what was promised hard is
neither readable nor on the disk; a tenant that promises itself more than its budget pays for it alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ostinato.cache.build import build_manager
from ostinato.cache.eviction import LRU, Retaining
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.prefix_loader import PrefixLoader
from ostinato.cache.retention import TenantBudgets
from ostinato.cache.storage import HostKVStorage
from ostinato.cache.tiers.base import KVTier, TierAnswer
from ostinato.cache.tiers.carrier import RawCarrier
from ostinato.cache.tiers.disk import DiskTier
from ostinato.cache.tiers.disk_files import BLOCKS_NAME, INDEX_NAME
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.tiers.ram import RamTier
from ostinato.cache.tiers.record import RECORD_BYTES
from ostinato.cache.tiers.transfer import TransferJob
from ostinato.cache.types import NamespaceKey, TenantId, Tier
from ostinato.clock import ManualClock
from ostinato.insight.simulate.null_tiers import InstantTransfers
from tests.cache.tiers.tools import RoomyIO, new_format

HOURS = 8
MINUTE, HOUR = 60.0, 3600.0
SPEC = KVCacheSpec(1, 1, 4, KVDtype.FP32, 4)
BLOCK_BYTES = SPEC.bytes_per_block
SLOT = {Tier.DEVICE: 1, Tier.RAM: BLOCK_BYTES, Tier.DISK: BLOCK_BYTES + RECORD_BYTES}
BLOCKS = {Tier.DEVICE: 40, Tier.RAM: 70, Tier.DISK: 200}
LONGEST = 10
STEADY, GREEDY, PLAIN = TenantId("steady"), TenantId("greedy"), TenantId("plain")
SPACE = {name: NamespaceKey(name.encode().ljust(32, b".")) for name in (STEADY, GREEDY, PLAIN)}
BUDGET = {
    Tier.DEVICE: {STEADY: 16, GREEDY: 8},
    Tier.RAM: {STEADY: 30, GREEDY: 12},
    Tier.DISK: {STEADY: 100, GREEDY: 30},
}


def content(tenant: TenantId, tokens: list[int]) -> bytes:
    """K/V of the block that ends `tokens`."""
    return hashlib.shake_128(f"{tenant}{tokens}".encode()).digest(BLOCK_BYTES)


@dataclass(eq=False)
class Prompt:
    """A text that comes again, and until when the cache owes it to its tenant."""

    tenant: TenantId
    tokens: list[int]
    ttl: float | None
    until: float = 0.0

    @property
    def num_blocks(self) -> int:
        return len(self.tokens) // SPEC.block_size


class CheckedTransfers(InstantTransfers):
    """Also looks at the bounds while copies are under way."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check = check

    def submit(self, job: TransferJob) -> None:
        self._check()
        super().submit(job)
        self._check()


@dataclass
class Day:
    """A server's cache without its model, from request to request."""

    folder: Path
    expire: Literal["soft", "hard"]
    clock: ManualClock = field(default_factory=ManualClock)
    hits: dict[Tier, int] = field(default_factory=dict)
    erased: int = 0
    unkept: int = 0

    def __post_init__(self) -> None:
        self.format = new_format(BLOCK_BYTES)
        self.serial = 0
        self.open()

    def open(self) -> None:
        """A process starts, over what an earlier one has left on disk."""
        budgets = {
            tier: TenantBudgets({name: SLOT[tier] * size for name, size in limits.items()})
            for tier, limits in BUDGET.items()
        }
        self.storage = HostKVStorage(SPEC, BLOCKS[Tier.DEVICE])
        ram_bytes, disk_bytes = (SLOT[tier] * BLOCKS[tier] for tier in (Tier.RAM, Tier.DISK))
        self.ram = RamTier(BLOCK_BYTES, ram_bytes, LRU(), budgets[Tier.RAM], self.clock)
        self.disk = DiskTier(
            self.folder,
            self.format,
            disk_bytes,
            LRU(),
            budgets[Tier.DISK],
            self.clock,
            io=RoomyIO(),
        )
        self.levels: tuple[KVTier, ...] = (self.ram, self.disk)
        self.tiers = TierHierarchy(
            self.levels,
            RawCarrier(self.storage, BLOCK_BYTES),
            CheckedTransfers(self.check_bounds),
            block_size=SPEC.block_size,
            flush_seconds=10.0,
            clock=self.clock,
        )
        policy: Any = Retaining(LRU(), self.clock, budgets[Tier.DEVICE])
        self.manager = build_manager(
            SPEC, self.storage, "radix", self.tiers, policy=policy, clock=self.clock
        )
        self.loader = PrefixLoader(self.manager, self.tiers)

    def restart(self) -> None:
        self.tiers.close()
        self.open()

    def serve(self, prompt: Prompt) -> int:
        """`prompt` with a token that never comes again behind it; blocks of it that were found."""
        self.serial += 1
        ids = np.array([*prompt.tokens, 10_000 + self.serial], dtype=np.int32)
        length = len(ids)
        match = self.manager.lookup(SPACE[prompt.tenant], ids, tenant=prompt.tenant)
        plan = self.loader.plan(match, ids)
        load = self.tiers.pin(plan.runs)
        table = self.manager.allocate(plan.match, length)
        assert table is not None
        computed = plan.match.num_tokens
        if plan.runs:
            self.loader.start(table, plan, load)
            self.tiers.poll()
            computed = self.loader.finish(table, ids, plan, load)
            assert computed == plan.num_tokens
        for tier, tokens in plan.report(load if plan.runs else None, 4).read_by_tier.items():
            self.hits[tier] = self.hits.get(tier, 0) + tokens
        self._compute(prompt, table.block_ids.tolist(), computed)
        self.manager.publish(table, ids, length)
        if prompt.ttl is not None:
            # What was found in full and is promised still is refreshed by the hit alone.
            if computed < len(prompt.tokens) or self.clock.time() >= prompt.until:
                self.manager.retain(table, len(prompt.tokens), prompt.ttl, self.expire)
            prompt.until = self.clock.time() + prompt.ttl
        self.manager.release(table, ids, length)
        while not self.tiers.is_quiet:
            self.tiers.poll()
        self.check_bounds()
        return computed // SPEC.block_size

    def _compute(self, prompt: Prompt, block_ids: list[Any], computed: int) -> None:
        """Check what was found, byte by byte, and write the rest."""
        for at in range(prompt.num_blocks):
            end = (at + 1) * SPEC.block_size
            block, expected = block_ids[at], content(prompt.tenant, prompt.tokens[:end])
            if end <= computed:
                assert self.storage.block_bytes(block).tobytes() == expected
            else:
                self.storage.block_bytes_to_overwrite(block)[:] = np.frombuffer(expected, np.uint8)

    def keys(self, prompt: Prompt) -> list[Any]:
        match = self.manager.lookup(SPACE[prompt.tenant], np.array(prompt.tokens, dtype=np.int32))
        return list(match.hashes.hashes(np.array(prompt.tokens, dtype=np.int32), SPEC.block_size))

    # ------------------------------------------------------------------ what must hold

    def check_bounds(self) -> None:
        stats = self.manager.stats()
        assert stats.free + stats.in_use + stats.cached + stats.in_transfer == BLOCKS[Tier.DEVICE]
        for tier in self.levels:
            level = tier.stats()
            assert level.used_bytes <= level.capacity_bytes == SLOT[level.tier] * BLOCKS[level.tier]
            assert sum(level.tenant_bytes.values()) == level.used_bytes
        files = [self.folder / self.format.name / name for name in (BLOCKS_NAME, INDEX_NAME)]
        on_disk = sum(file.stat().st_size for file in files if file.exists())
        assert on_disk <= SLOT[Tier.DISK] * BLOCKS[Tier.DISK]

    def check_budgets(self, tenant: TenantId) -> None:
        """Where everything is full, `tenant` has its budget and what its last request needed."""
        used = {level.tier: level.tenant_bytes.get(tenant, 0) for level in map(_stats, self.levels)}
        used[Tier.DEVICE] = sum(
            block.entry is not None and block.tenant == tenant
            for block in self.manager._pool.blocks
        )
        for tier, amount in used.items():
            assert amount <= SLOT[tier] * (BUDGET[tier][tenant] + LONGEST + 1), tier

    def check_gone(self, prompt: Prompt) -> None:
        """`prompt` is past its hard deadline: not readable, and then erased everywhere."""
        ids = np.array([*prompt.tokens, 1], dtype=np.int32)
        assert self.manager.lookup(SPACE[prompt.tenant], ids).num_tokens == 0
        self.manager.expire()
        for key in self.keys(prompt):
            assert [tier.lookup(key) for tier in self.levels] == [TierAnswer.MISS] * 2
        file = (self.folder / self.format.name / BLOCKS_NAME).read_bytes()
        for end in range(SPEC.block_size, len(prompt.tokens) + 1, SPEC.block_size):
            assert content(prompt.tenant, prompt.tokens[:end]) not in file
        self.erased += 1


def _stats(tier: KVTier) -> Any:
    return tier.stats()


def _texts(rng: random.Random, tenant: TenantId, count: int, ttls: list[float]) -> list[Prompt]:
    return [
        Prompt(
            tenant,
            [rng.randrange(10_000) for _ in range(4 * rng.randint(4, 7))],
            ttls[number % len(ttls)],
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("expire", ["soft", "hard"])
def test_eight_hours_of_promises_keep_every_bound_and_every_word(
    tmp_path: Path, expire: Literal["soft", "hard"]
) -> None:
    rng = random.Random(8)
    day = Day(tmp_path, expire)
    # At most 14 × 7 = 98 blocks: within the budget of the disk, far beyond those of device and RAM.
    steady = _texts(rng, STEADY, 14, [5 * MINUTE, HOUR])
    greedy = _texts(rng, GREEDY, 40, [HOUR])
    plain = [Prompt(PLAIN, [rng.randrange(9) for _ in range(4 * LONGEST)], None) for _ in range(60)]
    start, restarted = day.clock.time(), False
    while (elapsed := day.clock.time() - start) < HOURS * HOUR:
        day.clock.advance(rng.expovariate(1 / 12))
        asked = rng.choice(rng.choices((steady, greedy, plain), (1, 3, 6))[0])
        is_promised = day.clock.time() < asked.until
        if asked.until and not is_promised and expire == "hard":
            day.check_gone(asked)
        day.manager.expire()
        found = day.serve(asked)
        if asked.tenant == STEADY and is_promised:
            assert found == asked.num_blocks
        day.unkept += asked.tenant == GREEDY and is_promised and found < asked.num_blocks
        if (
            elapsed > HOUR and expire == "soft"
        ):  # hard promises leave free blocks, which are anybody's
            day.check_budgets(GREEDY)
        if elapsed > HOURS * HOUR / 2 and not restarted:
            day.restart()
            restarted = True
    day.manager.check_integrity([])
    assert all(day.hits[tier] > 1000 for tier in (Tier.DEVICE, Tier.RAM, Tier.DISK))
    assert day.unkept > 100
    assert day.erased > 20 or expire == "soft"
    day.clock.advance(2 * HOUR)
    day.manager.expire()
    for prompt in (*steady, *greedy) if expire == "hard" else ():
        day.check_gone(prompt)
    day.tiers.close()
