"""DiskTier: blocks in a bounded folder; they survive a restart, and a `kill -9` at any moment.

- Committed is what `write` has finished, in the system's page cache: the death of the process loses nothing of
  it. Nothing waits for the device (no fsync) until `close`, so a machine that loses power may lose the last
  seconds, or leave a block that does not match its checksum: a miss.
- The bound counts whole files, those of other models in the same folder included. The files never grow while
  that would leave less than `keep_free` of the file system; then older blocks give way instead.
- Blocks that are stored together lie together, and the system is told ahead what will be read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from ostinato.cache.eviction.base import EvictionPolicy
from ostinato.cache.retention import Retention, TenantBudgets
from ostinato.cache.tiers.base import LoadJob, StoreJob, TierBlock, TierFailure
from ostinato.cache.tiers.checksum import checksum
from ostinato.cache.tiers.disk_expiry import FolderExpiry
from ostinato.cache.tiers.disk_files import BlockFiles, PositionedIO
from ostinato.cache.tiers.disk_folder import (
    FolderLock,
    FormatFolder,
    TierFormat,
    delete_set_aside,
    format_folders,
    make_format_folder,
    set_aside,
)
from ostinato.cache.tiers.disk_index import (
    DiskIndex,
    Drop,
    compact,
    drop_slots,
    oldest_beyond,
    read_index,
)
from ostinato.cache.tiers.entry import EntryState, Removal, TierEntry, must_wipe
from ostinato.cache.tiers.record import RECORD_BYTES, BlockRecord
from ostinato.cache.tiers.slotted import SlottedTier
from ostinato.cache.types import BlockHash, Tier
from ostinato.clock import Clock
from ostinato.errors import ConfigError

SYNC_SECONDS = 5.0
"""How long `close` waits for the device."""

PAUSE_SECONDS = 30.0
"""After a write that failed, nothing is stored for so long."""

_FAILURE_OF = {
    Drop.DAMAGED: TierFailure.CORRUPT,
    Drop.FOREIGN: TierFailure.FOREIGN_VERSION,
    Drop.CUT: TierFailure.SHORT_READ,
}


class DiskTier(SlottedTier):
    """See `SlottedTier` for the arguments that are not here; a block takes its content and 256 bytes.

    Args:
        root: folder; nobody else may use it meanwhile.
        kind: model and K/V format.
        keep_free: share of the file system that stays free.
        io: how bytes are moved.

    Raises:
        ConfigError: if another process uses the folder, it can be neither made nor opened, or not even one
            block fits.
    """

    def __init__(
        self,
        root: Path,
        kind: TierFormat,
        capacity_bytes: int,
        policy: EvictionPolicy[TierEntry],
        budgets: TenantBudgets,
        clock: Clock,
        keep_free: float = 0.1,
        io: PositionedIO | None = None,
    ) -> None:
        slot_bytes = kind.block_bytes + RECORD_BYTES
        super().__init__(
            Tier.DISK, kind.block_bytes, slot_bytes, capacity_bytes, policy, budgets, clock
        )
        self._root = root
        self._keep_free = keep_free
        self._io = io or PositionedIO()
        self._stored: dict[int, tuple[int, int]] = {}  # checksum and its kind, by slot
        self._orders: dict[TierEntry, tuple[float, int]] = {}  # what the record says of its use
        self._set_aside_lock = threading.Lock()
        self._has_set_aside = False
        self._undeletable_bytes = 0
        self._stores_resume_at = clock.monotonic()
        self._lock = FolderLock(root)
        try:
            delete_set_aside(root)
            self._files = BlockFiles(make_format_folder(root, kind), kind.block_bytes, self._io)
        except OSError as error:
            self._lock.release()
            raise ConfigError(
                f"the K/V cache folder {root} cannot be used ({error.strerror}): name a folder that may "
                "be written, or switch the disk tier off"
            ) from error
        self._others = [f for f in format_folders(root) if f.path.name != kind.name]
        self._others_expiry = FolderExpiry(self._io, self._failures)
        for folder in self._others:
            if folder.readable:
                self._others_expiry.watch(folder, clock.time())
            else:
                self._failures.count(TierFailure.FOREIGN_VERSION, folder.path)
        self._load()

    # ------------------------------------------------------------------ start

    def _load(self) -> None:
        """Take up what an earlier process has left."""
        index = read_index(self._files, self._clock.time())
        for reason, count in index.counts().items():
            if reason in _FAILURE_OF:
                self._failures.count(_FAILURE_OF[reason], self._files.folder, count)
        if self._files.writable:
            self._tidy(index)
        slots = self._directory.slots
        live = {slot: r for slot, r in index.live.items() if slot < slots.capacity}
        slots.occupy(set(live), min(self._files.num_complete_slots, slots.capacity))
        taken_up = []
        for slot, record in live.items():
            entry = self._directory.adopt(record.block, slot, record.order, record.hits)
            if entry is None:
                slots.give_back(slot)
                continue
            self._stored[slot] = (record.checksum, record.checksum_kind)
            self._orders[entry] = (record.order, record.hits)
            taken_up.append(entry)
        self._directory.cover_heads(taken_up)
        self._directory.unpin(taken_up[::-1], ())

    def _tidy(self, index: DiskIndex) -> None:
        """Clear what does not count, and shrink the files to the bound."""
        capacity = self._directory.slots.capacity
        try:
            drop_slots(self._files, index, set(index.dropped))
            drop_slots(self._files, index, oldest_beyond(index, capacity, self._clock.time()))
            if self._files.num_complete_slots > capacity:
                compact(self._files, index)
        except OSError as error:
            self._failures.count_error(error)

    # ------------------------------------------------------------------ room

    def prepare_store(self, blocks: Sequence[TierBlock]) -> StoreJob | None:
        if not self._files.writable or self._clock.monotonic() < self._stores_resume_at:
            self._directory.refused += len(blocks)
            return None
        try:
            if not self._files.is_there:
                self._count_vanished(blocks)
                return None
            self._settle_growth(len(blocks))
        except OSError as error:
            self._failures.count_error(error)
            self._pause_stores()
            return None
        return super().prepare_store(blocks)

    def _count_vanished(self, blocks: Sequence[TierBlock]) -> None:
        """Somebody has deleted the files: what was stored can be read still, and nobody would find what is
        stored now."""
        self._failures.count(TierFailure.VANISHED, f"{self._files.folder} was deleted", len(blocks))
        self._directory.refused += len(blocks)

    def _pause_stores(self) -> None:
        """What was there is kept rather than evicted for writes that fail."""
        self._stores_resume_at = self._clock.monotonic() + PAUSE_SECONDS

    def _settle_growth(self, num_blocks: int) -> None:
        """How far the files may grow now, after other models' folders have made room as far as needed."""
        slots, slot_bytes = self._directory.slots, self._directory.slot_bytes
        wanted = min(slots.end + max(0, num_blocks - len(slots.free_slots())), slots.capacity)
        room = self.capacity_bytes - self._undeletable_bytes
        room -= sum(folder.num_bytes for folder in self._others)
        while self._others and room < wanted * slot_bytes:
            room += self._give_up(self._others.pop())
        free, total = self._io.free_space(self._root)
        unwritten = sum(len(job.blocks) for job in self._open_stores) * slot_bytes
        spare = free - unwritten - self._keep_free * total
        slots.limit_growth(min(room // slot_bytes, slots.end + max(0, int(spare // slot_bytes))))

    def _give_up(self, folder: FormatFolder) -> int:
        """Have a transfer thread delete another model's folder before it writes.

        Returns:
            Bytes that this gives back.
        """
        try:
            set_aside(folder.path)
        except OSError as error:
            self._failures.count_error(error)
            self._undeletable_bytes += folder.num_bytes
            return 0
        self._has_set_aside = True
        self._others_expiry.forget(folder)
        return folder.num_bytes

    # ------------------------------------------------------------------ bytes

    def write(self, job: StoreJob, at: int, data: memoryview) -> bool:
        slot, block = job.places[at], job.blocks[at]
        try:
            self._delete_set_aside()
            self._files.write_block(slot, data)
            crc = checksum(data)
            entry = self._open_stores[job][at]
            record = self._record(entry, block.retention, crc)
            self._files.write_record(slot, record.pack())
        except OSError as error:
            self._failures.count_error(error)
            self._pause_stores()
            job.failed.add(at)
            return False
        self._stored[slot] = (crc, record.checksum_kind)
        return True

    def _delete_set_aside(self) -> None:
        with self._set_aside_lock:
            if self._has_set_aside:
                delete_set_aside(self._root)
                self._has_set_aside = False

    def _record(self, entry: TierEntry, retention: Retention | None, crc: int) -> BlockRecord:
        return BlockRecord(
            entry.identity,
            crc,
            self.block_bytes,
            retention,
            entry.last_used,
            self._clock.time(),
            entry.hits,
        )

    def read(self, job: LoadJob, at: int, out: memoryview) -> bool:
        slot = job.places[at]
        self._read_ahead(job, at)
        try:
            if self._files.read_block(slot, out) < self.block_bytes:
                return self._failed(job, at, TierFailure.SHORT_READ)
        except OSError as error:
            self._failures.count_error(error)
            job.failed.add(at)
            return False
        crc, kind = self._stored[slot]
        if checksum(out, kind) != crc:
            return self._failed(job, at, TierFailure.CORRUPT)
        return True

    def _failed(self, job: LoadJob, at: int, reason: TierFailure) -> bool:
        self._failures.count(reason, f"{self._files.folder}, block {job.keys[at].hex()[:12]}")
        job.failed.add(at)
        return False

    def _read_ahead(self, job: LoadJob, at: int) -> None:
        """Where the next block lies elsewhere, let the system fetch it meanwhile: in a row it does."""
        if at + 1 < len(job.places) and job.places[at + 1] != job.places[at] + 1:
            self._files.will_read(job.places[at + 1])

    # ------------------------------------------------------------------ records

    def complete_store(self, job: StoreJob, num_written: int) -> None:
        entries = self._open_stores.get(job, [])
        super().complete_store(job, num_written)
        for entry, block in zip(entries, job.blocks, strict=False):
            if entry.state is EntryState.READY:
                self._orders[entry] = (entry.last_used, entry.hits)
                if entry.retention != block.retention:
                    self._rewrite(entry)

    def retain(self, keys: Sequence[BlockHash], retention: Retention | None) -> None:
        for entry in self._directory.retain(keys, retention):
            if entry.state is EntryState.READY:
                self._rewrite(entry)

    def _prolonged(self, entry: TierEntry) -> None:
        if entry.state is EntryState.READY and self._files.writable:
            self._rewrite(entry)

    def _rewrite(self, entry: TierEntry) -> None:
        """Bring the record of a ready entry up to date."""
        crc, kind = self._stored[entry.slot]
        record = BlockRecord(
            entry.identity,
            crc,
            self.block_bytes,
            entry.retention,
            entry.last_used,
            self._clock.time(),
            entry.hits,
            kind,
        )
        try:
            self._files.write_record(entry.slot, record.pack())
        except OSError as error:
            self._failures.count_error(error)
        else:
            self._orders[entry] = (entry.last_used, entry.hits)

    def _removed(self, entry: TierEntry, removal: Removal) -> None:
        self._orders.pop(entry, None)
        self._clear(entry)

    def _freed(self, entry: TierEntry, removal: Removal) -> None:
        self._stored.pop(entry.slot, None)
        if removal is not Removal.EVICTED:
            self._clear(entry)  # `write` may have committed it, also while it expired
        if not must_wipe(entry.retention, removal):
            return
        try:
            self._files.wipe_block(entry.slot)
        except OSError as error:
            self._failures.count_error(error)

    def _clear(self, entry: TierEntry) -> None:
        try:
            self._files.clear_record(entry.slot)
        except OSError as error:
            self._failures.count_error(error)

    def expire(self) -> None:
        super().expire()
        self._others_expiry.expire(self._clock.time())

    def close(self) -> None:
        """Also writes down what was used how recently, and waits until the device has everything, for
        `SYNC_SECONDS` at most: the system goes on writing when the process has ended."""
        if self._lock.released:
            return
        for entry, known in list(self._orders.items()):
            if known != (entry.last_used, entry.hits):
                self._rewrite(entry)
        sync = threading.Thread(target=self._sync, name="disk-tier-sync", daemon=True)
        sync.start()
        sync.join(SYNC_SECONDS)
        if not sync.is_alive():
            self._files.close()
        self._lock.release()

    def _sync(self) -> None:
        try:
            self._delete_set_aside()
            self._files.sync()
        except OSError as error:
            self._failures.count_error(error)
