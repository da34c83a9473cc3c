"""In which order waiting requests are tried, and which of them had better wait for another.

Policies only: nothing here changes a request, a queue or the cache.

Order (`lpm`). Preempted requests come first, oldest first, since others wait for what they hold up. Then by
a score in tokens, the highest first:

      cached tokens  +  age_weight × seconds waited
    − tokens in service of the same tenant  −  PRIORITY_TOKENS × priority

The first term is longest-prefix-first (SGLang): what is cached is used while it is hot. The second ends
every wait, since age grows without bound and the other terms do not. The third is the fair share: it is
equal for all requests of one tenant, and between tenants it favours the one that is served least. The last
is a head start, not a class of its own: with the default weight of age a step of priority is 16 seconds.

Above `MAX_LOOKUPS` waiting requests, looking all of them up costs more than it gains. Then the tenants take
turns in naming one of theirs, each by the same score without its first term, until there are so many.

`fcfs` is the order of arrival, after preempted requests; it reads neither cache, tenant nor priority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import TenantId, TokenArray
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
        tenant_tokens: tokens of all running requests of its tenant.
    """

    request: Request
    cached_tokens: int
    waited_seconds: float
    tenant_tokens: int


class WaitingOrder(Protocol):
    """Which waiting request is tried first: the one with the smallest key."""

    def sort_key(self, candidate: Candidate) -> SortKey: ...


class LongestPrefixFirst:
    """The score of the module's docstring.

    Args:
        age_weight: tokens that one second of waiting is worth.
    """

    def __init__(self, age_weight: float) -> None:
        self._age_weight = age_weight

    def sort_key(self, candidate: Candidate) -> SortKey:
        age = self._age_weight * candidate.waited_seconds
        head_start = -PRIORITY_TOKENS * candidate.request.priority
        score = candidate.cached_tokens + age - candidate.tenant_tokens + head_start
        if candidate.request.status is RequestStatus.PREEMPTED:
            return (0, 0.0, *candidate.request.arrival_order)
        return (1, -score, *candidate.request.arrival_order)


class FirstComeFirstServed:
    """Arrival order, after preempted requests."""

    def sort_key(self, candidate: Candidate) -> SortKey:
        fresh = candidate.request.status is not RequestStatus.PREEMPTED
        return (fresh, *candidate.request.arrival_order)


def by_turns(
    waiting: Iterable[Request], key: Callable[[Request], SortKey], limit: int
) -> list[Request]:
    """At most `limit` of `waiting`: preempted ones first, then the tenants take turns, each by `key`."""
    turns: Counter[TenantId] = Counter()
    drawn: list[tuple[int, Request]] = []
    for request in sorted(waiting, key=key):
        preempted = request.status is RequestStatus.PREEMPTED
        drawn.append((-1 if preempted else turns[request.tenant], request))
        turns[request.tenant] += not preempted
    drawn.sort(key=lambda pair: pair[0])  # stable: within a turn by `key`
    return [request for _, request in drawn[:limit]]


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
