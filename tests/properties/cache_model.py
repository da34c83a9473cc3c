"""A brute-force model of the cache: slow, obvious, and written without the real data structures.

Everything is a key: the namespace and all tokens from the start of the prompt to the end of a block. A table
is a list of keys (findable blocks) and of unique tokens for private blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

Key = tuple[str, tuple[int, ...]]


@dataclass(eq=False)
class ModelTable:
    namespace: str
    tokens: list[int]
    computed: int
    blocks: list[Key | object]
    published: int = 0


@dataclass(eq=False)
class ModelTransfer:
    """Blocks that are being copied; what becomes unfindable meanwhile is an anonymous object."""

    blocks: list[Key | object]


@dataclass
class CacheModel:
    capacity: int
    block_size: int
    partial: bool
    """Whether partial blocks are kept and matches may end inside a block."""
    entries: dict[Key, int] = field(default_factory=dict)
    """Findable blocks, with the time of their last release."""
    tables: list[ModelTable] = field(default_factory=list)
    transfers: list[ModelTransfer] = field(default_factory=list)
    now: int = 0
    victims: deque[Key] | None = None
    """What a policy other than LRU gave up, to be followed; None: the model itself says what LRU gives up."""

    # -- observations

    def refs(self, block: object) -> int:
        return sum(block in table.blocks for table in self.tables)

    def in_use(self) -> int:
        held: list[object] = []
        for table in self.tables:
            held.extend(b for b in table.blocks if b not in held)
        return len(held)

    def moving(self, block: object) -> bool:
        return any(block in transfer.blocks for transfer in self.transfers)

    def in_transfer(self) -> int:
        """Blocks that only transfers keep."""
        kept: list[object] = []
        for transfer in self.transfers:
            kept.extend(b for b in transfer.blocks if b not in kept and not self.refs(b))
        return len(kept)

    def cached(self) -> list[Key]:
        return [key for key in self.entries if not self.refs(key) and not self.moving(key)]

    def free(self) -> int:
        return self.capacity - self.in_use() - self.in_transfer() - len(self.cached())

    def match(self, namespace: str, tokens: list[int]) -> tuple[list[Key], Key | None, int]:
        """Full blocks, the block to copy from, and the tokens to copy; at most len(tokens) - 1."""
        query = tuple(tokens[:-1])
        full: list[Key] = []
        while True:
            end = (len(full) + 1) * self.block_size
            if end > len(query) or (namespace, query[:end]) not in self.entries:
                break
            full.append((namespace, query[:end]))
        start = len(full) * self.block_size
        longest = 0
        if self.partial:
            for space, stored in self.entries:
                if space != namespace or (len(stored) - 1) // self.block_size != len(full):
                    continue
                shared = 0
                while shared < min(len(stored), len(query)) and stored[shared] == query[shared]:
                    shared += 1
                longest = max(longest, shared - start)
        return full, None, longest

    # -- actions

    def make_room(self, count: int) -> None:
        while self.free() < count:
            self.evict_one()

    def evict_one(self) -> None:
        if self.victims is None:
            victim = min(self.cached(), key=lambda key: self.entries[key])
        else:
            victim = self.victims.popleft()
        assert victim in self.cached()
        assert not self._followers(victim), "a block would be evicted before its successors"
        del self.entries[victim]

    def drop(self, blocks: Sequence[Key | object]) -> None:
        """Called after the blocks have left their holder; stamps those that can be found, tail first."""
        for block in reversed(blocks):
            if block in self.entries:
                self.now += 1
                self.entries[block] = self.now  # type: ignore[index]

    def allocate(
        self, namespace: str, tokens: list[int], source: Key | None, copied: int
    ) -> ModelTable:
        """`source` is the block the real cache chose to copy from (several may tie)."""
        full, _, _ = self.match(namespace, tokens)
        wanted = -(-len(tokens) // self.block_size)
        computed = len(full) * self.block_size + copied
        held = [*full, source] if source is not None else list(full)
        table = ModelTable(namespace, list(tokens), computed, held, len(full))
        self.tables.append(table)
        self.make_room(wanted - len(full))
        table.blocks = [*full, *(object() for _ in range(wanted - len(full)))]
        if source is not None:
            self.drop([source])
        return table

    def allocate_in_place(
        self, namespace: str, tokens: list[int], source: Key, copied: int
    ) -> ModelTable:
        """`allocate` where only a copy of `source` lacks room: the table takes it over."""
        full, _, _ = self.match(namespace, tokens)
        fresh = -(-len(tokens) // self.block_size) - len(full) - 1
        computed = len(full) * self.block_size + copied
        table = ModelTable(namespace, list(tokens), computed, [*full, source], len(full))
        self.tables.append(table)
        self.make_room(fresh)
        assert not self._followers(source)
        del self.entries[source]
        table.blocks = [*full, *(object() for _ in range(fresh + 1))]
        return table

    def extend(self, table: ModelTable, num_tokens: int) -> bool:
        first = table.computed // self.block_size
        shared = [at for at in range(first, len(table.blocks)) if self.refs(table.blocks[at]) > 1]
        missing = max(-(-num_tokens // self.block_size) - len(table.blocks), 0)
        if len(shared) + missing > self.free() + len(self.cached()):
            return False
        for at in shared:
            self.make_room(1)
            table.blocks[at] = object()
        self.make_room(missing)
        table.blocks.extend(object() for _ in range(missing))
        return True

    def publish(self, table: ModelTable) -> None:
        for at in range(table.published, table.computed // self.block_size):
            key = (table.namespace, tuple(table.tokens[: (at + 1) * self.block_size]))
            self._publish_block(table, at, key)
            table.published = at + 1

    def release(self, table: ModelTable) -> None:
        self.publish(table)
        tail = table.computed % self.block_size
        if tail and self.partial and self.refs(table.blocks[table.published]) == 1:
            key = (table.namespace, tuple(table.tokens[: table.computed]))
            longer = [k for k in self.entries if self._same_block(k, key) and self._begins(k, key)]
            if not longer:
                self._publish_block(table, table.published, key)
        self.tables.remove(table)
        self.drop(table.blocks)

    def discard(self, table: ModelTable) -> None:
        self.tables.remove(table)
        for key in reversed(table.blocks[: table.published]):
            if self.refs(key) or self._followers(key):
                break
            self._forget(key)
        self.drop(table.blocks)

    def begin_transfer(self, blocks: Sequence[Key | object]) -> ModelTransfer:
        transfer = ModelTransfer(list(blocks))
        self.transfers.append(transfer)
        return transfer

    def end_transfer(self, transfer: ModelTransfer) -> None:
        self.transfers.remove(
            transfer
        )  # a copy is no use: its blocks keep the time of their last one

    def _followers(self, key: object) -> list[Key]:
        return [k for k in self.entries if k != key and self._begins(k, key)]

    def _forget(self, key: object) -> None:
        """Take an entry out; the block itself lives on as long as a transfer keeps it."""
        del self.entries[key]  # type: ignore[arg-type]
        self._rename(key, object())

    def _rename(self, old: object, new: object) -> None:
        for transfer in self.transfers:
            transfer.blocks = [new if block == old else block for block in transfer.blocks]

    def _publish_block(self, table: ModelTable, at: int, key: Key) -> None:
        if key not in self.entries:  # else the table takes the block that is there
            self._rename(table.blocks[at], key)
        self._enter(key)
        table.blocks[at] = key

    def _enter(self, key: Key) -> None:
        shorter = [k for k in self.entries if self._same_block(k, key) and self._begins(key, k)]
        for subsumed in shorter:
            if subsumed != key:
                self._forget(subsumed)
        self.entries.setdefault(key, 0)

    def _same_block(self, a: Key, b: Key) -> bool:
        return (len(a[1]) - 1) // self.block_size == (len(b[1]) - 1) // self.block_size

    @staticmethod
    def _begins(longer: Key, shorter: Key) -> bool:
        return longer[0] == shorter[0] and longer[1][: len(shorter[1])] == shorter[1]
