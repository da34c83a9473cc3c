"""In which order waiting requests are tried, and which of them had better wait for another.

Policies only: nothing here changes a request, a queue or the cache.

Order (`lpm`). Preempted requests come first, oldest first, since others wait for what they hold up. Then the
tenants share: the next request is always one of the tenant that has had the least service (`fair_share.py`).
Which of its requests is decided by a score in tokens, the highest first:

      cached tokens  +  age_weight × seconds waited  − PRIORITY_TOKENS × priority

The first term is longest-prefix-first (SGLang): what is cached is used while it is hot. The second ends
every wait within a tenant, since age grows without bound and the other terms do not; between tenants the
counters do, since only those who are served move up. The last is a head start, not a class of its own: with the
default weight of age a step of priority is 16 seconds. Cache, age and priority of one tenant's requests
therefore never push another tenant's back.

Above `MAX_LOOKUPS` waiting requests, looking all of them up costs more than it gains. Then only the first so
many are, by the same order with nothing cached.

`fcfs` is the order of arrival, after preempted requests; it reads neither cache, tenant nor priority.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import TenantId, TokenArray
from ostinato.engine.fair_share import TenantService
from ostinato.engine.request import Request, RequestStatus

MAX_LOOKUPS = 128
"""Most requests of which a prefix is looked up in one step."""

PRIORITY_TOKENS = 1024
"""Cached tokens that one step of priority is worth."""

SortKey: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A waiting request, with what a policy may weigh.

    Attributes:
        request: the request; read only.
        cached_tokens: leading tokens that are in the cache now.
        waited_seconds: since it arrived.
    """

    request: Request
    cached_tokens: int
    waited_seconds: float


@dataclass(frozen=True, slots=True)
class QueueView:
    """What an order may look at.

    Attributes:
        waiting: the requests to put in order.
        now: monotonic seconds.
        cached_tokens: looks a request's prefix up.
        service: what each tenant has had.
        in_service: tokens of all running requests, by tenant.
    """

    waiting: Sequence[Request]
    now: float
    cached_tokens: Callable[[Request], int]
    service: TenantService
    in_service: Mapping[TenantId, int]


class WaitingOrder(Protocol):
    """Which waiting request is tried first."""

    def arrange(self, view: QueueView) -> list[Request]:
        """The waiting requests, or the first of them, in the order in which to try them."""
        ...


class LongestPrefixFirst:
    """The order of the module's docstring.

    Args:
        age_weight: tokens that one second of waiting is worth.
    """

    def __init__(self, age_weight: float) -> None:
        self._age_weight = age_weight

    def arrange(self, view: QueueView) -> list[Request]:
        chosen = view.waiting
        if len(chosen) > MAX_LOOKUPS:
            chosen = self._in_order(view, chosen, lambda request: 0)[:MAX_LOOKUPS]
        return self._in_order(view, chosen, view.cached_tokens)

    def sort_key(self, candidate: Candidate) -> SortKey:
        """Order within a tenant: the smallest key first."""
        age = self._age_weight * candidate.waited_seconds
        head_start = -PRIORITY_TOKENS * candidate.request.priority
        return (-(candidate.cached_tokens + age + head_start), *candidate.request.arrival_order)

    def _in_order(
        self, view: QueueView, requests: Sequence[Request], cached_tokens: Callable[[Request], int]
    ) -> list[Request]:
        candidates = [
            Candidate(request, cached_tokens(request), view.now - request.arrival_time)
            for request in requests
        ]
        candidates.sort(key=self.sort_key)
        return by_fair_share(candidates, view.service, view.in_service)


class FirstComeFirstServed:
    """Arrival order, after preempted requests."""

    def arrange(self, view: QueueView) -> list[Request]:
        preempted = RequestStatus.PREEMPTED
        return sorted(
            view.waiting, key=lambda one: (one.status is not preempted, one.arrival_order)
        )


def by_fair_share(
    candidates: Iterable[Candidate], service: TenantService, in_service: Mapping[TenantId, int]
) -> list[Request]:
    """Preempted requests by arrival, then the others in the order in which fairness admits them.

    Plays the admissions through: the tenant with the smallest counter gives its next request and is charged
    for it. Of equal counters, whoever has less in service goes first, then whose next request is older.

    Args:
        candidates: each tenant's own in the order in which it is to be served.
        service: the counters; not changed.
        in_service: tokens that run, by tenant.
    """
    preempted: list[Request] = []
    queues: defaultdict[TenantId, deque[Candidate]] = defaultdict(deque)
    for candidate in candidates:
        if candidate.request.status is RequestStatus.PREEMPTED:
            preempted.append(candidate.request)
        else:
            queues[candidate.request.tenant].append(candidate)
    turns = [
        (
            service.virtual_tokens(tenant),
            in_service.get(tenant, 0),
            queue[0].request.arrival_order,
            tenant,
        )
        for tenant, queue in queues.items()
    ]
    heapq.heapify(turns)
    ordered = sorted(preempted, key=lambda request: request.arrival_order)
    while turns:
        counter, running, _, tenant = turns[0]
        candidate = queues[tenant].popleft()
        ordered.append(candidate.request)
        if not queues[tenant]:
            heapq.heappop(turns)
            continue
        num_tokens = candidate.request.num_tokens
        counter += service.price(tenant, num_tokens - candidate.cached_tokens)
        oldest = queues[tenant][0].request.arrival_order
        heapq.heapreplace(turns, (counter, running + num_tokens, oldest, tenant))
    return ordered


class PrefixGate(Protocol):
    """Whether a waiting request should let a running one compute their common prefix first."""

    def should_wait(
        self, request: Request, cached_tokens: int, running: Iterable[Request]
    ) -> bool: ...


class OpenGate:
    """Nobody waits: without a prefix index there is nothing to wait for."""

    def should_wait(self, request: Request, cached_tokens: int, running: Iterable[Request]) -> bool:
        return False


class SharedPrefixGate:
    """Wait while a running prefill is about to publish at least `MIN_BLOCKS` more blocks of one's prefix.

    Nobody starves: a running prefill either gets on, and then its blocks are cached, or it leaves the
    running requests, and then nobody waits for it.

    Args:
        block_size: tokens a block; only full blocks are published while a request runs.
    """

    MIN_BLOCKS = 2

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def should_wait(self, request: Request, cached_tokens: int, running: Iterable[Request]) -> bool:
        wanted = cached_tokens + self.MIN_BLOCKS * self._block_size
        # The last token is always computed, so it is of no use to find it.
        own = request.token_ids[:-1]
        if len(own) < wanted:
            return False
        return any(
            other.is_prefilling
            and other.namespace == request.namespace
            and self._publishable(own, other.token_ids) >= wanted
            for other in running
        )

    def _publishable(self, own: TokenArray, other: TokenArray) -> int:
        common = common_prefix(own, other)
        return common - common % self._block_size
