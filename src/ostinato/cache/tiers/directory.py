"""TierDirectory: which blocks a tier has, who uses them, and which may go. Knows slots, never bytes.

What all tiers have in common. It keeps the prefixes' tree (an entry knows its parent and its children), so that
only leaves are ever offered to the eviction policy: nothing is evicted while something behind it is stored.

    writing ──commit──► ready ◄──► pinned            by slot:  free + writing + ready + gone but still used
       │                  │                                     = slots that were ever used
       └─give up─► gone ◄─┘ evicted, expired, erased

An entry that is gone while somebody still moves its bytes keeps its slot until that ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from ostinato.cache.eviction.base import EvictionPolicy
from ostinato.cache.retention import ExpiryQueue, Retention
from ostinato.cache.tiers.base import TierAnswer, TierBlock
from ostinato.cache.tiers.candidates import Candidates
from ostinato.cache.tiers.entry import EntryState, Removal, TierEntry
from ostinato.cache.tiers.integrity import check_entries, check_slots
from ostinato.cache.tiers.slots import SlotAllocator
from ostinato.cache.types import BlockHash, TenantId
from ostinato.clock import Clock
from ostinato.errors import CacheIntegrityError

EntryHook = Callable[[TierEntry, Removal], None]


def _nothing(entry: TierEntry, removal: Removal) -> None:
    """The hook of a tier that has nothing to clear."""


class TierDirectory:
    """Entries, their tree, their slots and the candidates for eviction. For one thread.

    Args:
        slots: where blocks may lie; its capacity is the bound.
        slot_bytes: what one block takes.
        policy: ranks the candidates.
        clock: for hard deadlines.
        on_removed: called when nobody can find a ready entry any more.
        on_freed: called when nobody moves an entry's bytes any more either, before its slot is reused.
        on_prolonged: called when the promise to a block behind an entry has moved the entry's own deadline on.
    """

    def __init__(
        self,
        slots: SlotAllocator,
        slot_bytes: int,
        policy: EvictionPolicy[TierEntry],
        clock: Clock,
        on_removed: EntryHook = _nothing,
        on_freed: EntryHook = _nothing,
        on_prolonged: Callable[[TierEntry], None] = lambda entry: None,
    ) -> None:
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._candidates = Candidates(policy)
        self._clock = clock
        self._on_removed = on_removed
        self._on_freed = on_freed
        self._on_prolonged = on_prolonged
        self._entries: dict[BlockHash, TierEntry] = {}
        self._leaving: dict[TierEntry, Removal] = {}  # gone, slot still in use
        self._deadlines: ExpiryQueue[TierEntry] = ExpiryQueue()
        self._tenant_slots: Counter[TenantId] = Counter()
        self._uses = 0.0
        self.removed: Counter[Removal] = Counter()
        self.stored = 0
        self.refused = 0

    # ------------------------------------------------------------------ questions

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        """Whether `key` is ready or being written, its deadline passed or not."""
        return key in self._entries

    def is_leaving(self, key: BlockHash) -> bool:
        """Whether `key` is gone, but a job still moves its bytes."""
        return any(entry.key == key for entry in self._leaving)

    def entries(self) -> Iterable[TierEntry]:
        """All that can be found or is being written."""
        return self._entries.values()

    def get(self, key: BlockHash) -> TierEntry | None:
        """The entry of `key`, ready or being written, unless its hard deadline has passed."""
        self.expire()
        return self._entries.get(key)

    def answer(self, key: BlockHash) -> TierAnswer:
        """What a tier's `lookup` says."""
        entry = self.get(key)
        if entry is None:
            return TierAnswer.MISS
        return TierAnswer.HIT if entry.state is EntryState.READY else TierAnswer.PENDING

    @property
    def used_slots(self) -> int:
        return len(self._entries) + len(self._leaving)

    def tenant_bytes(self) -> dict[TenantId, int]:
        """Bytes by tenant, of those that have any."""
        return {t: slots * self.slot_bytes for t, slots in self._tenant_slots.items() if slots}

    # ------------------------------------------------------------------ stores

    def reserve(self, blocks: Sequence[TierBlock]) -> list[tuple[TierBlock, TierEntry]] | None:
        """Entries in state writing for what of `blocks` is new and has its parent; see `KVTier.prepare_store`.

        None if there is no room; then nothing has changed.
        """
        self.expire()
        wanted, needed = self._select(blocks)
        if self._make_room(len(wanted), needed):
            return self._attach(wanted)
        self.refused += len(wanted)
        return None

    def _select(self, blocks: Sequence[TierBlock]) -> tuple[list[TierBlock], set[TierEntry]]:
        """What of `blocks` is to be stored, and the entries that must not be evicted for it."""
        now = self._clock.time()
        wanted: dict[BlockHash, TierBlock] = {}
        needed: set[TierEntry] = set()
        for block in blocks:
            key, parent = block.identity.key, block.identity.parent
            known = self._entries.get(key)
            before = None if parent is None else self._entries.get(parent)
            needed.update(entry for entry in (known, before) if entry is not None)
            rooted = parent is None or before is not None or parent in wanted
            lasting = block.retention is None or block.retention.readable(now)
            if known is None and rooted and lasting:
                wanted[key] = block
        return list(wanted.values()), needed

    def _make_room(self, count: int, needed: Collection[TierEntry]) -> bool:
        """Evict until `count` slots are free, but none of `needed`; if False, nothing has changed."""
        for entry in needed:
            entry.users += 1
            self._candidates.refresh(entry)
        fits = self._evict_for(count)
        for entry in needed:
            entry.users -= 1
            self._candidates.refresh(entry)
        return fits

    def _evict_for(self, count: int) -> bool:
        lacking = count - self.slots.num_free
        victims: list[TierEntry] = []
        while len(victims) < lacking:
            if not len(self._candidates):
                self._bring_back(victims)
                return False
            victims.append(self._candidates.pop_victim())
            self._leave_parent(victims[-1])
        for victim in victims:
            self._cover_head(victim)
            self._remove(victim, Removal.EVICTED)
        return True

    def _bring_back(self, victims: list[TierEntry]) -> None:
        """Undo evictions. The policy is empty, so adding the leaves in their old order restores it."""
        for victim in victims:
            if victim.parent is not None:
                victim.parent.children.add(victim)
        for victim in victims:
            self._candidates.refresh(victim)

    def _attach(self, wanted: list[TierBlock]) -> list[tuple[TierBlock, TierEntry]]:
        self._uses += 1
        reserved = []
        for block, slot in zip(wanted, self.slots.take(len(wanted)), strict=True):
            parent_key = block.identity.parent
            parent = None if parent_key is None else self._entries[parent_key]
            entry = TierEntry(block.identity, block.retention, parent, slot, self._uses)
            entry.users = 1  # its writer
            self._enter(entry)
            reserved.append((block, entry))
        return reserved

    def _enter(self, entry: TierEntry) -> None:
        self._entries[entry.key] = entry
        parent = entry.parent
        if parent is not None:
            parent.children.add(entry)
            parent.fan_out = max(parent.fan_out, len(parent.children))
            parent.last_used = max(parent.last_used, entry.last_used)
            self._candidates.refresh(parent)
        self._tenant_slots[entry.tenant] += 1
        self._schedule(entry)

    def commit(self, entries: Sequence[TierEntry], num_written: int) -> None:
        """The first `num_written` of `entries`, from `reserve`, become ready; the others are given up."""
        written = [e for e in entries[:num_written] if e.state is EntryState.WRITING]
        for entry in entries:
            entry.users -= 1
        for entry in written:
            entry.state = EntryState.READY
        self.stored += len(written)
        if written:  # none, where the copying failed or all was erased meanwhile
            self._candidates.stored(written)
        for entry in entries[num_written:]:
            self._remove_tree(entry, Removal.ABORTED)
        for entry in entries:
            self._free_if_unused(entry)

    def adopt(
        self, block: TierBlock, slot: int | None, last_used: float, hits: int = 0
    ) -> TierEntry | None:
        """Enter a block that is stored already, as ready and pinned, with slots settled by the caller.

        Whoever adopts many unpins them at the end, so that no block is ranked before those behind it are there.

        Args:
            block: what it is.
            slot: where it lies, occupied by the caller; None to take any, evicting another if need be.
            last_used: order of use among what is adopted at start; later uses count on from the highest.
            hits: reuses so far.

        Returns:
            None if it is known, has no parent here, or there is no slot.
        """
        parent_key = block.identity.parent
        parent = None if parent_key is None else self._entries.get(parent_key)
        orphan = parent_key is not None and parent is None
        if block.identity.key in self._entries or orphan:
            return None
        if slot is None:
            if not self._make_room(1, () if parent is None else (parent,)):
                return None
            slot = self.slots.take(1)[0]
        entry = TierEntry(block.identity, block.retention, parent, slot, last_used)
        entry.state = EntryState.READY
        entry.users = 1
        entry.hits = hits
        self._uses = max(self._uses, last_used)
        self._enter(entry)
        self._candidates.stored([entry])
        return entry

    # ------------------------------------------------------------------ loads

    def pin(self, keys: Sequence[BlockHash]) -> list[TierEntry]:
        """The ready entries of `keys`, kept until `unpin`.

        Raises:
            KeyError: if one is not ready; then nothing has changed.
        """
        self.expire()
        entries = [self._entries[key] for key in keys]
        for entry in entries:
            if entry.state is not EntryState.READY:
                raise KeyError(entry.key)
        for entry in entries:
            entry.users += 1
            self._candidates.refresh(entry)
        return entries

    def unpin(self, entries: Sequence[TierEntry], failed: Iterable[int]) -> None:
        """Undo `pin`; the entries at positions `failed` could not be read and are erased."""
        for entry in entries:
            entry.users -= 1
        for at in failed:
            self._remove_tree(entries[at], Removal.ERASED)
        for entry in reversed(entries):
            self._candidates.refresh(entry)
            self._free_if_unused(entry)

    # ------------------------------------------------------------------ use and promises

    def touch(self, keys: Sequence[BlockHash]) -> None:
        """The entries of `keys`, heads first, were used again."""
        entries = self._ready(keys)
        self._uses += 1
        self._candidates.reused(entries, self._uses)

    def retain(self, keys: Sequence[BlockHash], retention: Retention | None) -> list[TierEntry]:
        """Replace the promise of `keys`.

        Returns:
            The entries whose promise is another now.
        """
        changed = [e for e in self._known(keys) if e.retention != retention]
        for entry in changed:
            self._candidates.suspend(entry)
            entry.retention = retention
            self._schedule(entry)
            self._candidates.refresh(entry)
        return changed

    def cover_heads(self, entries: Sequence[TierEntry]) -> None:
        """`entries`, parents first, come from an earlier process, which renewed promises at the deepest block
        of a prefix alone; the blocks before it were used whenever that one was."""
        for entry in reversed(entries):
            below: TierEntry | None = entry
            while below is not None and self._cover_head(below):
                below = below.parent

    def _cover_head(self, entry: TierEntry) -> bool:
        """See `TierEntry.cover_head`."""
        before = entry.parent
        if before is None or not entry.cover_head():
            return False
        self._candidates.suspend(before)
        self._schedule(before)
        self._candidates.refresh(before)
        self._on_prolonged(before)
        return True

    def _known(self, keys: Sequence[BlockHash]) -> list[TierEntry]:
        self.expire()
        return [entry for key in keys if (entry := self._entries.get(key)) is not None]

    def _ready(self, keys: Sequence[BlockHash]) -> list[TierEntry]:
        return [entry for entry in self._known(keys) if entry.state is EntryState.READY]

    def _schedule(self, entry: TierEntry) -> None:
        self._candidates.promised(entry)
        if entry.retention is not None and entry.retention.hard:
            self._deadlines.schedule(entry, entry.retention.until)
        else:
            self._deadlines.cancel(entry)
        for before in entry.would_end_too_early():
            self._deadlines.schedule(before, before.prolong(entry))
            self._candidates.promised(before)
            self._on_prolonged(before)

    # ------------------------------------------------------------------ removal

    def erase(self, keys: Sequence[BlockHash]) -> None:
        """Remove `keys` with their descendants."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None:
                self._remove_tree(entry, Removal.ERASED)

    def expire(self) -> None:
        """Remove what has passed a hard deadline, with its descendants."""
        deadline = self._deadlines.next_deadline()
        now = self._clock.time()
        if deadline is not None and deadline <= now:
            for entry in self._deadlines.due(now):
                self._remove_tree(entry, Removal.EXPIRED)

    def _remove_tree(self, root: TierEntry, removal: Removal) -> None:
        if root.state is EntryState.GONE:
            return
        self._leave_parent(root)
        order = [root]
        for entry in order:
            order.extend(entry.children)
        for entry in reversed(order):
            entry.children.clear()
            self._remove(entry, removal)

    def _leave_parent(self, entry: TierEntry) -> None:
        parent = entry.parent
        if parent is not None:
            parent.children.discard(entry)
            self._candidates.suspend(parent)
            parent.last_used = max(parent.last_used, entry.last_used)
            self._candidates.refresh(parent)

    def _remove(self, entry: TierEntry, removal: Removal) -> None:
        """`entry`, which has left its parent and has no children, can no longer be found."""
        ready = entry.state is EntryState.READY
        if ready:
            self._candidates.dropped(entry)
        entry.state = EntryState.GONE
        entry.parent = None
        del self._entries[entry.key]
        self._leaving[entry] = removal
        self._deadlines.cancel(entry)
        self.removed[removal] += 1
        if ready:
            self._on_removed(entry, removal)
        self._free_if_unused(entry)

    def _free_if_unused(self, entry: TierEntry) -> None:
        if entry in self._leaving and not entry.users:
            removal = self._leaving.pop(entry)
            self._tenant_slots[entry.tenant] -= 1
            self._on_freed(entry, removal)
            self.slots.give_back(entry.slot)

    def check_integrity(self) -> None:
        """See `KVTier.check_integrity`."""
        check_slots(self.slots, [*self._entries.values(), *self._leaving])
        self._candidates.check(self._entries.values())
        used: Counter[TenantId] = Counter()
        for entry in (*self._entries.values(), *self._leaving):
            used[entry.tenant] += self.slot_bytes
        if dict(used) != self.tenant_bytes():
            raise CacheIntegrityError("a tenant's bytes are miscounted")
        check_entries(self._entries, self._deadlines)
