"""TierHierarchy: everything below the device pool, as the manager sees it.

    device pool        evicted, or used again         a request needs it
        │   ▲              (stores.py)                    (loads.py)
        ▼   │
       RAM  ──► disk ──► remote

- A prompt is looked up on the device first; what follows the device's match is sought here, block by block in
  the fastest tier that has it (`lookup`), and loaded if that should be faster than computing it (`cost.py`).
- What is copied when is the `WritePolicy`'s choice; that nothing is lost on eviction is not.
- All bookkeeping is the engine thread's. Transfer threads move bytes; `poll` settles what they have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.identity import BlockIdentity
from ostinato.cache.tiers.base import KVTier, TierAnswer, TierStats
from ostinato.cache.tiers.carrier import BlockCarrier
from ostinato.cache.tiers.cost import LoadCosts, LoadDecision, TierRun
from ostinato.cache.tiers.in_flight import InFlight
from ostinato.cache.tiers.loads import BlockLoads, LoadCounters, Prefetch, PrefixLoad
from ostinato.cache.tiers.policy import PrefetchStop, WritePolicy, prefetch_deadline
from ostinato.cache.tiers.promises import TierPromises
from ostinato.cache.tiers.stores import BlockStores, StoreCounters, TransferPins
from ostinato.cache.tiers.transfer import Transfers, Urgency
from ostinato.cache.types import BlockHash, Tier
from ostinato.clock import Clock
from ostinato.errors import CacheIntegrityError

MAX_PREFETCH_BYTES = 512 * 2**20
"""Of all prefetches under way; others start when these have ended."""


MAX_BLOCKS_A_TURN = 128
"""Written through at once of a prefix that is used again: a decoding request must not wait for hundreds."""


@dataclass(frozen=True, slots=True)
class HierarchyStats:
    """A snapshot; immutable, so any thread may read it.

    Attributes:
        tiers: fastest first.
        stores: blocks on their way down since the start.
        loads: blocks on their way up since the start.
        load_rates: measured (or assumed) bytes a second by tier.
        prefill_rate: measured tokens a second; None before the first prefill.
        bytes_in_flight: of loads, prefetches and stores that are under way.
        dirty_blocks: lie in the first tier alone and are still to be written on.
    """

    tiers: tuple[TierStats, ...]
    stores: StoreCounters
    loads: LoadCounters
    load_rates: Mapping[Tier, float]
    prefill_rate: float | None
    bytes_in_flight: Mapping[Urgency, int]
    dirty_blocks: int


class TierHierarchy:
    """See the module's docstring.

    Args:
        tiers: fastest first, at least one, all with blocks of ``carrier.block_bytes``.
        carrier: the device's side of every copy.
        transfers: runs the copies.
        block_size: tokens a block.
        write_policy: what is copied before it must be.
        prefetch_stop: how long a request waits for its prefetch.
        flush_seconds: most that `close` spends on writing what no lasting tier has.
        clock: for deadlines.
    """

    def __init__(
        self,
        tiers: Sequence[KVTier],
        carrier: BlockCarrier,
        transfers: Transfers,
        *,
        block_size: int,
        write_policy: WritePolicy = WritePolicy.WRITE_THROUGH_SELECTIVE,
        prefetch_stop: PrefetchStop = PrefetchStop.BEST_EFFORT,
        flush_seconds: float = 0.0,
        clock: Clock,
    ) -> None:
        self._tiers = tuple(tiers)
        self._block_size = block_size
        self._policy = write_policy
        self._prefetch_stop = prefetch_stop
        self._clock = clock
        self._resident: dict[BlockHash, KVCacheBlock] = {}
        self._in_flight = InFlight(transfers)
        self._costs = LoadCosts(block_size, carrier.block_bytes)
        self._stores = BlockStores(self._tiers, carrier, self._in_flight, self._resident)
        self._promises = TierPromises(self._tiers, self._resident)
        self._loads = BlockLoads(self._tiers, carrier, self._in_flight, self._costs, clock)
        self._flush_seconds = flush_seconds
        self._reused: dict[BlockHash, None] = {}
        self._is_closed = False

    def attach(self, pool: TransferPins) -> None:
        """Name the pool that these tiers lie behind; once, before anything else."""
        self._stores.attach(pool)
        self._loads.attach(pool)

    # ------------------------------------------------------------------ what happens on the device

    def published(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Full `blocks`, consecutive ones of one prefix and all with an identity, have become findable."""
        for block in blocks:
            assert block.identity is not None
            self._resident[block.identity.key] = block
        if blocks and self._policy.on_publish:
            self._stores.write_through(blocks[-1])

    def reused(self, last: KVCacheBlock) -> None:
        """Another request uses the prefix that ends in `last`. What follows from it is left to `tend`, since a
        first token waits for this call."""
        if last.identity is not None:
            self._reused[last.identity.key] = None

    def tend(self) -> None:
        """Write through what was used again since the last call, and keep what the tiers hold of it young."""
        reused, self._reused = self._reused, {}
        for key in reused:
            last = self._resident.get(key)
            if last is None or last.identity is None:
                continue  # evicted meanwhile, and written back then
            if self._policy.on_reuse and not self._stores.write_through(last, MAX_BLOCKS_A_TURN):
                self._reused[key] = None
            else:
                self._touch_deepest(last)
            self._promises.renew(last)

    def evicting(self, block: KVCacheBlock) -> None:
        """`block` is about to give way to others; it and its prefix can still be found."""
        if block.identity is not None:
            self._stores.write_back(block)
            if block.retention is not None:  # hits on the device may have moved its deadline on
                self._promises.make([block])
                self._stores.keep_below(block)

    def forgotten(self, block: KVCacheBlock) -> None:
        """`block` can no longer be found on the device."""
        if block.identity is not None:
            del self._resident[block.identity.key]
            block.identity = None

    def erase(self, keys: Sequence[BlockHash]) -> None:
        """Remove `keys` and all that stands behind them, from every tier."""
        for tier in self._tiers:
            tier.erase(keys)

    def promised(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Findable `blocks`, consecutive ones of one prefix and all with an identity, are promised to stay.

        The tiers promise the same for their copies. Somebody said that the prefix will be used again, so what
        the policy would copy at a second use is copied now, and outlives a crash.
        """
        self._promises.make(blocks)
        if blocks and self._policy.on_reuse:
            self._stores.write_through(blocks[-1])

    def expire(self) -> None:
        """Erase what has passed a hard deadline, in every tier."""
        for tier in self._tiers:
            tier.expire()

    def _touch_deepest(self, last: KVCacheBlock) -> None:
        """Keep what the tiers hold of a prefix that is used on the device young.

        Touching the deepest block that a tier has is enough: nothing before it can go while it stays, and when
        it goes the one before it inherits its age.
        """
        for tier in self._tiers:
            held = self._promises.deepest(last, tier)
            if held is not None and held.identity is not None:
                tier.touch([held.identity.key])

    # ------------------------------------------------------------------ loads

    def lookup(self, keys: Sequence[BlockHash]) -> tuple[list[TierRun], bool]:
        """The longest run of leading `keys` that can be loaded, each from the fastest tier that has it.

        Returns:
            The run, cut where the tier changes; and whether a tier does not know yet if it goes on.
        """
        runs: list[TierRun] = []
        at = 0
        while at < len(keys):
            rest = keys[at:]
            is_unsettled = False
            for tier in self._tiers:
                count, answer = tier.lookup_prefix(rest)
                if count:
                    runs.append(TierRun(tier.tier, tuple(rest[:count])))
                    at += count
                    break
                is_unsettled |= answer is TierAnswer.RETRY
            else:
                return runs, is_unsettled
        return runs, False

    def decide(self, runs: Sequence[TierRun]) -> tuple[Sequence[TierRun], LoadDecision]:
        """Which leading `runs` are worth loading; see `cost.LoadCosts`."""
        return self._costs.decide(runs, self._loads.waiting_bytes)

    def accept(self, decision: LoadDecision) -> None:
        """A request starts with `decision`."""
        self._costs.accept(decision)
        self._loads.counters.probes += decision.is_probe
        self._loads.counters.recomputes += decision.found_tokens > 0 == decision.load_tokens

    def pin(self, runs: Sequence[TierRun]) -> PrefixLoad:
        """Keep `runs`, fresh from `lookup`, where they are until `load` or `unpin`."""
        return self._loads.pin(runs)

    def unpin(self, load: PrefixLoad) -> None:
        """Nothing is loaded after all."""
        self._loads.unpin(load)

    def load(
        self, load: PrefixLoad, blocks: Sequence[KVCacheBlock], decision: LoadDecision
    ) -> None:
        """Start loading into `blocks`, which the caller holds and nobody can find."""
        self._loads.start(load, blocks, decision)

    def take_over(self, load: PrefixLoad, blocks: Sequence[KVCacheBlock]) -> None:
        """The `blocks` that `load` brought are findable now: mark their use, fill the first tier."""
        by_name = {tier.tier: tier for tier in self._tiers}
        for run in load.runs:
            by_name[run.tier].touch(run.keys)
        if blocks and any(run.tier is not self._tiers[0].tier for run in load.runs):
            self._stores.write_through(blocks[-1])
        if blocks:
            self._promises.take_over(blocks[-1])

    def prefetch(
        self, runs: Sequence[TierRun], blocks: Sequence[BlockIdentity], last: KVCacheBlock | None
    ) -> Prefetch | None:
        """Bring `runs` into RAM for a request in the queue.

        Args:
            runs: fresh from `lookup`.
            blocks: the names of all their blocks.
            last: the block of the device that they follow.

        Returns:
            None if too much is under way: ask again later. Done at once if there is nothing to bring.
        """
        if self._in_flight.num_bytes(Urgency.PREFETCH) >= MAX_PREFETCH_BYTES:
            return None
        first = self._tiers[0]
        if first.tier is not Tier.RAM or all(run.tier is Tier.RAM for run in runs):
            return Prefetch(self._clock.monotonic())
        if last is not None and last.identity is not None:
            self._stores.write_through(last)  # RAM takes no tail without its head
        num_tokens = len(blocks) * self._block_size
        deadline = prefetch_deadline(self._prefetch_stop, num_tokens, self._clock)
        return self._loads.prefetch(first, runs, blocks, deadline)

    # ------------------------------------------------------------------ progress

    @property
    def num_in_flight(self) -> int:
        """Transfers of any kind that are under way."""
        return len(self._in_flight)

    @property
    def num_device_stores(self) -> int:
        """Stores under way that keep blocks of the device from being reused."""
        return self._stores.num_from_device

    @property
    def is_quiet(self) -> bool:
        """Nothing is under way, and `poll` has nothing to start that it knows of."""
        return not self._in_flight and not self._reused

    @property
    def num_settled(self) -> int:
        """Transfers that have ended since the start."""
        return self._in_flight.num_settled

    def poll(self) -> None:
        """`settle` and `tend`."""
        self.settle()
        self.tend()

    def settle(self) -> None:
        """Stop loads that are too slow, settle what has ended and write down what waits for room."""
        self._loads.stop_slow()
        if self._in_flight.poll():
            self._stores.write_down()

    def on_transfer_end(self, notify: Callable[[], None]) -> None:
        """Have `notify` called, from another thread, whenever there is something for `poll` to settle."""
        self._in_flight.on_end(notify)

    def wait(self, timeout: float) -> bool:
        """Sleep until a transfer ends, at most `timeout` seconds, and settle it; True if one did."""
        self.tend()
        return self._in_flight.wait(timeout)

    def observe_prefill(self, num_tokens: int, seconds: float) -> None:
        """Computing `num_tokens` of prompts took so long."""
        self._costs.prefill.observe(num_tokens, seconds)

    def stats(self) -> HierarchyStats:
        loads = self._loads.counters
        return HierarchyStats(
            tiers=tuple(tier.stats() for tier in self._tiers),
            stores=replace(self._stores.counters),
            loads=replace(
                loads,
                loaded_blocks=loads.loaded_blocks.copy(),
                failed_blocks=loads.failed_blocks.copy(),
            ),
            load_rates={tier.tier: self._costs.load[tier.tier].rate or 0.0 for tier in self._tiers},
            prefill_rate=self._costs.prefill.rate,
            bytes_in_flight={urgency: self._in_flight.num_bytes(urgency) for urgency in Urgency},
            dirty_blocks=self._stores.num_dirty,
        )

    def check_integrity(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Verify every tier, and that the names of the device's `blocks` (all of them) are right. O(blocks).

        Raises:
            CacheIntegrityError: naming what is wrong.
        """
        for tier in self._tiers:
            tier.check_integrity()
        named = 0
        for block in blocks:
            if block.identity is None:
                continue
            named += 1
            if block.entry is None or self._resident.get(block.identity.key) is not block:
                raise CacheIntegrityError(f"{block!r} has a name but cannot be found under it")
            parent = block.identity.parent
            if parent is not None and parent not in self._resident:
                raise CacheIntegrityError(f"{block!r} is named, the block before it is not")
        if named != len(self._resident):
            raise CacheIntegrityError(f"{len(self._resident)} names for {named} named blocks")

    def close(self) -> None:
        """Write what no lasting tier has, newest first, for at most `flush_seconds`; then give everything back.

        What is committed stays, whatever happens; what is not is lost, as if the process had been killed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.tend()
        deadline = self._clock.monotonic() + self._flush_seconds
        if self._tiers[-1].tier is not Tier.RAM and self._flush_seconds > 0:
            self._flush(deadline)
        self._in_flight.close(max(deadline - self._clock.monotonic(), 0.0))
        for tier in self._tiers:
            tier.close()

    def _flush(self, deadline: float) -> None:
        for block in reversed(self._resident.values()):
            while self._in_flight.num_bytes(Urgency.STORE) and not self._stores.has_room:
                if not self._wait_until(deadline):
                    return
            if self._clock.monotonic() >= deadline:
                return
            self._stores.write_through(block)
            self._promises.make([block])
        while self._stores.num_dirty or self._in_flight:
            self._stores.write_all_down()
            if not self._wait_until(deadline):
                return

    def _wait_until(self, deadline: float) -> bool:
        """Sleep until a transfer ends; False if nothing is under way or the time is over."""
        left = deadline - self._clock.monotonic()
        return left > 0 and self._in_flight.wait(left)
