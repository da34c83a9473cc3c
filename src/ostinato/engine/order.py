"""In which order waiting requests are tried, and which of them had better wait for another.

Policies only: nothing here changes a request, a queue or the cache.

Order. Preempted requests come first, oldest first, since others wait for what they hold up. Then by
`EngineRequest.priority`. Then by a score in tokens, the highest first:

    cached tokens  +  age_weight × seconds waited  −  tokens in service of the same tenant

The first term is longest-prefix-first (SGLang): what is cached is used while it is hot. The second ends
every wait, since age grows without bound and the other terms do not. The third is the fair share: it is
equal for all requests of one tenant, and between tenants it favours the one that is served least.

Above `MAX_LOOKUPS` waiting requests, looking all of them up costs more than it gains; then arrival decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import TokenArray
from ostinato.engine.request import Request, RequestStatus

MAX_LOOKUPS = 128
"""Most requests of which a prefix is looked up in one step."""

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
        score = candidate.cached_tokens + age - candidate.tenant_tokens
        return (*_rank(candidate.request), -score, *candidate.request.arrival_order)


class FirstComeFirstServed:
    """Arrival order, after preemption and priority."""

    def sort_key(self, candidate: Candidate) -> SortKey:
        return arrival_key(candidate.request)


def arrival_key(request: Request) -> SortKey:
    """Sort key that needs nothing but the request."""
    return (*_rank(request), *request.arrival_order)


def _rank(request: Request) -> tuple[float, float]:
    if request.status is RequestStatus.PREEMPTED:
        return (0.0, 0.0)
    return (1.0, float(request.priority))


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
