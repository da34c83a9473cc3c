"""Retaining: promises and budgets on top of any policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ostinato.cache.eviction.base import E, EvictionPolicy
from ostinato.cache.eviction.ranked import Rank, RankedPolicy
from ostinato.cache.retention import ExpiryQueue, TenantBudgets
from ostinato.cache.types import TenantId
from ostinato.clock import Clock


class Retaining(EvictionPolicy[E]):
    """Gives up, in this order:

    1. what belongs to a tenant that is over budget, its promised entries last;
    2. ordinary entries, in the order of the policy below;
    3. promised entries, soonest deadline first.

    A promise whose deadline has passed is ordinary. Nothing is ever locked: as long as there is a candidate,
    there is a victim.

    Args:
        ordinary: ranks what was not promised.
        clock: of the deadlines.
        budgets: of this place, which this policy charges; None limits nobody.
        size: what one item counts, in the unit of the budgets.
    """

    def __init__(
        self,
        ordinary: EvictionPolicy[E],
        clock: Clock,
        budgets: TenantBudgets | None = None,
        size: int = 1,
    ) -> None:
        self.wants_ghost_keys = ordinary.wants_ghost_keys
        self._ordinary = ordinary
        self._clock = clock
        self._budgets = budgets if budgets is not None else TenantBudgets()
        self._size = size
        self._counts = self._budgets.limits_anybody
        self._promised: ExpiryQueue[E] = ExpiryQueue()
        self._limited: dict[TenantId | None, _OfTenant[E]] = {}
        self._over_budget: dict[TenantId | None, None] = {}

    def add(self, item: E) -> None:
        promise = item.retention
        if promise is not None and promise.holds(self._clock.time()):
            self._promised.schedule(item, promise.until)
        else:
            self._ordinary.add(item)
        if self._budgets.limit(item.tenant) is not None:
            self._limited.setdefault(item.tenant, _OfTenant(self._clock)).add(item)

    def remove(self, item: E) -> None:
        self._remove_from_all(item)
        if self._budgets.limit(item.tenant) is not None:
            self._limited[item.tenant].remove(item)

    def pop_victim(self) -> E:
        for lapsed in self._promised.due(self._clock.time()):
            self._ordinary.add(lapsed)
        for tenant in self._over_budget:
            if len(self._limited.get(tenant, ())):
                victim = self._limited[tenant].pop_victim()
                self._remove_from_all(victim)
                return victim
        victim = self._ordinary.pop_victim() if len(self._ordinary) else self._promised.pop()
        if self._budgets.limit(victim.tenant) is not None:
            self._limited[victim.tenant].remove(victim)
        return victim

    def exchange(self, item: E) -> E:
        if self._counts or item.retention is not None or len(self._promised):
            return super().exchange(item)
        return self._ordinary.exchange(item)

    def on_store(self, items: Sequence[E]) -> None:
        if self._counts:
            for item in items:
                self._charge(item.tenant, self._size)
        self._ordinary.on_store(items)

    def on_reuse(self, items: Sequence[E], now: float) -> None:
        self._ordinary.on_reuse(items, now)

    def on_drop(self, item: E) -> None:
        if self._counts:
            self._charge(item.tenant, -self._size)
        self._ordinary.on_drop(item)

    def _charge(self, tenant: TenantId | None, amount: int) -> None:
        self._budgets.charge(tenant, amount)
        if self._budgets.exceeded(tenant):
            self._over_budget[tenant] = None
        else:
            self._over_budget.pop(tenant, None)

    def _remove_from_all(self, item: E) -> None:
        if item in self._promised:
            self._promised.cancel(item)
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
