"""The kinds of transfer: where a job moves its blocks from and to. `move` runs in transfer threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ostinato.cache.tiers.base import KVTier, LoadJob, StoreJob
from ostinato.cache.tiers.carrier import BlockCarrier
from ostinato.cache.tiers.transfer import Lane, TransferJob, Urgency
from ostinato.cache.types import BlockId, Tier


def _lane(*tiers: KVTier) -> Lane:
    return Lane.REMOTE if any(tier.tier is Tier.REMOTE for tier in tiers) else Lane.LOCAL


def from_device(
    tier: KVTier, store: StoreJob, carrier: BlockCarrier, block_ids: Sequence[BlockId]
) -> TransferJob:
    """Device → tier. `block_ids` are those of ``store.blocks``; they must not change until the job ends."""

    def move(at: int) -> bool:
        return tier.write(store, at, carrier.source(block_ids[at]))

    return TransferJob(len(block_ids), move, tier.block_bytes, Urgency.STORE, _lane(tier))


def from_buffers(tier: KVTier, store: StoreJob, buffers: Sequence[bytes]) -> TransferJob:
    """Copies of what was on the device → tier."""

    def move(at: int) -> bool:
        return tier.write(store, at, memoryview(buffers[at]))

    return TransferJob(len(buffers), move, tier.block_bytes, Urgency.STORE, _lane(tier))


def to_device(
    tier: KVTier, load: LoadJob, carrier: BlockCarrier, block_ids: Sequence[BlockId]
) -> TransferJob:
    """Tier → device. `block_ids` are for ``load.keys``; nobody else reads or writes them until the job ends."""

    def move(at: int) -> bool:
        if not tier.read(load, at, carrier.target(block_ids[at])):
            return False
        carrier.arrived(block_ids[at])
        return True

    def begin(task: range) -> None:
        tier.fetch(load, task)

    return TransferJob(len(block_ids), move, tier.block_bytes, Urgency.LOAD, _lane(tier), begin)


def between_tiers(
    source: KVTier, load: LoadJob, target: KVTier, store: StoreJob, urgency: Urgency
) -> TransferJob:
    """Tier → tier, through a buffer of each thread. ``load.keys`` are those of ``store.blocks``."""
    own = threading.local()

    def move(at: int) -> bool:
        buffer: bytearray | None = getattr(own, "buffer", None)
        if buffer is None:
            buffer = own.buffer = bytearray(source.block_bytes)
        view = memoryview(buffer)
        return source.read(load, at, view) and target.write(store, at, view)

    def begin(task: range) -> None:
        source.fetch(load, task)

    lane = _lane(source, target)
    return TransferJob(len(store.blocks), move, source.block_bytes, urgency, lane, begin)
