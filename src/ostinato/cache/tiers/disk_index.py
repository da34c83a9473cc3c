"""What the index file of a folder says, without reading any block: which slots are live, and what is wrong.

A record counts only if it is sound, its content lies within the file, its deadline has not passed and its
parent counts too. Everything else is dropped, with the reason.
"""

from __future__ import annotations

import errno
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from ostinato.cache.retention import Retention, is_readable
from ostinato.cache.tiers.disk_files import BlockFiles
from ostinato.cache.tiers.record import BlockRecord, DamagedRecordError, ForeignRecordError
from ostinato.cache.types import BlockHash


class Drop(StrEnum):
    """Why a record does not count."""

    DAMAGED = "damaged"
    """The record does not match its own checksum."""
    FOREIGN = "foreign"
    """Of another format version."""
    CUT = "cut"
    """The block's file ends before its content does, or its length is another."""
    DUPLICATE = "duplicate"
    """Another slot has the same block."""
    EXPIRED = "expired"
    """Past a hard deadline."""
    ORPHANED = "orphaned"
    """The block before it is not there."""


@dataclass(slots=True)
class DiskIndex:
    """Contents of one folder.

    Attributes:
        live: records that count, by slot, parents before children.
        dropped: the other slots that are not empty, with the reason.
    """

    live: dict[int, BlockRecord] = field(default_factory=dict)
    dropped: dict[int, Drop] = field(default_factory=dict)

    def counts(self) -> Counter[Drop]:
        """Dropped records by reason."""
        return Counter(self.dropped.values())


def read_index(files: BlockFiles, now: float) -> DiskIndex:
    """Rebuild the index of `files`. O(slots), reads 256 bytes a slot.

    Args:
        files: of one folder.
        now: seconds since the Unix epoch.
    """
    index = DiskIndex()
    sound: dict[int, BlockRecord] = {}
    complete = files.num_complete_slots
    for slot, data in files.records():
        try:
            record = BlockRecord.unpack(data)
        except DamagedRecordError:
            index.dropped[slot] = Drop.DAMAGED
            continue
        except ForeignRecordError:
            index.dropped[slot] = Drop.FOREIGN
            continue
        if record.num_bytes != files.block_bytes or slot >= complete:
            index.dropped[slot] = Drop.CUT
        else:
            sound[slot] = record
    promises = _promises(sound.values())
    found: list[tuple[int, BlockRecord]] = []
    for slot, record in sound.items():
        if is_readable(promises.get(record.identity.key), now):
            found.append((slot, record))
        else:
            index.dropped[slot] = Drop.EXPIRED
    _keep_rooted(index, found)
    return index


def _promises(records: Iterable[BlockRecord]) -> dict[BlockHash, Retention]:
    """What was promised to blocks, by key, with what uses of the blocks behind them have added to it."""
    promised = [record for record in records if record.retention is not None]
    promised.sort(key=lambda record: -record.identity.depth)
    promises: dict[BlockHash, Retention] = {}
    for record in promised:
        known = promises.get(record.identity.key)
        assert record.retention is not None
        promises[record.identity.key] = (
            record.retention if known is None else record.retention.merged(known)
        )
    for record in promised:
        parent = record.identity.parent
        before = None if parent is None else promises.get(parent)
        if parent is not None and before is not None:
            promises[parent] = before.covering(promises[record.identity.key])
    return promises


def hard_deadlines(index: DiskIndex) -> dict[int, float]:
    """When each live slot must be erased, of those that must: no block outlives one before it."""
    promises = _promises(index.live.values())
    until: dict[BlockHash, float] = {}
    deadlines: dict[int, float] = {}
    for slot, record in index.live.items():  # parents before children
        identity, promise = record.identity, promises.get(record.identity.key)
        own = promise.until if promise is not None and promise.hard else math.inf
        behind = math.inf if identity.parent is None else until[identity.parent]
        until[identity.key] = min(own, behind)
        if until[identity.key] < math.inf:
            deadlines[slot] = until[identity.key]
    return deadlines


def _keep_rooted(index: DiskIndex, found: list[tuple[int, BlockRecord]]) -> None:
    """Sort `found` into live, orphaned and duplicate."""
    known: set[BlockHash] = set()
    for slot, record in sorted(found, key=lambda item: item[1].identity.depth):
        identity = record.identity
        if identity.key in known:
            index.dropped[slot] = Drop.DUPLICATE
        elif identity.parent is not None and identity.parent not in known:
            index.dropped[slot] = Drop.ORPHANED
        else:
            known.add(identity.key)
            index.live[slot] = record


def descendants(index: DiskIndex, slots: set[int]) -> set[int]:
    """`slots` and every live slot that stands behind one of them."""
    gone = {index.live[slot].identity.key for slot in slots}
    found = set(slots)
    for slot, record in index.live.items():  # parents before children
        if record.identity.parent in gone:
            gone.add(record.identity.key)
            found.add(slot)
    return found


def drop_slots(files: BlockFiles, index: DiskIndex, slots: set[int]) -> None:
    """Empty `slots`, live or dropped, and give their space back.

    Raises:
        OSError: if that cannot be written.
    """
    for slot in sorted(slots, reverse=True):
        files.clear_record(slot)
        files.wipe_block(slot)
        index.live.pop(slot, None)
        index.dropped.pop(slot, None)


def oldest_beyond(index: DiskIndex, num_slots: int, now: float) -> set[int]:
    """Live slots to give up so that `num_slots` stay: least recently used first, tails first, retained last."""
    if len(index.live) <= num_slots:
        return set()
    rank: dict[BlockHash, tuple[bool, float]] = {}
    for record in index.live.values():
        promised = record.retention is not None and record.retention.holds(now)
        rank[record.identity.key] = (promised, record.order)
    # A head is worth as much as the best of what stands behind it.
    for record in reversed(index.live.values()):
        identity = record.identity
        if identity.parent is not None:
            rank[identity.parent] = max(rank[identity.parent], rank[identity.key])
    by_rank = sorted(
        index.live,
        key=lambda slot: (rank[index.live[slot].identity.key], -index.live[slot].identity.depth),
    )
    return set(by_rank[: len(by_rank) - num_slots])


def compact(files: BlockFiles, index: DiskIndex) -> None:
    """Move the last live slots into empty ones before them, until the files can be cut where the live ones end.

    Killed in between, it leaves two copies of one block, of which the next start drops one.

    Raises:
        OSError: if a block cannot be moved.
    """
    end = len(index.live)
    holes = [slot for slot in range(end) if slot not in index.live]
    content = memoryview(bytearray(files.block_bytes))
    for slot in [slot for slot in index.live if slot >= end]:
        target = holes.pop()
        if files.read_block(slot, content) < len(content):
            raise OSError(errno.EIO, "a block can no longer be read in full", str(files.folder))
        files.clear_record(target)
        files.write_block(target, content)
        files.write_record(target, index.live[slot].pack())
        index.live[target] = index.live.pop(slot)
    files.truncate(end)
    index.live = dict(sorted(index.live.items(), key=lambda item: item[1].identity.depth))
    index.dropped.clear()
