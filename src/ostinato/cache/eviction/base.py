"""The contract of an eviction policy: of all that may go, what goes next?

One family serves the device pool and every tier. Two parties, two duties:

- The *bookkeeping* (`BlockPool`, a tier's directory) knows who holds what and what follows what. It offers
  only *candidates*: items that nobody uses and that no stored item follows (leaves). When a leaf is gone, the
  item before it may become a candidate. So a head can never go before its tail, whatever the policy.
- The *policy* ranks the candidates. It never looks at ancestry, and it owns no item.

Everything that is stored, candidate or not, is reported by `on_store`, `on_reuse`, `on_promise` and `on_drop`,
since some policies learn from the whole traffic. The order of calls for one item:

    on_store ──► ( add ──► remove │ on_reuse )* ──► add ──► pop_victim ──► on_drop
                                       └──────────── or erased while no candidate ───► on_drop

`on_reuse` and `remove` may come in either order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from ostinato.cache.retention import Retention
from ostinato.cache.types import TenantId


class Evictable(Protocol):
    """What a policy may read of an item. Items are compared and hashed by identity.

    Attributes:
        depth: blocks before it in its prefix.
        hits: reuses since it was stored here.
        fan_out: successors that were stored here behind it so far; more than one means that prompts
            part behind it: it belongs to a shared head.
        last_used: number of its latest use (stored, reused or given back) on a counter that the bookkeeping
            advances with every use of a prefix. All items of one prefix share one number per use, so an item
            is never older than what follows it. A counter and not a clock: order is strict, and
            gaps are measured in traffic, not in idle seconds.
        tenant: whose it is; None where tenants are not told apart.
        retention: promise that it stays, or None.
        ghost_key: names its content for as long as nobody stores it, or None if nothing does.
    """

    @property
    def depth(self) -> int: ...
    @property
    def hits(self) -> int: ...
    @property
    def fan_out(self) -> int: ...
    @property
    def last_used(self) -> float: ...
    @property
    def tenant(self) -> TenantId | None: ...
    @property
    def retention(self) -> Retention | None: ...
    @property
    def ghost_key(self) -> Hashable | None: ...


E = TypeVar("E", bound=Evictable)


class EvictionPolicy(ABC, Generic[E]):
    """An order over candidates. See the module's docstring for who calls what when.

    What a policy reads of an item does not change while it is a candidate: whoever uses it again, or
    promises that it stays, takes it out first and puts it back afterwards.

    Attributes:
        wants_ghost_keys: whether items should have a `ghost_key`, which may cost a hash.
    """

    wants_ghost_keys: bool = False

    @abstractmethod
    def add(self, item: E) -> None:
        """`item` became a candidate."""

    @abstractmethod
    def remove(self, item: E) -> None:
        """`item` is a candidate no longer: somebody uses it again, something follows it, or it is erased.

        Raises:
            KeyError: if it was none.
        """

    @abstractmethod
    def pop_victim(self) -> E:
        """Take out the candidate to give up next; the caller drops it (and says so: `on_drop`) or adds it back.

        Raises:
            IndexError: if there is no candidate.
        """

    def exchange(self, item: E) -> E:
        """`add` and then `pop_victim`: what a run of evictions does once a block, the run's next leaf
        being the likeliest next victim."""
        self.add(item)
        return self.pop_victim()

    @abstractmethod
    def __len__(self) -> int:
        """Candidates."""

    @abstractmethod
    def __iter__(self) -> Iterator[E]:
        """All candidates in no particular order, for checks."""

    def on_store(self, items: Sequence[E]) -> None:
        """`items`, one prefix's, heads first and at least one, were stored here just now."""

    def on_reuse(self, items: Sequence[E], now: float) -> None:
        """`items` are used again. Called while their `hits` and `last_used` are still those from before.

        Args:
            items: one prefix's, heads first.
            now: on the scale of `last_used`.
        """

    def on_promise(self, item: E) -> None:
        """`retention` of `item`, which is stored and no candidate, has changed."""

    def on_drop(self, item: E) -> None:
        """`item` is not stored here any more, for whatever reason; it is no candidate."""
