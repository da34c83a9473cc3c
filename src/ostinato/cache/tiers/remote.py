"""RemoteTier: blocks on a Redis or Valkey server, which other Ostinato servers may share.

Bookkeeping never waits for the network. The directory holds what this process knows to be there: what it
stored, what the index said at start, and what it asked for since. A block that it does not know is asked for in
the background (`lookup` answers RETRY meanwhile), and the answer holds for a second. Whatever the server loses
in between is found out by the read, and is a miss.

The bound is over what this process knows of. What it stores beyond that evicts others by policy, here and on
the server. What it only hears of deletes nothing there: a block that gives way to it is forgotten here alone.
Otherwise a process with a small bound would empty the server for all others by starting. The server's own
`maxmemory` is the bound over all that share it.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ostinato.cache.eviction.base import EvictionPolicy
from ostinato.cache.retention import Retention, TenantBudgets
from ostinato.cache.tiers.base import (
    LoadJob,
    StoreJob,
    TierAnswer,
    TierBlock,
    TierFailure,
    TierStats,
)
from ostinato.cache.tiers.checksum import checksum
from ostinato.cache.tiers.disk_folder import TierFormat
from ostinato.cache.tiers.entry import EntryState, Removal, TierEntry
from ostinato.cache.tiers.record import RECORD_BYTES, BlockRecord
from ostinato.cache.tiers.remote_store import RedisBlocks
from ostinato.cache.tiers.slotted import SlottedTier
from ostinato.cache.types import BlockHash, Tier
from ostinato.clock import Clock

_log = logging.getLogger(__name__)

ABSENT_SECONDS = 1.0
"""How long an answer "not there" holds."""

IDLE_SECONDS = 7 * 86400.0
"""How long the server keeps a block that nobody uses."""

CLOSE_SECONDS = 5.0
"""How long `close` waits for what is still to be said to the server."""

MAX_ERRANDS = 1024
"""Questions and messages that wait for a slow server; what comes beyond them is dropped."""

REPEAT_SECONDS = 1.0
"""How soon a promise or deletion that the server did not take is told again."""

Records = dict[BlockHash, BlockRecord]


class RemoteTier(SlottedTier):
    """See `SlottedTier` for the arguments that are not here; a block takes its content and 256 bytes.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        kind: model and K/V format; part of every key on the server.
        idle_seconds: how long a block stays that nobody uses.

    Raises:
        ConfigError: if the package `redis` is missing, the URL is not usable, or not even one block fits. A
            server that cannot be reached is no error: until it can, everything is a miss.
    """

    def __init__(
        self,
        url: str,
        kind: TierFormat,
        capacity_bytes: int,
        policy: EvictionPolicy[TierEntry],
        budgets: TenantBudgets,
        clock: Clock,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        slot_bytes = kind.block_bytes + RECORD_BYTES
        super().__init__(
            Tier.REMOTE, kind.block_bytes, slot_bytes, capacity_bytes, policy, budgets, clock
        )
        self._store = RedisBlocks(url, kind, idle_seconds, self._failures, clock)
        self._idle_seconds = idle_seconds
        self._asked: set[BlockHash] = set()
        self._absent: dict[BlockHash, float] = {}  # until when
        self._is_hearing = False  # of what is there, rather than storing
        self._kept_at: dict[TierEntry, float] = {}  # when the server was last told to keep it
        self._promises: dict[BlockHash, BlockRecord] = {}  # to be told
        self._promises_lock = threading.Lock()
        self._is_promising = self._is_deleting = False  # an errand for it waits or runs
        self._repeat_at = clock.monotonic()
        self._to_delete: set[BlockHash] = set()
        self._in_deletion: frozenset[BlockHash] = frozenset()
        self._deletion = threading.Condition()  # guards both
        self._answers: queue.SimpleQueue[tuple[Sequence[BlockHash], Records]] = queue.SimpleQueue()
        self._errands: queue.Queue[Callable[[], object] | None] = queue.Queue(MAX_ERRANDS)
        self._closed = False
        self._worker = threading.Thread(target=self._run_errands, name="remote-tier", daemon=True)
        self._worker.start()
        self._errands.put(lambda: self._answer((), self._store.load_index))

    # ------------------------------------------------------------------ background

    def _run_errands(self) -> None:
        while (errand := self._errands.get()) is not None:
            try:
                errand()
            except Exception as error:  # a bug: the next question deserves an answer all the same
                self._failures.count(TierFailure.IO_ERROR, ascii(repr(error)))
                _log.debug("talking to the remote tier's server failed", exc_info=True)
            finally:
                self._errands.task_done()
        self._errands.task_done()

    def drain(self) -> None:
        """Wait until everything asked and told so far is answered and done."""
        self._errands.join()
        self._take_answers()

    def _ask(self, keys: Sequence[BlockHash]) -> None:
        if not keys:
            return
        if self._tell(lambda: self._answer(keys, lambda: self._store.find(keys)), len(keys)):
            self._asked.update(keys)
        else:
            self._note_absent(keys)

    def _answer(self, asked: Sequence[BlockHash], find: Callable[[], Records]) -> None:
        """Of the worker. Whatever happens, nobody is left waiting for the answer."""
        records: Records = {}
        try:
            records = find()
        finally:
            self._answers.put((asked, records))

    def _note_absent(self, keys: Sequence[BlockHash]) -> None:
        until = self._clock.monotonic() + ABSENT_SECONDS
        self._absent.update((key, until) for key in keys)

    def _take_answers(self) -> None:
        """Enter what the server said meanwhile."""
        while not self._answers.empty():
            asked, records = self._answers.get()
            self._is_hearing = True
            taken_up = []
            for record in sorted(records.values(), key=lambda r: (r.identity.depth, r.order)):
                if not self._is_condemned(record.identity.key):
                    entry = self._directory.adopt(record.block, None, record.order, record.hits)
                    if entry is not None:
                        self._directory.unpin([entry], ())  # what follows may need its room
                        taken_up.append(entry)
            self._directory.cover_heads(taken_up)
            self._is_hearing = False
            self._asked.difference_update(asked)
            self._note_absent(asked)
            self._forget_old_answers()

    def _is_condemned(self, key: BlockHash) -> bool:
        """Whether `key` is gone here and about to be deleted on the server."""
        return key in self._to_delete or key in self._in_deletion or self._directory.is_leaving(key)

    def _forget_old_answers(self) -> None:
        now = self._clock.monotonic()
        while self._absent:
            key = next(iter(self._absent))
            if self._absent[key] > now:
                return
            del self._absent[key]

    # ------------------------------------------------------------------ questions

    def lookup(self, key: BlockHash) -> TierAnswer:
        return self.lookup_prefix([key])[1]

    def lookup_prefix(self, keys: Sequence[BlockHash]) -> tuple[int, TierAnswer]:
        self._take_answers()
        self._forget_old_answers()
        for at, key in enumerate(keys):
            answer = super().lookup(key)
            if answer is TierAnswer.MISS and self._is_askable(key):
                self._ask([k for k in keys[at:] if self._is_unknown(k)])
                answer = TierAnswer.RETRY
            if answer is not TierAnswer.HIT:
                return at, answer
        return len(keys), TierAnswer.HIT

    def _is_askable(self, key: BlockHash) -> bool:
        return not (key in self._absent or self._is_condemned(key) or self._store.paused)

    def _is_unknown(self, key: BlockHash) -> bool:
        known = key in self._asked or key in self._absent or key in self._directory
        return not known and not self._is_condemned(key)

    # ------------------------------------------------------------------ bytes

    def prepare_store(self, blocks: Sequence[TierBlock]) -> StoreJob | None:
        self._take_answers()
        if self._store.paused:
            self._directory.refused += len(blocks)
            return None
        return super().prepare_store(blocks)

    def write(self, job: StoreJob, at: int, data: memoryview) -> bool:
        block = job.blocks[at]
        entry = self._open_stores[job][at]
        self._await_deletion(block.identity.key)
        record = self._record(entry, block.retention, checksum(data))
        if self._store.put(record, data.cast("B"), self._lifetime(block.retention)):
            return True
        job.failed.add(at)
        return False

    def fetch(self, job: LoadJob, task: range) -> None:
        values = self._store.fetch([job.keys[at] for at in task])
        job.fetched.update(zip(task, values, strict=False))

    def read(self, job: LoadJob, at: int, out: memoryview) -> bool:
        key, out = job.keys[at], out.cast("B")
        is_fetched = at in job.fetched
        value = job.fetched.pop(at, None)
        if self._store.unpack(key, value, out) if is_fetched else self._store.get(key, out):
            return True
        job.failed.add(at)
        return False

    def _record(self, entry: TierEntry, retention: Retention | None, crc: int = 0) -> BlockRecord:
        """For the index no checksum is needed: the one that counts is beside the content."""
        return BlockRecord(
            entry.identity,
            crc,
            self.block_bytes,
            retention,
            entry.last_used,
            self._clock.time(),
            entry.hits,
        )

    def _lifetime(self, retention: Retention | None) -> float | None:
        """Seconds until the server is to delete a block; None: its idle time."""
        if retention is None:
            return None
        left = retention.until - self._clock.time()
        return left if retention.hard else max(left, self._idle_seconds)

    # ------------------------------------------------------------------ what the server is told

    def touch(self, keys: Sequence[BlockHash]) -> None:
        super().touch(keys)
        now = self._clock.monotonic()
        used = [e for key in keys if (e := self._directory.get(key)) is not None]
        soft = [e for e in used if e.retention is None or not e.retention.hard]
        due = [e for e in soft if now - self._kept_at.get(e, 0.0) > self._idle_seconds / 8]
        self._kept_at.update((entry, now) for entry in due)
        by_lifetime = _grouped((self._lifetime(entry.retention), entry.key) for entry in due)
        for lifetime, group in by_lifetime.items():
            self._tell(partial(self._store.keep, group, lifetime), len(group))

    def retain(self, keys: Sequence[BlockHash], retention: Retention | None) -> None:
        self._tell_promises(self._directory.retain(keys, retention))

    def complete_store(self, job: StoreJob, num_written: int) -> None:
        entries = self._open_stores.get(job, [])
        super().complete_store(job, num_written)
        written = zip(entries, job.blocks, strict=False)
        self._tell_promises(e for e, block in written if e.retention != block.retention)

    def _prolonged(self, entry: TierEntry) -> None:
        self._tell_promises([entry])

    def _tell_promises(self, entries: Iterable[TierEntry]) -> None:
        """Of a block only the last word counts, so what waits for a slow server is bounded."""
        ready = [entry for entry in entries if entry.state is EntryState.READY]
        if not ready:
            return
        with self._promises_lock:
            self._promises.update((e.key, self._record(e, e.retention)) for e in ready)
        self._tell_pending()

    def _tell_pending(self) -> None:
        """Have the worker tell what is to be told: for the first time, or again if it is time for that."""
        if self._store.paused or self._clock.monotonic() < self._repeat_at:
            return
        if self._promises and not self._is_promising:
            self._is_promising = True  # first: the worker may be there before `_tell` returns
            if not self._tell(self._send_promises):
                self._is_promising = False
        if self._to_delete and not self._is_deleting:
            self._is_deleting = True
            if not self._tell(self._delete_pending):
                self._is_deleting = False

    def _send_promises(self) -> None:
        with self._promises_lock:
            self._is_promising = False
            records, self._promises = self._promises, {}
        told = self._store.describe(list(records.values()))
        lifetimes = _grouped((self._lifetime(r.retention), key) for key, r in records.items())
        for lifetime, keys in lifetimes.items():
            told &= self._store.keep(keys, lifetime)
        if not told:
            with self._promises_lock:
                known = {k: r for k, r in records.items() if k in self._directory}
                self._promises = known | self._promises  # what was promised since counts
            self._repeat_at = self._clock.monotonic() + REPEAT_SECONDS

    def _removed(self, entry: TierEntry, removal: Removal) -> None:
        self._kept_at.pop(entry, None)
        with self._promises_lock:
            self._promises.pop(entry.key, None)

    def _freed(self, entry: TierEntry, removal: Removal) -> None:
        if entry.key in self._directory:
            return  # stored again while somebody still read the old one
        if self._is_hearing and removal is Removal.EVICTED:
            return
        with self._deletion:
            self._to_delete.add(entry.key)
        self._tell_pending()

    def _await_deletion(self, key: BlockHash) -> None:
        """Before `key` is stored again: an older deletion must not come behind it."""
        with self._deletion:
            self._to_delete.discard(key)
            self._deletion.wait_for(lambda: key not in self._in_deletion)

    def _delete_pending(self) -> None:
        with self._deletion:
            self._is_deleting = False
            self._in_deletion = frozenset(self._to_delete)
            self._to_delete.clear()
        deleted = False
        try:
            deleted = self._store.delete(list(self._in_deletion))
        finally:
            with self._deletion:
                if not deleted:
                    again = (key for key in self._in_deletion if key not in self._directory)
                    self._to_delete.update(again)
                    self._repeat_at = self._clock.monotonic() + REPEAT_SECONDS
                self._in_deletion = frozenset()
                self._deletion.notify_all()

    def _tell(self, command: Callable[[], object], num_blocks: int = 0) -> bool:
        """Have the worker call `command`, after all that it was told before.

        Returns:
            False if too much waits already; then `num_blocks` are counted as lost.
        """
        try:
            self._errands.put_nowait(command)
        except queue.Full:
            reason = f"{MAX_ERRANDS} questions and messages wait already"
            self._failures.count(TierFailure.DISCONNECTED, reason, num_blocks)
            return False
        return True

    def expire(self) -> None:
        self._take_answers()
        super().expire()
        self._tell_pending()

    def stats(self) -> TierStats:
        self._take_answers()
        return super().stats()

    def close(self) -> None:
        """Also says to the server what is still to be said, for a few seconds at most."""
        if self._closed:
            return
        self._closed = True
        self._tell_pending()
        with contextlib.suppress(queue.Full):
            self._errands.put(None, timeout=CLOSE_SECONDS)
            self._worker.join(CLOSE_SECONDS)
        self._store.close()


def _grouped(
    pairs: Iterable[tuple[float | None, BlockHash]],
) -> dict[float | None, list[BlockHash]]:
    groups: dict[float | None, list[BlockHash]] = {}
    for lifetime, key in pairs:
        groups.setdefault(lifetime, []).append(key)
    return groups
