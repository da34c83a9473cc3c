"""Loads: blocks on their way up, to a request that waits for them or, ahead of it, into RAM.

    PrefixLoad    disk, RAM, … → the blocks that a request has reserved on the device
    Prefetch      disk, …      → RAM, while the request is still in the queue

Both may be cancelled at any moment; what they hold is let go when the threads are done with it. A load that
turns out slower than computing is stopped (`policy.is_too_slow`), and the rest is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.identity import BlockIdentity
from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import KVTier, LoadJob, TierBlock
from ostinato.cache.tiers.carrier import BlockCarrier
from ostinato.cache.tiers.cost import LoadCosts, LoadDecision, TierRun
from ostinato.cache.tiers.in_flight import InFlight
from ostinato.cache.tiers.moves import between_tiers, to_device
from ostinato.cache.tiers.policy import is_too_slow, load_patience
from ostinato.cache.tiers.stores import TransferPins
from ostinato.cache.tiers.transfer import TransferJob, Urgency
from ostinato.cache.types import Tier
from ostinato.clock import Clock


class PrefixLoad:
    """A run of blocks that is being loaded into reserved blocks of the device.

    Attributes:
        runs: what is loaded, in the order of the prompt.
        promises: what was promised to each block in the tier that it comes from.
        decision: the figures behind it.
        started: when it began, in monotonic seconds.
        is_stopped: it was too slow.
        blocks_by_tier: blocks that have arrived without a gap, by tier; final when `is_done`.
    """

    def __init__(self, runs: Sequence[TierRun]) -> None:
        self.runs = runs
        self.promises: list[Retention | None] = []
        self.pinned: list[LoadJob] = []
        self.jobs: list[TransferJob] = []
        self.num_unfinished = len(runs)
        self.decision = LoadDecision()
        self.started = 0.0
        self.is_stopped = False

    @property
    def is_done(self) -> bool:
        """Nothing moves any more."""
        return self.num_unfinished == 0

    @property
    def num_blocks(self) -> int:
        return sum(len(run.keys) for run in self.runs)

    @property
    def blocks_by_tier(self) -> Mapping[Tier, int]:
        arrived: Counter[Tier] = Counter()
        for run, job in zip(self.runs, self.jobs, strict=True):
            arrived[run.tier] += job.num_moved
            if job.num_moved < len(run.keys):
                break
        return arrived

    @property
    def num_arrived(self) -> int:
        """Leading blocks that have arrived; what lies behind a block that failed is lost."""
        return sum(self.blocks_by_tier.values())

    def is_too_slow(self, now: float) -> bool:
        """See `policy.is_too_slow`."""
        arrived = sum(job.num_done for job in self.jobs) / max(self.num_blocks, 1)
        compute_seconds = self.decision.saved_seconds
        patience = load_patience(self.decision.chosen_seconds, compute_seconds)
        return is_too_slow(now - self.started, arrived, patience, compute_seconds)

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        for job in self.jobs:
            job.cancel()


@dataclass(slots=True)
class Prefetch:
    """Blocks on their way into RAM for a request in the queue.

    Attributes:
        deadline: until when (monotonic seconds) the request waits for it once it could start.
        is_done: nothing moves any more.
    """

    deadline: float
    jobs: list[TransferJob] = field(default_factory=list)
    num_unfinished: int = 0

    @property
    def is_done(self) -> bool:
        return self.num_unfinished == 0

    def cancel(self) -> None:
        """Bring nothing more; what has arrived stays."""
        for job in self.jobs:
            job.cancel()


@dataclass(slots=True)
class LoadCounters:
    """Since the start.

    Attributes:
        loaded_blocks: arrived on the device, by the tier they came from.
        failed_blocks: were wanted and did not arrive, by tier; their tokens are computed.
        loads: requests for which something was loaded.
        recomputes: requests for which computing what was found was expected to be faster.
        probes: loads that were made to measure them again.
        prefetched_blocks: brought into RAM for requests in the queue.
        stopped_loads: of `loads`, those that turned out slower than computing the rest.
    """

    loaded_blocks: Counter[Tier] = field(default_factory=Counter)
    failed_blocks: Counter[Tier] = field(default_factory=Counter)
    loads: int = 0
    recomputes: int = 0
    probes: int = 0
    prefetched_blocks: int = 0
    stopped_loads: int = 0


class BlockLoads:
    """Starts and settles loads; which ones is decided by `cost.LoadCosts` and the engine.

    Args:
        tiers: fastest first.
        carrier: the device's side of a copy.
        in_flight: where copies are submitted.
        costs: told how long loads took.
        clock: for how long a load may take.
    """

    def __init__(
        self,
        tiers: Sequence[KVTier],
        carrier: BlockCarrier,
        in_flight: InFlight,
        costs: LoadCosts,
        clock: Clock,
    ) -> None:
        self._tiers = {tier.tier: tier for tier in tiers}
        self._carrier = carrier
        self._in_flight = in_flight
        self._costs = costs
        self._clock = clock
        self._running: list[PrefixLoad] = []
        self._pool: TransferPins | None = None
        self._waiting_bytes: Counter[Tier] = Counter()
        self.counters = LoadCounters()

    def attach(self, pool: TransferPins) -> None:
        """Name the pool into whose blocks is loaded; once, before anything else."""
        self._pool = pool

    @property
    def waiting_bytes(self) -> Mapping[Tier, int]:
        """Still to be loaded for requests, by tier."""
        return self._waiting_bytes

    def pin(self, runs: Sequence[TierRun]) -> PrefixLoad:
        """Keep `runs`, all HIT, where they are until `start` or `unpin`.

        Making room on the device may move other blocks down, and these must not give way to them.
        """
        load = PrefixLoad(runs)
        for run in runs:
            tier = self._tiers[run.tier]
            load.promises += [tier.retention(key) for key in run.keys]
            load.pinned.append(tier.prepare_load(run.keys))
        return load

    def unpin(self, load: PrefixLoad) -> None:
        """Nothing is loaded after all."""
        for run, pinned in zip(load.runs, load.pinned, strict=True):
            self._tiers[run.tier].complete_load(pinned, 0)

    def start(
        self, load: PrefixLoad, blocks: Sequence[KVCacheBlock], decision: LoadDecision
    ) -> None:
        """Load what is pinned into `blocks`, which the caller holds and nobody can find."""
        load.decision, load.started = decision, self._clock.monotonic()
        self._running.append(load)
        start = 0
        for run, pinned in zip(load.runs, load.pinned, strict=True):
            self._start_run(load, run, pinned, blocks[start : start + len(run.keys)])
            start += len(run.keys)
        self.counters.loads += 1

    def stop_slow(self) -> None:
        """Move nothing more for requests that had better compute the rest."""
        if not self._running:
            return
        now = self._clock.monotonic()
        for load in self._running:
            if not load.is_stopped and load.is_too_slow(now):
                load.is_stopped = True
                self.counters.stopped_loads += 1
                for job in load.jobs:
                    self._in_flight.cancel(job)

    def _start_run(
        self, load: PrefixLoad, run: TierRun, pinned: LoadJob, blocks: Sequence[KVCacheBlock]
    ) -> None:
        pool, tier = self._pool, self._tiers[run.tier]
        assert pool is not None
        job = to_device(tier, pinned, self._carrier, [block.block_id for block in blocks])
        load.jobs.append(job)
        pool.begin_transfer(blocks)
        self._waiting_bytes[run.tier] += job.num_bytes

        def settle(_: TransferJob) -> None:
            self._waiting_bytes[run.tier] -= job.num_bytes
            self._end(tier, pinned, job, load)
            pool.end_transfer(blocks)
            load.num_unfinished -= 1
            if load.is_done:
                self._running.remove(load)

        self._in_flight.submit(job, settle)

    def _end(self, tier: KVTier, pinned: LoadJob, job: TransferJob, load: PrefixLoad) -> None:
        tier.complete_load(pinned, job.num_moved)
        meter = self._costs.load[tier.tier]
        # Of one that was stopped without any block, so much is known: it was slower than one.
        num_blocks = max(job.num_moved, 1) if load.is_stopped else job.num_moved
        observe = meter.observe_sample if load.decision.is_probe else meter.observe
        observe(num_blocks * job.block_bytes, job.seconds)
        self.counters.loaded_blocks[tier.tier] += job.num_moved
        if not job.is_cancelled:
            self.counters.failed_blocks[tier.tier] += job.num_blocks - job.num_moved

    def prefetch(
        self,
        into: KVTier,
        runs: Sequence[TierRun],
        blocks: Sequence[BlockIdentity],
        deadline: float,
    ) -> Prefetch:
        """Bring `runs`, as far as `into` has room; a run that is there already is passed over.

        Args:
            into: takes them.
            runs: in the order of the prompt.
            blocks: the names of all their blocks.
            deadline: see `Prefetch`.
        """
        prefetch = Prefetch(deadline)
        start = 0
        for run in runs:
            part = blocks[start : start + len(run.keys)]
            start += len(run.keys)
            if run.tier is not into.tier and not self._prefetch_run(prefetch, into, run, part):
                break
        return prefetch

    def _prefetch_run(
        self, prefetch: Prefetch, into: KVTier, run: TierRun, blocks: Sequence[BlockIdentity]
    ) -> bool:
        """Start with one run; False if there is no room for it, or for its place in a prefix."""
        tier = self._tiers[run.tier]
        store = into.prepare_store([TierBlock(one, tier.retention(one.key)) for one in blocks])
        if store is None or not store.blocks:
            return False
        pinned = tier.prepare_load([block.identity.key for block in store.blocks])
        job = between_tiers(tier, pinned, into, store, Urgency.PREFETCH)
        prefetch.jobs.append(job)
        prefetch.num_unfinished += 1

        def settle(_: TransferJob) -> None:
            tier.complete_load(pinned, job.num_moved)
            into.complete_store(store, job.num_moved)
            self._costs.load[tier.tier].observe(job.num_moved * job.block_bytes, job.seconds)
            self.counters.prefetched_blocks += job.num_moved
            prefetch.num_unfinished -= 1

        self._in_flight.submit(job, settle)
        return True
