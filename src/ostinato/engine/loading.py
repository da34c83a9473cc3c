"""LoadQueue: the requests whose K/V is on its way from a lower tier, and those for which it will be.

                            admitted, something to load          load done
    WAITING / PREEMPTED ─────────────────────────────► WAITING_FOR_LOAD ─────► RUNNING
         │  prefetch: into RAM while it waits           holds all its blocks;     with what arrived; the rest
         └──────────────────────────────────────        others run on             is computed

A request that is broken off while it loads gives its blocks back at once; the pool keeps them from being reused
until the transfer threads are done with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ostinato.cache.manager import KVCacheManager
from ostinato.cache.prefix_loader import LoadPlan, PrefixLoader
from ostinato.cache.tiers.loads import Prefetch, PrefixLoad
from ostinato.clock import Clock
from ostinato.engine.request import Request, RequestStatus

SETTLE_SECONDS = 0.5
"""How long a request waits for a tier that does not know yet what it has (a remote one)."""

STORE_WAIT_SECONDS = 1.0
"""How long a running request that lacks blocks waits for stores that hold some, before others are preempted."""

MOSTLY_PREFILL = 0.75
"""Share of a step's tokens from which on its duration says how fast prompts are computed."""

PREFETCH_LOOKUPS = 4
"""Most requests for which a prefetch is begun in one step."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that may run.

    Attributes:
        request: whose load has ended.
        resumes: it ran before and was preempted.
    """

    request: Request
    resumes: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    request: Request
    plan: LoadPlan
    load: PrefixLoad
    resumes: bool


class LoadQueue:
    """See the module's docstring.

    Args:
        manager: of the K/V cache.
        loader: seeks and loads; None where there is nothing below the device: then all of this does nothing.
        clock: for deadlines.
    """

    def __init__(self, manager: KVCacheManager, loader: PrefixLoader | None, clock: Clock) -> None:
        self._manager = manager
        self._loader = loader
        self._clock = clock
        self._entries: dict[Request, _Entry] = {}
        self._to_prefetch: deque[Request] = deque()
        self._prefetches: dict[Request, Prefetch] = {}
        self._asked: dict[Request, float] = {}
        self._num_settled = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """Requests that hold blocks and wait for their K/V."""
        return iter(self._entries)

    @property
    def num_seqs(self) -> int:
        """Sequences that they stand for."""
        return sum(request.num_seqs for request in self._entries)

    @property
    def num_transfers(self) -> int:
        """Transfers of any kind that are under way."""
        return 0 if self._loader is None else self._loader.tiers.num_in_flight

    # ------------------------------------------------------------------ in the queue

    def enqueued(self, request: Request) -> None:
        """`request` waits from now on."""
        if self._loader is not None:
            self._to_prefetch.append(request)

    def prefetch(self) -> None:
        """Begin prefetches for requests that wait, in the order of their arrival."""
        for _ in range(PREFETCH_LOOKUPS):
            if self._loader is None or not self._to_prefetch:
                return
            request = self._to_prefetch[0]
            if request.status is RequestStatus.WAITING:
                match = self._manager.lookup(
                    request.namespace, request.token_ids, request.hashes, request.tenant
                )
                prefetch = self._loader.prefetch(match, request.token_ids)
                if prefetch is None:
                    return
                self._prefetches[request] = prefetch
            self._to_prefetch.popleft()

    def must_wait(self, request: Request, plan: LoadPlan) -> bool:
        """Whether `request`, whose turn it is, should let others go first."""
        now = self._clock.monotonic()
        prefetch = self._prefetches.get(request)
        if prefetch is not None and not prefetch.is_done:
            if now < prefetch.deadline:
                return True
            prefetch.cancel()
        if not plan.is_unsettled:
            return False
        return now < self._asked.setdefault(request, now) + SETTLE_SECONDS

    def left(self, request: Request) -> None:
        """`request` does not wait any more."""
        prefetch = self._prefetches.pop(request, None)
        if prefetch is not None:
            prefetch.cancel()
        self._asked.pop(request, None)

    # ------------------------------------------------------------------ loading

    def begin(self, request: Request, plan: LoadPlan, load: PrefixLoad) -> None:
        """`request` holds its blocks; load what is pinned into them."""
        assert self._loader is not None
        self._loader.start(request.block_table, plan, load)
        resumes = request.status is RequestStatus.PREEMPTED
        self._entries[request] = _Entry(request, plan, load, resumes)

    def poll(self) -> bool:
        """Settle transfers that have ended; True if any has since the last call, whoever settled it."""
        if self._loader is None:
            return False
        self._loader.tiers.settle()
        before, self._num_settled = self._num_settled, self._loader.tiers.num_settled
        return self._num_settled > before

    def take_arrived(self) -> list[Arrival]:
        """Requests whose load has ended, each with what has arrived published and counted as computed."""
        arrived = []
        for entry in list(self._entries.values()):
            if entry.load.is_done:
                del self._entries[entry.request]
                self._finish(entry)
                arrived.append(Arrival(entry.request, entry.resumes))
        return arrived

    def _finish(self, entry: _Entry) -> None:
        assert self._loader is not None
        request = entry.request
        request.num_computed_tokens = self._loader.finish(
            request.block_table, request.token_ids, entry.plan, entry.load
        )
        if request.report is None:
            request.report = entry.plan.report(entry.load, self._manager.block_size)

    def observe_step(self, num_tokens: Sequence[int], seconds: float) -> None:
        """Learn how fast prompts are computed, from steps in which little else was.

        Args:
            num_tokens: of each request in the step.
            seconds: that the step took.
        """
        prefill = sum(count for count in num_tokens if count > 1)
        if self._loader is not None and prefill >= MOSTLY_PREFILL * sum(num_tokens):
            self._loader.tiers.observe_prefill(prefill, seconds)

    def abandon(self, request: Request) -> None:
        """`request` is broken off; its table is released by the caller."""
        self._entries.pop(request).load.cancel()

    def wait_for_stores(self) -> bool:
        """Wait for a copy that keeps blocks of the device from being reused to end; False if there is none."""
        if self._loader is None or not self._loader.tiers.num_device_stores:
            return False
        return self._loader.tiers.wait(STORE_WAIT_SECONDS)
