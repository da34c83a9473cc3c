"""What a tier may and must hold, by brute force: the model that the tier machine compares with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import TierBlock
from ostinato.cache.types import BlockHash


@dataclass(eq=False)
class Copy:
    """A block in one place of the tier.

    Attributes:
        key: which block.
        promise: what was promised to it.
        ready: readable; else being written.
        users: jobs that move its bytes.
        gone: nobody finds it any more.
        damaged: its content is wrong.
    """

    key: BlockHash
    promise: Retention | None = None
    ready: bool = False
    users: int = 0
    gone: bool = False
    damaged: bool = False


@dataclass
class TierModel:
    """One tier.

    Attributes:
        capacity: copies.
        blocks: every block there ever was, by key.
        copies: what can be found or is being written.
        leaving: what is gone, but a job still uses its room.
        written: keys whose content was ever written in full.
    """

    capacity: int
    blocks: dict[BlockHash, TierBlock]
    copies: dict[BlockHash, Copy] = field(default_factory=dict)
    leaving: list[Copy] = field(default_factory=list)
    written: set[BlockHash] = field(default_factory=set)

    @property
    def ready(self) -> set[BlockHash]:
        return {key for key, copy in self.copies.items() if copy.ready}

    @property
    def writing(self) -> set[BlockHash]:
        return {key for key, copy in self.copies.items() if not copy.ready}

    @property
    def used(self) -> int:
        return len(self.copies) + len(self.leaving)

    def ancestors(self, key: BlockHash) -> set[BlockHash]:
        found = set()
        parent = self.blocks[key].identity.parent
        while parent is not None:
            found.add(parent)
            parent = self.blocks[parent].identity.parent
        return found

    def with_descendants(self, keys: Iterable[BlockHash]) -> set[BlockHash]:
        roots = set(keys) & set(self.copies)
        return {key for key in self.copies if key in roots or self.ancestors(key) & roots}

    def wanted(self, blocks: list[TierBlock], now: float) -> list[TierBlock]:
        """What a store of `blocks` has to reserve."""
        found: dict[BlockHash, TierBlock] = {}
        for block in blocks:
            parent = block.identity.parent
            rooted = parent is None or parent in self.copies or parent in found
            lasting = block.retention is None or block.retention.readable(now)
            if block.identity.key not in self.copies and rooted and lasting:
                found[block.identity.key] = block
        return list(found.values())

    def evictable(self, blocks: list[TierBlock]) -> set[BlockHash]:
        """What a store of `blocks` may evict."""
        held = {block.identity.key for block in blocks}
        held |= {b.identity.parent for b in blocks if b.identity.parent is not None}
        held |= {key for key, copy in self.copies.items() if copy.users}
        blocked = set(held)
        for key in held & set(self.copies):
            blocked |= self.ancestors(key)
        return self.ready - blocked

    def reserve(self, blocks: list[TierBlock]) -> list[Copy]:
        copies = [Copy(block.identity.key, block.retention, users=1) for block in blocks]
        self.copies.update((copy.key, copy) for copy in copies)
        for copy in copies:
            self._prolong_prefix(copy)
        return copies

    def retain(self, keys: Iterable[BlockHash], promise: Retention | None) -> None:
        """Heads first."""
        for key in keys:
            if key in self.copies:
                self.copies[key].promise = promise
                self._prolong_prefix(self.copies[key])

    def _prolong_prefix(self, copy: Copy) -> None:
        """No hard deadline before `copy` ends its promise, as far as none before it lasts longer."""
        parent = self.blocks[copy.key].identity.parent
        while copy.promise is not None and parent is not None:
            before = self.copies[parent]
            if before.promise is not None and before.promise.until >= copy.promise.until:
                return
            if before.promise is not None and before.promise.hard:
                before.promise = replace(before.promise, until=copy.promise.until)
            parent = self.blocks[parent].identity.parent

    def pin(self, keys: list[BlockHash]) -> list[Copy]:
        for key in keys:
            self.copies[key].users += 1
        return [self.copies[key] for key in keys]

    def end_use(self, copies: list[Copy]) -> None:
        for copy in copies:
            copy.users -= 1
        self.leaving = [copy for copy in self.leaving if copy.users]

    def remove(self, keys: Iterable[BlockHash]) -> None:
        """`keys` are gone; what a job still moves keeps its room until `end_use`."""
        for key in keys:
            copy = self.copies.pop(key)
            copy.gone = True
            if copy.users:
                self.leaving.append(copy)

    def evict(self, keys: set[BlockHash]) -> None:
        """Tails first; what was promised to them has been promised to what is before them."""
        for key in sorted(keys, key=lambda one: len(self.ancestors(one)), reverse=True):
            self._cover_head(key)
            self.remove([key])

    def cover_heads(self) -> None:
        """A new process has taken up what there is: until nothing changes any more."""
        promises: list[Retention | None] = []
        while promises != (promises := [copy.promise for copy in self.copies.values()]):
            for key in self.copies:
                self._cover_head(key)

    def _cover_head(self, key: BlockHash) -> None:
        parent, promise = self.blocks[key].identity.parent, self.copies[key].promise
        before = None if parent is None else self.copies[parent]
        if promise is None or before is None or before.promise is None:
            return
        until = max(promise.until, promise.until - promise.ttl + before.promise.ttl)
        if until > before.promise.until:
            before.promise = replace(before.promise, until=until)
            self._prolong_prefix(before)

    def remove_tree(self, keys: Iterable[BlockHash]) -> None:
        self.remove(self.with_descendants(keys))

    def expire(self, now: float) -> None:
        promises = [(key, copy.promise) for key, copy in self.copies.items()]
        self.remove_tree(
            [key for key, promise in promises if promise and not promise.readable(now)]
        )
