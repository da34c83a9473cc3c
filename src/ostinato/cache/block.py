"""KVCacheBlock and the intrusive queue that links blocks through themselves.

All blocks are made once, when the pool is made; nothing on the hot path creates an object. A doubly linked
list through the blocks' own fields gives append, pop and *removal from the middle* in O(1), which a deque
cannot do. (The structure is vLLM's FreeKVCacheBlockQueue.)
"""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.cache.identity import BlockIdentity
from ostinato.cache.retention import Retention
from ostinato.cache.types import BlockHash, BlockId, TenantId


class KVCacheBlock:
    """Bookkeeping of one block; its bytes lie in the storage under `block_id`.

    Attributes:
        block_id: index into pool and storage.
        ref_cnt: requests that hold the block. Owned by the pool.
        transfers: copies to or from another tier that are under way. Owned by the pool.
        entry: where the prefix index keeps it, or None while nobody can find it. Owned by the index.
        identity: its name outside the device, while it is full and findable and there are lower tiers;
            else None. Owned by the manager.
        is_candidate: whether the eviction policy holds it. Owned by the pool, as are all below.
        must_wipe: whether its content must not be left lying once nobody holds it.
        depth, hits, fan_out, last_used, tenant, retention: see `Evictable`; of a block that can be found.
    """

    __slots__ = (
        "block_id",
        "depth",
        "entry",
        "fan_out",
        "hits",
        "identity",
        "is_candidate",
        "last_used",
        "must_wipe",
        "next_free",
        "prev_free",
        "ref_cnt",
        "retention",
        "tenant",
        "transfers",
    )

    def __init__(self, block_id: BlockId) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.transfers = 0
        self.entry: object | None = None
        self.identity: BlockIdentity | None = None
        self.is_candidate = False
        self.must_wipe = False
        self.depth = 0
        self.hits = 0
        self.fan_out = 0
        self.last_used = 0
        self.tenant: TenantId | None = None
        self.retention: Retention | None = None
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    @property
    def ghost_key(self) -> BlockHash | None:
        """Outlives the block's stay: what is stored again under it is the same K/V."""
        return self.identity.key if self.identity is not None else None

    def __repr__(self) -> str:
        found = "findable" if self.entry is not None else "private"
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, {found})"


class FreeKVCacheBlockQueue:
    """First in, first out, with O(1) removal of any member. A block is in at most one queue at a time."""

    def __init__(self) -> None:
        # Two sentinels that are never handed out spare every operation the tests for an empty end.
        self._head = KVCacheBlock(BlockId(-1))
        self._tail = KVCacheBlock(BlockId(-1))
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From the next to be popped to the last; for checks, not for the hot path."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: KVCacheBlock) -> None:
        """Put `block` at the end.

        Raises:
            ValueError: if the block is in a queue already.
        """
        if block.next_free is not None:
            raise ValueError(f"{block!r} is in a queue already")
        last = self._tail.prev_free
        assert last is not None
        last.next_free = block
        block.prev_free = last
        block.next_free = self._tail
        self._tail.prev_free = block
        self._length += 1

    def popleft(self) -> KVCacheBlock:
        """Take the block at the front.

        Raises:
            IndexError: if the queue is empty.
        """
        first = self._head.next_free
        if first is None or first is self._tail:
            raise IndexError("the queue is empty")
        self.remove(first)
        return first

    def remove(self, block: KVCacheBlock) -> None:
        """Unlink `block` from wherever it is in this queue.

        Raises:
            ValueError: if the block is in no queue.
        """
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise ValueError(f"{block!r} is in no queue")
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self._length -= 1
