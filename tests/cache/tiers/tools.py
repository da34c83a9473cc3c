"""Tiers to test, and blocks to put into them: a block's content follows from its key, so a mix-up shows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ostinato.cache.eviction import DEFAULT_POLICY, EvictionPolicy, make_policy
from ostinato.cache.identity import BlockIdentity
from ostinato.cache.retention import Retention, TenantBudgets
from ostinato.cache.tiers.base import KVTier, TierAnswer, TierBlock
from ostinato.cache.tiers.disk import DiskTier
from ostinato.cache.tiers.disk_files import PositionedIO
from ostinato.cache.tiers.disk_folder import TierFormat
from ostinato.cache.tiers.entry import TierEntry
from ostinato.cache.tiers.ram import RamTier
from ostinato.cache.tiers.record import RECORD_BYTES
from ostinato.cache.tiers.remote import RemoteTier
from ostinato.cache.types import BlockHash, TenantId
from ostinato.clock import ManualClock

BLOCK_BYTES = 160
GIB = 1 << 30

_serial = itertools.count()


def new_format(block_bytes: int = BLOCK_BYTES) -> TierFormat:
    """A format that no other test has."""
    digest = hashlib.sha256(f"test {next(_serial)}".encode()).digest()
    return TierFormat("tiny", digest, block_bytes, {"block_size": 4, "kv_dtype": "fp16"})


def content(key: BlockHash, num_bytes: int = BLOCK_BYTES) -> bytes:
    """What the block of `key` holds."""
    return hashlib.shake_128(key).digest(num_bytes)


def chain(
    name: str, length: int, tenant: str = "a", after: BlockHash | None = None
) -> list[TierBlock]:
    """`length` blocks of one prompt, the first behind `after`."""
    blocks: list[TierBlock] = []
    parent, depth = after, 0 if after is None else 1
    for at in range(length):
        key = BlockHash(hashlib.sha256(f"{name} {at}".encode() + (parent or b"")).digest())
        blocks.append(TierBlock(BlockIdentity(key, parent, depth + at, TenantId(tenant))))
        parent = key
    return blocks


def keys_of(blocks: Sequence[TierBlock]) -> list[BlockHash]:
    return [block.identity.key for block in blocks]


def promised(blocks: Sequence[TierBlock], retention: Retention) -> list[TierBlock]:
    return [TierBlock(block.identity, retention) for block in blocks]


class RoomyIO(PositionedIO):
    """A file system with much room, so that the machine's own does not matter; nobody waits for the device."""

    def sync(self, descriptor: int) -> None:
        return None

    def free_space(self, path: Path) -> tuple[int, int]:
        return 900 * GIB, 1000 * GIB


@dataclass
class TierMaker:
    """Makes a tier of one kind, and makes it again over what an earlier one has left.

    Attributes:
        kind: ``ram``, ``disk`` or ``remote``.
        folder: of the disk tier.
        url: of the remote tier's server.
        policy: by the name that settings use.
    """

    kind: str
    folder: Path
    url: str = ""
    policy: str = DEFAULT_POLICY
    format: TierFormat = field(default_factory=new_format)
    clock: ManualClock = field(default_factory=ManualClock)
    io: PositionedIO = field(default_factory=RoomyIO)
    made: list[KVTier] = field(default_factory=list)

    @property
    def persistent(self) -> bool:
        return self.kind != "ram"

    @property
    def slot_bytes(self) -> int:
        return self.format.block_bytes + (RECORD_BYTES if self.persistent else 0)

    def make(
        self,
        num_blocks: int = 8,
        budgets: TenantBudgets | None = None,
        policy: str | None = None,
    ) -> KVTier:
        """A tier for `num_blocks`, with what is there already, under `policy` instead of the maker's."""
        order = make_policy(policy or self.policy)
        tier = self._make(num_blocks * self.slot_bytes, budgets or TenantBudgets(), order)
        self.made.append(tier)
        return tier

    def _make(
        self, capacity: int, budgets: TenantBudgets, order: EvictionPolicy[TierEntry]
    ) -> KVTier:
        if self.kind == "ram":
            return RamTier(self.format.block_bytes, capacity, order, budgets, self.clock)
        if self.kind == "disk":
            return DiskTier(
                self.folder, self.format, capacity, order, budgets, self.clock, io=self.io
            )
        tier = RemoteTier(self.url, self.format, capacity, order, budgets, self.clock)
        tier.drain()
        return tier

    def close(self) -> None:
        for tier in self.made:
            tier.close()


def ask(tier: KVTier, key: BlockHash) -> TierAnswer:
    """The tier's answer once it has one."""
    answer = tier.lookup(key)
    if answer is TierAnswer.RETRY:
        settle(tier)
        answer = tier.lookup(key)
    return answer


def settle(tier: KVTier) -> None:
    """Wait for what a tier does in the background."""
    if isinstance(tier, RemoteTier):
        tier.drain()


def store(tier: KVTier, blocks: Sequence[TierBlock]) -> bool:
    """Store `blocks` with their content; whether there was room."""
    job = tier.prepare_store(blocks)
    if job is None:
        return False
    written = 0
    for at, block in enumerate(job.blocks):
        if not tier.write(job, at, memoryview(content(block.identity.key, tier.block_bytes))):
            break
        written += 1
    tier.complete_store(job, written)
    return True


def load(tier: KVTier, keys: Sequence[BlockHash]) -> list[bytes]:
    """The contents of `keys`, up to the first that cannot be read."""
    job = tier.prepare_load(keys)
    contents = []
    for at in range(len(keys)):
        out = bytearray(tier.block_bytes)
        if not tier.read(job, at, memoryview(out)):
            break
        contents.append(bytes(out))
    tier.complete_load(job, len(contents))
    return contents


def stored(tier: KVTier, keys: Sequence[BlockHash]) -> list[bool]:
    """Which of `keys` are readable."""
    return [ask(tier, key) is TierAnswer.HIT for key in keys]
