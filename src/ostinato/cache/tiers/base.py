"""KVTier: one level below the device pool, as the hierarchy sees it.

A block passes through a tier in two pairs of verbs, so that nothing half-written is ever visible:

                 prepare_store            complete_store(written)
    absent ────────────────────► writing ────────────────────────► ready ──► evicted, expired, erased
       ▲                            │                              ▲   │
       └──── complete_store(fewer) ─┘              complete_load ──┘   │ prepare_load: pinned, not evictable
                                                                ▲──────┘

Bookkeeping (everything but `write` and `read`) is called from one thread, the engine's, and never waits for a
device or a network. Bytes are moved by `write` and `read`, from any number of transfer threads at once.

A tier never holds a tail without its head: a block is stored only behind its parent, evicted only when no
successor is stored, and erased together with all its descendants.

Nothing that goes wrong with bytes is an error of the caller: `write` and `read` answer False, the reason is
counted in `TierStats.failures` and logged once, and the block is a miss. (The verbs are those of vLLM's
kv_offload.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from ostinato.cache.types import BlockHash, TenantId, Tier

if TYPE_CHECKING:
    from ostinato.cache.identity import BlockIdentity
    from ostinato.cache.retention import Retention


class TierAnswer(Enum):
    """What `KVTier.lookup` says about one block."""

    MISS = "miss"
    """Not here."""
    HIT = "hit"
    """Here and readable: `prepare_load` may be called."""
    PENDING = "pending"
    """Being written: ask again after the store completed."""
    RETRY = "retry"
    """Nobody knows yet, the question is under way: ask again."""


class TierFailure(StrEnum):
    """Why bytes could not be kept or brought back; label of a counter."""

    NO_SPACE = "no_space"
    """The device or the remote server is full."""
    READ_ONLY = "read_only"
    """The folder or the remote server takes no writes."""
    SHORT_READ = "short_read"
    """Fewer bytes came back than were stored."""
    CORRUPT = "corrupt"
    """The bytes, or the record that describes them, do not match their checksum."""
    FOREIGN_VERSION = "foreign_version"
    """Written in a format that this version does not read."""
    VANISHED = "vanished"
    """Somebody else removed it."""
    DISCONNECTED = "disconnected"
    """The remote server cannot be reached."""
    IO_ERROR = "io_error"
    """Any other error of the operating system or the remote server."""


@dataclass(frozen=True, slots=True)
class TierBlock:
    """One full block that is to be stored.

    Attributes:
        identity: chain hash, parent, depth and tenant.
        retention: what was promised to it, or None for an ordinary block.
    """

    identity: BlockIdentity
    retention: Retention | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StoreJob:
    """A store between `prepare_store` and `complete_store`.

    Attributes:
        blocks: what is to be written, heads first: less than was asked for where some is stored already.
        places: where each goes; means something to the tier alone.
        failed: positions in `blocks` that `write` answered False for.
    """

    blocks: tuple[TierBlock, ...]
    places: tuple[int, ...] = ()
    failed: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, eq=False)
class LoadJob:
    """A load between `prepare_load` and `complete_load`.

    Attributes:
        keys: what is read, in the order of `prepare_load`.
        places: where each lies; means something to the tier alone.
        failed: positions in `keys` that `read` answered False for.
        fetched: what `fetch` has brought and `read` has not taken yet, by position.
    """

    keys: tuple[BlockHash, ...]
    places: tuple[int, ...] = ()
    failed: set[int] = field(default_factory=set)
    fetched: dict[int, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TierStats:
    """A tier at one moment, and what has happened since it was opened.

    Attributes:
        tier: which level.
        capacity_bytes: bound; `used_bytes` never exceeds it.
        used_bytes: blocks that are ready or being written, each with all that it takes in this tier.
        num_blocks: ready blocks.
        num_writing: blocks between `prepare_store` and `complete_store`.
        num_pinned: blocks that are being read.
        tenant_bytes: `used_bytes` by tenant.
        stored_blocks: became readable.
        loaded_blocks: were read without fault.
        evicted_blocks: gave way to others.
        expired_blocks: passed a hard deadline and were erased.
        erased_blocks: were erased for any other reason: asked for, damaged, or behind a block that was.
        refused_blocks: were asked to be stored when no room could be made.
        failures: blocks by what went wrong; a reason that never occurred is absent.
    """

    tier: Tier
    capacity_bytes: int
    used_bytes: int
    num_blocks: int
    num_writing: int
    num_pinned: int
    tenant_bytes: Mapping[TenantId, int]
    stored_blocks: int = 0
    loaded_blocks: int = 0
    evicted_blocks: int = 0
    expired_blocks: int = 0
    erased_blocks: int = 0
    refused_blocks: int = 0
    failures: Mapping[TierFailure, int] = field(default_factory=dict)


class KVTier(ABC):
    """Blocks of one size outside the device, under a byte bound.

    Attributes:
        tier: which level it is.
        block_bytes: length of every block's content; what `write` takes and `read` fills.
        capacity_bytes: bound of `used_bytes`.
    """

    tier: Tier
    block_bytes: int
    capacity_bytes: int

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """As in `TierStats`, but O(1)."""

    @abstractmethod
    def lookup(self, key: BlockHash) -> TierAnswer:
        """Is the block here? Neither pins nor touches it. Past a hard deadline it is a MISS."""

    def lookup_prefix(self, keys: Sequence[BlockHash]) -> tuple[int, TierAnswer]:
        """How many of `keys`, a prefix from some block on, are HIT in a row, and what ended the row.

        A tier that has to ask somebody asks for all of them at once, so this is what to call for a prompt.

        Returns:
            ``(number of leading hits, answer that ended them)``; the answer is HIT if all are here.
        """
        for at, key in enumerate(keys):
            answer = self.lookup(key)
            if answer is not TierAnswer.HIT:
                return at, answer
        return len(keys), TierAnswer.HIT

    @abstractmethod
    def prepare_store(self, blocks: Sequence[TierBlock]) -> StoreJob | None:
        """Reserve room for what of `blocks` is not here yet, evicting others as needed.

        What is stored already or being written is dropped, and so is a block whose parent is neither stored
        here nor earlier in the call. Never evicted are blocks of this call, their ancestors, and what is being
        read or written. All or nothing: if room for everything that is left cannot be made, nothing changes.

        Args:
            blocks: heads before tails.

        Returns:
            The job, or None if there is no room now. With no `blocks` left it need not be completed.
        """

    @abstractmethod
    def write(self, job: StoreJob, at: int, data: memoryview) -> bool:
        """Write block `at` of `job`; from a transfer thread. Blocks of a job may be written in any order.

        Args:
            job: not yet completed.
            at: index into ``job.blocks``.
            data: `block_bytes` contiguous bytes.

        Returns:
            False if that failed; the reason is counted.
        """

    @abstractmethod
    def complete_store(self, job: StoreJob, num_written: int) -> None:
        """The first `num_written` blocks become readable; the rest is given up, and its room is free again."""

    @abstractmethod
    def prepare_load(self, keys: Sequence[BlockHash]) -> LoadJob:
        """Pin `keys` until `complete_load`, so that they stay where they are.

        Raises:
            KeyError: if `lookup` of one does not answer HIT; then nothing is pinned.
        """

    def fetch(self, job: LoadJob, task: range) -> None:
        """Blocks `task` of `job` are about to be read by the calling thread.

        For a tier that pays for round trips: it may bring them all at once. Whatever fails is left to `read`.
        """
        return

    @abstractmethod
    def read(self, job: LoadJob, at: int, out: memoryview) -> bool:
        """Read block `at` of `job` into `out`; from a transfer thread. Fastest in ascending order.

        Args:
            job: not yet completed.
            at: index into ``job.keys``.
            out: `block_bytes` contiguous writable bytes. Undefined after False.

        Returns:
            False if the bytes are short, damaged or gone; the reason is counted.
        """

    @abstractmethod
    def complete_load(self, job: LoadJob, num_read: int) -> None:
        """Unpin the blocks of `job`, of which the first `num_read` were read in a row.

        A block that `read` answered False for is erased with all its descendants. One that was not tried, since
        the load was given up, stays.
        """

    @abstractmethod
    def touch(self, keys: Sequence[BlockHash]) -> None:
        """`keys`, heads first, were used again; the last is touched first, so that heads stay youngest.

        What is not here is passed over.
        """

    @abstractmethod
    def retain(self, keys: Sequence[BlockHash], retention: Retention | None) -> None:
        """Replace what was promised to `keys`; what is not here is passed over."""

    @abstractmethod
    def retention(self, key: BlockHash) -> Retention | None:
        """What was promised to a block that is here. A reader takes it along, so that no deadline is lost."""

    @abstractmethod
    def erase(self, keys: Sequence[BlockHash]) -> None:
        """Remove `keys` and all that stands behind them. Who is reading one reads on."""

    @abstractmethod
    def expire(self) -> None:
        """Erase what has passed a hard deadline. Every bookkeeping verb does so too; for idle moments."""

    @abstractmethod
    def stats(self) -> TierStats:
        """Counters and sizes. O(tenants)."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Verify every invariant of the bookkeeping. O(blocks).

        Raises:
            CacheIntegrityError: naming the first that does not hold.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back memory, files and connections. No job may be under way. Idempotent."""
