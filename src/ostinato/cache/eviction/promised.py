"""What a policy has to know of promises: which candidates were promised, and how much each tenant holds so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Generic

from ostinato.cache.eviction.base import E
from ostinato.cache.retention import ExpiryQueue
from ostinato.cache.types import TenantId


class PromisedCandidates(Generic[E]):
    """Candidates whose promise holds, by tenant and deadline."""

    def __init__(self) -> None:
        self._queues: dict[TenantId | None, ExpiryQueue[E]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, item: E) -> bool:
        queue = self._queues.get(item.tenant)
        return queue is not None and item in queue

    def __iter__(self) -> Iterator[E]:
        for queue in self._queues.values():
            yield from queue

    def add(self, item: E, until: float) -> None:
        """`item` is promised to stay until then."""
        queue = self._queues.setdefault(item.tenant, ExpiryQueue())
        queue.schedule(item, until)
        self._length += 1

    def remove(self, item: E) -> None:
        """Take out `item`, which is in."""
        queue = self._queues[item.tenant]
        queue.cancel(item)
        self._length -= 1
        self._forget_if_empty(item.tenant)

    def has_any_of(self, tenant: TenantId | None) -> bool:
        """Whether a candidate of `tenant` is in."""
        return tenant in self._queues

    def pop_of(self, tenant: TenantId | None) -> E:
        """Take out the tenant's candidate with the soonest deadline; there is one."""
        item = self._queues[tenant].pop()
        self._length -= 1
        self._forget_if_empty(tenant)
        return item

    def pop(self) -> E:
        """Take out the candidate with the soonest deadline of all.

        Raises:
            IndexError: if there is none.
        """
        if not self._length:
            raise IndexError("nothing is promised")
        return self.pop_of(min(self._queues, key=self._next_deadline))

    def due(self, now: float) -> list[E]:
        """Take out those whose promise is over."""
        items: list[E] = []
        for tenant, queue in list(self._queues.items()):
            due = queue.due(now)
            if due:
                items += due
                self._length -= len(due)
                self._forget_if_empty(tenant)
        return items

    def _next_deadline(self, tenant: TenantId | None) -> float:
        until = self._queues[tenant].next_deadline()
        return float("inf") if until is None else until

    def _forget_if_empty(self, tenant: TenantId | None) -> None:
        if not len(self._queues[tenant]):
            del self._queues[tenant]


class PromiseCounts(Generic[E]):
    """How many stored items of each tenant are promised to stay, candidates or not.

    A hit moves deadlines on, often, and costs nothing here: an item is looked at again when the deadline passes
    that it had when it came in. So one whose promise was shortened meanwhile counts until then.
    """

    def __init__(self) -> None:
        self._lapses: ExpiryQueue[E] = ExpiryQueue()
        self._counts: Counter[TenantId | None] = Counter()

    @property
    def counts(self) -> Mapping[TenantId | None, int]:
        """Items by tenant, of those that have any."""
        return self._counts

    @property
    def total(self) -> int:
        return len(self._lapses)

    def note(self, item: E, now: float) -> None:
        """What is promised to the stored `item` may have changed."""
        promise = item.retention
        if promise is None or not promise.holds(now):
            self.forget(item)
        elif item not in self._lapses:
            self._lapses.schedule(item, promise.until)
            self._counts[item.tenant] += 1

    def forget(self, item: E) -> None:
        """`item` is not stored any more, or not promised."""
        if item in self._lapses:
            self._lapses.cancel(item)
            self._less(item)

    def lapse(self, now: float) -> None:
        """Pass over what is promised no longer."""
        for item in self._lapses.due(now):
            promise = item.retention
            if promise is not None and promise.holds(now):
                self._lapses.schedule(item, promise.until)
            else:
                self._less(item)

    def _less(self, item: E) -> None:
        self._counts[item.tenant] -= 1
        if not self._counts[item.tenant]:
            del self._counts[item.tenant]
