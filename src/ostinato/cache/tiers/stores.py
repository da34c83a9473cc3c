"""Stores: blocks on their way down.

    device ── written through, in the background ──►┐                         ┌──► disk
           ── written back when it is evicted ─────►┴─ the first tier (RAM) ──┴──► remote
                                                       what lies only here is *dirty*: written on at once if it
                                                       was written through, else before the tier is full

A store covers everything of a prefix, from the root on, that the tier lacks: a tail without its head would
never be found. Everything is bounded: what would exceed the bytes in flight waits its turn (dirty blocks) or is
given up and counted (blocks that are being evicted).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.identity import BlockIdentity
from ostinato.cache.tiers.base import KVTier, StoreJob, TierAnswer, TierBlock
from ostinato.cache.tiers.carrier import BlockCarrier
from ostinato.cache.tiers.in_flight import InFlight
from ostinato.cache.tiers.moves import between_tiers, from_buffers, from_device
from ostinato.cache.tiers.transfer import TransferJob, Urgency
from ostinato.cache.types import BlockHash, Tier

BATCH_BYTES = 32 * 2**20
"""What one job moves from tier to tier."""

MAX_BYTES_IN_FLIGHT = 256 * 2**20
"""Of all stores together."""

HIGH_WATER = 0.75
"""Share of the first tier beyond which its dirty blocks are written on."""


class TransferPins(Protocol):
    """What the tiers need of the device's pool; see `pool.BlockPool`."""

    def begin_transfer(self, blocks: Sequence[KVCacheBlock]) -> None: ...

    def end_transfer(self, blocks: Sequence[KVCacheBlock]) -> None: ...


@dataclass(slots=True)
class StoreCounters:
    """Blocks, since the start.

    Attributes:
        written_through: copied before they were evicted.
        written_back: copied when they were evicted.
        written_down: copied from the first tier to one below.
        lost: evicted from the device, or from the first tier, while no tier had them.
        skipped: not written through because too much was in flight or the tier had no room.
    """

    written_through: int = 0
    written_back: int = 0
    written_down: int = 0
    lost: int = 0
    skipped: int = 0


class BlockStores:
    """Decides nothing about *when* to write; see `policy.WritePolicy`.

    Args:
        tiers: fastest first, at least one.
        carrier: the device's side of a copy.
        in_flight: where background copies are submitted.
        resident: findable full blocks of the device by name; kept by the hierarchy.
    """

    def __init__(
        self,
        tiers: Sequence[KVTier],
        carrier: BlockCarrier,
        in_flight: InFlight,
        resident: Mapping[BlockHash, KVCacheBlock],
    ) -> None:
        self._first = tiers[0]
        self._lower = tiers[1:]
        self._carrier = carrier
        self._in_flight = in_flight
        self._resident = resident
        self._pool: TransferPins | None = None
        self._dirty: OrderedDict[BlockHash, TierBlock] = OrderedDict()
        self._urgent: OrderedDict[BlockHash, None] = OrderedDict()
        self._num_from_device = 0
        self.counters = StoreCounters()

    def attach(self, pool: TransferPins) -> None:
        """Name the pool whose blocks are stored; once, before anything else."""
        self._pool = pool

    @property
    def num_from_device(self) -> int:
        """Background copies under way that keep blocks of the device from being reused."""
        return self._num_from_device

    @property
    def num_dirty(self) -> int:
        """Blocks that lie in the first tier alone and are still to be written on."""
        return len(self._dirty)

    # ------------------------------------------------------------------ device → first tier

    def write_through(self, last: KVCacheBlock, most: int | None = None) -> bool:
        """Copy what the first tier lacks of the prefix that ends in `last`, in the background.

        Args:
            last: a block that can be found.
            most: start no more than that many blocks.

        Returns:
            False if `most` left some for another call.
        """
        lacking = self._lacking(last)
        if not lacking:
            return True
        wanted = lacking[:most]
        now = wanted[: self._num_blocks_that_may_start()]
        self.counters.skipped += len(wanted) - len(now)
        store = self._first.prepare_store([_tier_block(block) for block in now]) if now else None
        if store is None:
            self.counters.skipped += len(now)
        elif store.blocks:
            self._copy_in_background(store, self._prefix(now[-1]))
        return store is None or len(wanted) == len(lacking)

    @property
    def has_room(self) -> bool:
        """Whether more may be started: less than half of what may be in flight is."""
        return self._in_flight.num_bytes(Urgency.STORE) < MAX_BYTES_IN_FLIGHT // 2

    def _num_blocks_that_may_start(self) -> int:
        room = MAX_BYTES_IN_FLIGHT - self._in_flight.num_bytes(Urgency.STORE)
        return max(room, 0) // self._carrier.block_bytes

    def _copy_in_background(self, store: StoreJob, prefix: list[KVCacheBlock]) -> None:
        pool = self._pool
        assert pool is not None
        ids = [self._resident[block.identity.key].block_id for block in store.blocks]
        job = from_device(self._first, store, self._carrier, ids)
        pool.begin_transfer(prefix)
        self._num_from_device += 1

        def settle(_: TransferJob) -> None:
            self._first.complete_store(store, job.num_moved)
            self._num_from_device -= 1
            pool.end_transfer(prefix)
            self.counters.written_through += job.num_moved
            self._arrived(store.blocks[: job.num_moved], at_once=True)

        self._in_flight.submit(job, settle)

    def write_back(self, victim: KVCacheBlock) -> None:
        """`victim` is about to be evicted: keep its content, and what of its prefix is not below yet, now.

        At most `MAX_BYTES_IN_FLIGHT` are copied, heads first, so that of a very long prefix that was never
        written the end may be lost.
        """
        lacking = self._lacking(victim)
        if not lacking:
            return
        in_memory = self._first.tier is Tier.RAM
        most = MAX_BYTES_IN_FLIGHT // self._carrier.block_bytes
        now = lacking[: max(most, 1) if in_memory else self._num_blocks_that_may_start()]
        store = self._first.prepare_store([_tier_block(block) for block in now]) if now else None
        if store is not None and store.blocks:
            copy = self._copy_now if in_memory else self._copy_staged
            copy(store)
        if not _has(self._first, _name(victim)):
            self.counters.lost += 1

    def _copy_now(self, store: StoreJob) -> None:
        """By the engine thread: a copy in memory takes far less than computing what it saves."""
        num_written = 0
        for at, block in enumerate(store.blocks):
            device = self._resident[block.identity.key]
            if not self._first.write(store, at, self._carrier.source(device.block_id)):
                break
            num_written += 1
        self._first.complete_store(store, num_written)
        self.counters.written_back += num_written
        self._arrived(store.blocks[:num_written], at_once=False)

    def _copy_staged(self, store: StoreJob) -> None:
        """Through a buffer: the block is reused before a slow tier could have written it."""
        ids = [self._resident[block.identity.key].block_id for block in store.blocks]
        buffers = [bytes(self._carrier.source(block_id)) for block_id in ids]
        job = from_buffers(self._first, store, buffers)

        def settle(_: TransferJob) -> None:
            self._first.complete_store(store, job.num_moved)
            self.counters.written_back += job.num_moved
            self.counters.lost += len(store.blocks) - job.num_moved
            self._arrived(store.blocks[: job.num_moved], at_once=False)

        self._in_flight.submit(job, settle)

    def _lacking(self, last: KVCacheBlock) -> list[KVCacheBlock]:
        """What of the prefix that ends in `last` the first tier neither has nor is about to, heads first."""
        lacking = []
        block: KVCacheBlock | None = last
        while block is not None and block.identity is not None:
            if _has(self._first, block.identity.key):
                break
            lacking.append(block)
            block = self._before(block.identity)
        lacking.reverse()
        return lacking

    def _prefix(self, last: KVCacheBlock) -> list[KVCacheBlock]:
        """All blocks up to `last`: a transfer holds a prefix from its root on, see `BlockPool`."""
        prefix = []
        block: KVCacheBlock | None = last
        while block is not None and block.identity is not None:
            prefix.append(block)
            block = self._before(block.identity)
        prefix.reverse()
        return prefix

    def _before(self, identity: BlockIdentity) -> KVCacheBlock | None:
        return None if identity.parent is None else self._resident[identity.parent]

    # ------------------------------------------------------------------ first tier → those below

    def _arrived(self, blocks: Sequence[TierBlock], *, at_once: bool) -> None:
        """`blocks` are in the first tier now."""
        if not self._lower:
            return
        for block in blocks:
            key = block.identity.key
            if not all(_has(tier, key) for tier in self._lower):
                self._dirty[key] = block
                if at_once:
                    self._urgent[key] = None
        self.write_down()

    def keep_below(self, last: KVCacheBlock) -> None:
        """Write on what the first tier has, but one below has lost, of the prefix that ends in `last`.

        Its copy there may have gone as an ordinary block while hits on the device renewed the promise.
        """
        lost = []
        block: KVCacheBlock | None = last if _has(self._first, _name(last)) else None
        while block is not None and block.identity is not None:
            key = block.identity.key
            if key in self._dirty or all(_has(tier, key) for tier in self._lower):
                break
            lost.append(_tier_block(block))
            block = self._before(block.identity)
        self._arrived(lost[::-1], at_once=False)

    def write_down(self) -> None:
        """Start writing dirty blocks on, as far as bytes in flight allow: what was written through, and all of
        them once the tier is nearly full."""
        while self.has_room and (self._urgent or (self._dirty and self._is_nearly_full())):
            self._write_run_down(self._urgent or self._dirty)

    def write_all_down(self) -> None:
        """Start writing dirty blocks on, as far as bytes in flight allow, whatever they are."""
        while self.has_room and self._dirty:
            self._write_run_down(self._dirty)

    def _is_nearly_full(self) -> bool:
        return self._first.used_bytes >= HIGH_WATER * self._first.capacity_bytes

    def _write_run_down(self, order: Iterable[BlockHash]) -> None:
        """Start writing the dirty run around the first of `order`, or as much of its head as a batch holds."""
        most = max(1, BATCH_BYTES // self._carrier.block_bytes)
        run = self._dirty_run(order, most)
        batch = run[:most]
        readable, _ = self._first.lookup_prefix([block.identity.key for block in batch])
        gone = (
            run[readable:] if readable < len(batch) else []
        )  # evicted before they were written on
        for block in (*batch, *gone):
            self._dirty.pop(block.identity.key, None)
            self._urgent.pop(block.identity.key, None)
        self.counters.lost += len(gone)
        for tier in self._lower if readable else ():
            self._write_batch(batch[:readable], tier)

    def _dirty_run(self, order: Iterable[BlockHash], most: int) -> list[TierBlock]:
        """What is dirty before the first of `order`, that one, and those next to it that continue it."""
        keys = iter(order)
        block: TierBlock | None = self._dirty[next(keys)]
        run = []
        while block is not None:
            run.append(block)
            parent = block.identity.parent
            block = None if parent is None else self._dirty.get(parent)
        run.reverse()
        for key in islice(keys, most):
            if self._dirty[key].identity.parent != run[-1].identity.key:
                break
            run.append(self._dirty[key])
        return run

    def _write_batch(self, batch: Sequence[TierBlock], tier: KVTier) -> None:
        # What was promised since they came here goes with them.
        kept = [TierBlock(b.identity, self._first.retention(b.identity.key)) for b in batch]
        store = tier.prepare_store(kept)
        if store is None:
            self.counters.skipped += len(batch)
            return
        if not store.blocks:
            return
        load = self._first.prepare_load([block.identity.key for block in store.blocks])
        job = between_tiers(self._first, load, tier, store, Urgency.STORE)

        def settle(_: TransferJob) -> None:
            self._first.complete_load(load, job.num_moved)
            tier.complete_store(store, job.num_moved)
            self.counters.written_down += job.num_moved

        self._in_flight.submit(job, settle)


def _tier_block(block: KVCacheBlock) -> TierBlock:
    assert block.identity is not None
    return TierBlock(block.identity, block.retention)


def _has(tier: KVTier, key: BlockHash) -> bool:
    """Whether `tier` has the block or is about to. One that would have to ask is offered it."""
    return tier.lookup(key) in (TierAnswer.HIT, TierAnswer.PENDING)


def _name(block: KVCacheBlock) -> BlockHash:
    assert block.identity is not None
    return block.identity.key
