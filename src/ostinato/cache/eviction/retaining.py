"""Retaining: promises and budgets on top of any policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ostinato.cache.eviction.base import E, EvictionPolicy
from ostinato.cache.eviction.promised import PromiseCounts, PromisedCandidates
from ostinato.cache.eviction.ranked import Rank, RankedPolicy
from ostinato.cache.retention import TenantBudgets
from ostinato.cache.types import TenantId
from ostinato.clock import Clock


class Retaining(EvictionPolicy[E]):
    """Gives up, in this order:

    1. what belongs to a tenant that is over budget, its promised entries last;
    2. what a tenant without a budget was promised beyond its share, soonest deadline first;
    3. ordinary entries, in the order of the policy below;
    4. promised entries, soonest deadline first.

    The share is the place divided by the number of tenants that have anything there: who is alone may have all
    of it promised, and nobody can keep others out by promises. A promise whose deadline has passed is ordinary.
    Nothing is ever locked: as long as there is a candidate, there is a victim.

    Args:
        ordinary: ranks what was not promised.
        clock: of the deadlines.
        budgets: of this place, which this policy charges; None limits nobody.
        size: what one item counts, in the unit of the budgets.
        capacity: of this place, in the same unit; None: promises have no share.
    """

    def __init__(
        self,
        ordinary: EvictionPolicy[E],
        clock: Clock,
        budgets: TenantBudgets | None = None,
        size: int = 1,
        capacity: int | None = None,
    ) -> None:
        self.wants_ghost_keys = ordinary.wants_ghost_keys
        self._ordinary = ordinary
        self._clock = clock
        self._budgets = budgets if budgets is not None else TenantBudgets()
        self._size = size
        self._capacity = capacity
        self._promised: PromisedCandidates[E] = PromisedCandidates()
        self._promises: PromiseCounts[E] = PromiseCounts()
        self._limited: dict[TenantId | None, _OfTenant[E]] = {}
        self._over_budget: dict[TenantId | None, None] = {}

    def add(self, item: E) -> None:
        promise = item.retention
        if promise is not None and promise.holds(self._clock.time()):
            self._promised.add(item, promise.until)
        else:
            self._ordinary.add(item)
        if self._budgets.limit(item.tenant) is not None:
            self._limited.setdefault(item.tenant, _OfTenant(self._clock)).add(item)

    def remove(self, item: E) -> None:
        self._remove_from_all(item)
        if self._budgets.limit(item.tenant) is not None:
            self._limited[item.tenant].remove(item)

    def pop_victim(self) -> E:
        now = self._clock.time()
        for lapsed in self._promised.due(now):
            self._ordinary.add(lapsed)
        for tenant in self._over_budget:
            if len(self._limited.get(tenant, ())):
                victim = self._limited[tenant].pop_victim()
                self._remove_from_all(victim)
                return victim
        self._promises.lapse(now)
        greedy = self._beyond_share()
        if greedy:
            return self._promised.pop_of(greedy[0])
        victim = self._ordinary.pop_victim() if len(self._ordinary) else self._promised.pop()
        if self._budgets.limit(victim.tenant) is not None:
            self._limited[victim.tenant].remove(victim)
        return victim

    def _beyond_share(self) -> Sequence[TenantId | None]:
        """A tenant without a budget that was promised more than its share and has a candidate; or none."""
        if self._capacity is None or not len(self._promised):
            return ()
        share = self._capacity // max(self._budgets.num_tenants, 1)
        if self._promises.total * self._size <= share:
            return ()
        for tenant, count in self._promises.counts.items():
            beyond = count * self._size > share and self._budgets.limit(tenant) is None
            if beyond and self._promised.has_any_of(tenant):
                return (tenant,)
        return ()

    def exchange(self, item: E) -> E:
        if self._budgets.limits_anybody or item.retention is not None or len(self._promised):
            return super().exchange(item)
        return self._ordinary.exchange(item)

    def on_store(self, items: Sequence[E]) -> None:
        self._charge(items[0].tenant, self._size * len(items))
        now = self._clock.time()
        for item in items:
            if item.retention is not None:
                self._promises.note(item, now)
        self._ordinary.on_store(items)

    def on_reuse(self, items: Sequence[E], now: float) -> None:
        self._ordinary.on_reuse(items, now)

    def on_promise(self, item: E) -> None:
        self._promises.note(item, self._clock.time())
        self._ordinary.on_promise(item)

    def on_drop(self, item: E) -> None:
        self._charge(item.tenant, -self._size)
        if item.retention is not None:
            self._promises.forget(item)
        self._ordinary.on_drop(item)

    def _charge(self, tenant: TenantId | None, amount: int) -> None:
        self._budgets.charge(tenant, amount)
        if not self._budgets.limits_anybody:
            return
        if self._budgets.exceeded(tenant):
            self._over_budget[tenant] = None
        else:
            self._over_budget.pop(tenant, None)

    def _remove_from_all(self, item: E) -> None:
        if item in self._promised:
            self._promised.remove(item)
        else:
            self._ordinary.remove(item)

    def __len__(self) -> int:
        return len(self._ordinary) + len(self._promised)

    def __iter__(self) -> Iterator[E]:
        yield from self._ordinary
        yield from self._promised


class _OfTenant(RankedPolicy[E]):
    """One tenant's candidates: ordinary before promised ones, least recently used first."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def rank(self, item: E) -> Rank:
        promise = item.retention
        promised = promise is not None and promise.holds(self._clock.time())
        return promised, item.last_used, -item.depth
