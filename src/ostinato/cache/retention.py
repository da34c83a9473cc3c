"""Promises that an entry stays for a while, and whose share of the cache they count against.

A promise (`Retention`) lies on every block of a prefix. It is a priority and never a lock:

- until its deadline a block goes after all ordinary ones, as long as its tenant is within budget;
- a hit moves the deadline to a full lifetime from now;
- after the deadline a *soft* promise is simply over: the block is ordinary. A *hard* one makes the block
  unreadable at that very moment, and it is erased from every tier soon after.

When only promised blocks are left and room is needed, they go too, soonest deadline first; and where several
tenants have K/V, none keeps more than its budget, or else an equal share, by promises. So nothing that a client
asks for can wedge a pool.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ostinato.cache.types import TenantId
from ostinato.errors import ConfigError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Retention:
    """One promise.

    Attributes:
        until: deadline, in seconds of `Clock.time()`.
        hard: unreadable from `until` on, then erased; else ordinary from then on.
        ttl: seconds that a hit adds again.
    """

    until: float
    hard: bool
    ttl: float

    @classmethod
    def starting(cls, now: float, ttl: float, *, hard: bool) -> Retention:
        """A promise of `ttl` seconds from now."""
        return cls(now + ttl, hard, ttl)

    def holds(self, now: float) -> bool:
        """Whether the promise still protects."""
        return now < self.until

    def readable(self, now: float) -> bool:
        """Whether the entry may be read."""
        return not self.hard or now < self.until

    def refreshed(self, now: float) -> Retention:
        """The promise after a hit. One that is over stays over: the entry was ordinary again, or is lost."""
        if now >= self.until:
            return self
        return Retention(max(self.until, now + self.ttl), self.hard, self.ttl)

    def covering(self, behind: Retention) -> Retention:
        """The promise to a block before one that has `behind`: each use of that was a use of this too."""
        until = behind.until + max(self.ttl - behind.ttl, 0.0)
        return Retention(max(self.until, until), self.hard, self.ttl)

    def merged(self, other: Retention) -> Retention:
        """What holds if both are promised for the same block: the longer, and hard if either is."""
        return Retention(
            max(self.until, other.until), self.hard or other.hard, max(self.ttl, other.ttl)
        )


def is_readable(retention: Retention | None, now: float) -> bool:
    """Whether an entry with this promise, or none, may be read."""
    return retention is None or retention.readable(now)


def parse_ttl(text: str | float) -> float:
    """Seconds from ``"5m"``, ``"1h"``, ``"90"``, ``"90s"`` or a number.

    Raises:
        ValueError: if it is not a duration, or not positive; the message says what would be.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", str(text))
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise ValueError(
            f"{text!r} is not a lifetime: give seconds, or a number with s, m, h or d, e.g. 5m or 1h"
        )
    return seconds


class TenantBudgets:
    """How much of one place (a pool, a tier) each tenant may fill before its entries go first.

    Not a partition: a tenant may fill what nobody else wants. But when room is needed, whoever is over budget
    pays first, and promises beyond the budget are not kept.

    Args:
        limits: by tenant, in the unit of the place: blocks of a pool, bytes of a tier.
        default: of tenants that are not listed; None is unlimited.

    Raises:
        ConfigError: if a limit is negative.
    """

    def __init__(
        self, limits: Mapping[TenantId, int] | None = None, default: int | None = None
    ) -> None:
        self._limits = dict(limits or {})
        self._default = default
        for tenant, limit in self._limits.items():
            if limit < 0:
                raise ConfigError(f"the budget of tenant {tenant!r} is negative: {limit}")
        if default is not None and default < 0:
            raise ConfigError(f"the default budget of a tenant is negative: {default}")
        self._used: Counter[TenantId | None] = Counter()

    def limit(self, tenant: TenantId | None) -> int | None:
        """None: unlimited."""
        if tenant is None:
            return None
        return self._limits.get(tenant, self._default)

    @property
    def limits_anybody(self) -> bool:
        """False: nobody can be over budget."""
        return bool(self._limits) or self._default is not None

    def used(self, tenant: TenantId | None) -> int:
        """What the tenant fills now."""
        return self._used[tenant]

    @property
    def num_tenants(self) -> int:
        """Those that fill anything."""
        return len(self._used)

    def charge(self, tenant: TenantId | None, amount: int) -> None:
        """The tenant fills `amount` more; negative to give it back."""
        self._used[tenant] += amount
        if not self._used[tenant]:
            del self._used[tenant]

    def exceeded(self, tenant: TenantId | None) -> bool:
        """Whether the tenant fills more than its budget."""
        limit = self.limit(tenant)
        return limit is not None and self._used[tenant] > limit


T = TypeVar("T")


class ExpiryQueue(Generic[T]):
    """Items by deadline; each is in it at most once. O(log n) a call, amortised.

    A heap in which superseded entries stay until they surface, or until they are the majority.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._current: dict[T, tuple[float, int]] = {}
        self._serial = 0  # breaks ties, so that items are never compared

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, item: object) -> bool:
        return item in self._current

    def __iter__(self) -> Iterator[T]:
        return iter(self._current)

    def schedule(self, item: T, until: float) -> None:
        """Put `item` in, or move it to another deadline."""
        known = self._current.get(item)
        if known is not None and known[0] == until:
            return
        self._serial += 1
        self._current[item] = (until, self._serial)
        heapq.heappush(self._heap, (until, self._serial, item))
        if len(self._heap) > 2 * len(self._current) + 64:
            self._heap = [(*place, item) for item, place in self._current.items()]
            heapq.heapify(self._heap)

    def cancel(self, item: T) -> None:
        """Take `item` out if it is in."""
        self._current.pop(item, None)

    def next_deadline(self) -> float | None:
        """The soonest, or None if the queue is empty."""
        while self._heap:
            until, serial, item = self._heap[0]
            if self._current.get(item) == (until, serial):
                return until
            heapq.heappop(self._heap)
        return None

    def pop(self) -> T:
        """Take out the item with the soonest deadline.

        Raises:
            IndexError: if the queue is empty.
        """
        if self.next_deadline() is None:
            raise IndexError("nothing is scheduled")
        item = heapq.heappop(self._heap)[2]
        del self._current[item]
        return item

    def due(self, now: float) -> list[T]:
        """Take out what is due at `now`, soonest first."""
        items: list[T] = []
        while True:
            until = self.next_deadline()
            if until is None or until > now:
                return items
            items.append(self.pop())
