"""RedisBlocks: what the remote tier says to a Redis or Valkey server. Blocking calls, for background threads.

    ostinato:{<digest>}:manifest       what the digest stands for, as JSON
    ostinato:{<digest>}:index          hash: chain hash → `BlockRecord`
    ostinato:{<digest>}:block:<hash>   `BlockRecord` followed by the block's content

Every block has an expiry: the deadline of a hard promise, else an idle time that each use starts anew.
A server that is down is left alone for a while that doubles with each failure.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ostinato.cache.tiers.base import TierFailure
from ostinato.cache.tiers.checksum import checksum
from ostinato.cache.tiers.disk_folder import TierFormat
from ostinato.cache.tiers.failures import TierFailures
from ostinato.cache.tiers.record import (
    RECORD_BYTES,
    BlockRecord,
    DamagedRecordError,
    ForeignRecordError,
)
from ostinato.cache.types import BlockHash
from ostinato.clock import Clock
from ostinato.errors import ConfigError

TIMEOUT_SECONDS = 5.0
LOAD_TIMEOUT_SECONDS = 1.0
"""For what a request waits for: a server that is slower than that is no help."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
BATCH = 512
"""Commands in one round trip at most."""


def _redis_module() -> Any:
    try:
        return importlib.import_module("redis")
    except ImportError as error:
        raise ConfigError(
            "the remote tier needs the package `redis`: pip install 'ostinato[remote]'"
        ) from error


def _client(redis: Any, url: str, timeout: float) -> Any:
    """A client that tries once.

    Raises:
        ConfigError: if the URL is none that it knows.
    """
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(
            f"the remote tier's URL is not usable ({error}): e.g. redis://HOST:6379/0"
        ) from error


class RedisBlocks:
    """Blocks of one format on one server. Never raises for what the server or the network does.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        kind: model and K/V format.
        idle_seconds: how long a block stays that nobody uses.
        failures: counts what goes wrong.
        clock: for pauses.

    Raises:
        ConfigError: if the package `redis` is missing or the URL is none that it knows.
    """

    def __init__(
        self, url: str, kind: TierFormat, idle_seconds: float, failures: TierFailures, clock: Clock
    ) -> None:
        redis = _redis_module()
        self._errors = redis.exceptions
        self._client = _client(redis, url, TIMEOUT_SECONDS)
        self._loader = _client(redis, url, LOAD_TIMEOUT_SECONDS)
        self._kind = kind
        self._idle_ms = max(1, int(1000 * idle_seconds))
        self._failures = failures
        self._clock = clock
        self._lock = threading.Lock()
        self._pause = FIRST_PAUSE
        self._resume_at = clock.monotonic()
        prefix = f"ostinato:{{{kind.name}}}:"
        self._manifest_key = prefix + "manifest"
        self._index_key = prefix + "index"
        self._block_prefix = (prefix + "block:").encode()

    # ------------------------------------------------------------------ reachability

    @property
    def paused(self) -> bool:
        """Whether the server failed so recently that it is left alone."""
        return self._clock.monotonic() < self._resume_at

    def _guarded(self, command: Any, num_blocks: int = 1) -> Any:
        """What `command()` returns, or None if the server did not do it; then `num_blocks` are counted."""
        if self.paused:
            self._failures.count(TierFailure.DISCONNECTED, "paused after a failure", num_blocks)
            return None
        errors = self._errors
        try:
            result = command()
        except (errors.ConnectionError, errors.TimeoutError, OSError) as error:
            self._failures.count(TierFailure.DISCONNECTED, error, num_blocks)
            self._back_off()
        except errors.ReadOnlyError as error:
            self._failures.count(TierFailure.READ_ONLY, error, num_blocks)
        except errors.OutOfMemoryError as error:
            self._failures.count(TierFailure.NO_SPACE, error, num_blocks)
        except errors.RedisError as error:
            # The text may hold keys, which are bytes.
            self._failures.count(TierFailure.IO_ERROR, ascii(str(error)), num_blocks)
        else:
            self._pause = FIRST_PAUSE
            return result
        return None

    def _back_off(self) -> None:
        with self._lock:
            if not self.paused:
                self._resume_at = self._clock.monotonic() + self._pause
                self._pause = min(2 * self._pause, LONGEST_PAUSE)

    # ------------------------------------------------------------------ blocks

    def put(self, record: BlockRecord, data: memoryview, lifetime: float | None) -> bool:
        """Store a block, visible at once as a whole.

        Args:
            record: of the block.
            data: its content.
            lifetime: seconds until the server deletes it, used or not; None: the idle time.
        """

        def store() -> bool:
            pipeline = self._client.pipeline(transaction=True)
            key, packed = record.identity.key, record.pack()
            value = b"".join((packed, data))
            pipeline.set(self._block_prefix + key, value, px=self._milliseconds(lifetime))
            pipeline.hset(self._index_key, key, packed)
            pipeline.execute()
            return True

        return self._guarded(store) is True

    def fetch(self, keys: Sequence[BlockHash], num_blocks: int = 0) -> Sequence[bytes | None]:
        """What the server has under each of `keys`, in one round trip; nothing where it does not answer.

        Args:
            keys: of blocks.
            num_blocks: counted as lost if it does not.
        """
        names = [self._block_prefix + key for key in keys]
        return self._guarded(lambda: self._loader.mget(names), num_blocks) or ()

    def get(self, key: BlockHash, out: memoryview) -> bool:
        """Fill `out` with the content of `key`; False, and counted, unless all of it is there and sound."""
        fetched = self.fetch([key], 1)
        return bool(fetched) and self.unpack(key, fetched[0], out)

    def unpack(self, key: BlockHash, value: bytes | None, out: memoryview) -> bool:
        """`get` of what `fetch` has brought."""
        if value is None:
            return self._lost(TierFailure.VANISHED, key)
        content = memoryview(value)[RECORD_BYTES:]
        try:
            record = BlockRecord.unpack(value[:RECORD_BYTES])
        except ForeignRecordError:
            return self._lost(TierFailure.FOREIGN_VERSION, key)
        except DamagedRecordError:
            return self._lost(TierFailure.CORRUPT, key)
        if len(content) < len(out):
            return self._lost(TierFailure.SHORT_READ, key)
        sound = len(content) == len(out) and record.identity.key == key
        if not sound or checksum(content, record.checksum_kind) != record.checksum:
            return self._lost(TierFailure.CORRUPT, key)
        out[:] = content
        return True

    def _lost(self, reason: TierFailure, key: BlockHash) -> bool:
        self._failures.count(reason, f"block {key.hex()[:12]}")
        return False

    def delete(self, keys: Sequence[BlockHash]) -> bool:
        """Remove blocks that may be there; False if some may be there still."""
        return all(
            self._guarded(lambda b=batch: self._delete(b), 0) is True for batch in _batches(keys)
        )

    def _delete(self, keys: Sequence[BlockHash]) -> bool:
        pipeline = self._client.pipeline(transaction=True)
        pipeline.delete(*(self._block_prefix + key for key in keys))
        pipeline.hdel(self._index_key, *keys)
        pipeline.execute()
        return True

    def describe(self, records: Sequence[BlockRecord]) -> bool:
        """Replace what the index says of blocks; False if the server did not."""
        fields = {record.identity.key: record.pack() for record in records}
        command = self._client.hset
        return not fields or (
            self._guarded(lambda: command(self._index_key, mapping=fields), 0) is not None
        )

    def keep(self, keys: Sequence[BlockHash], lifetime: float | None) -> bool:
        """Let `keys` expire after `lifetime` seconds from now, or the idle time; False if some may not."""
        return all(
            self._guarded(lambda b=batch: self._keep(b, lifetime), 0) is True
            for batch in _batches(keys)
        )

    def _keep(self, keys: Sequence[BlockHash], lifetime: float | None) -> bool:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.pexpire(self._block_prefix + key, self._milliseconds(lifetime))
        pipeline.execute()
        return True

    def _milliseconds(self, lifetime: float | None) -> int:
        return self._idle_ms if lifetime is None else max(1, int(1000 * lifetime))

    # ------------------------------------------------------------------ index

    def find(self, keys: Sequence[BlockHash]) -> dict[BlockHash, BlockRecord]:
        """The records of those of `keys` that are there; of none where the server does not answer."""
        found: dict[BlockHash, BlockRecord] = {}
        for batch in _batches(keys):
            answer = self._guarded(lambda batch=batch: self._find(batch), len(batch))
            found.update(answer or {})
        return found

    def _find(self, keys: Sequence[BlockHash]) -> dict[BlockHash, BlockRecord]:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hmget(self._index_key, *keys)
        for key in keys:
            pipeline.exists(self._block_prefix + key)
        packed, *exists = pipeline.execute()
        found, stale = {}, []
        for key, value, there in zip(keys, packed, exists, strict=True):
            record = self._record(value) if there and value is not None else None
            if record is not None and record.identity.key == key:
                found[key] = record
            elif value is not None and not there:
                stale.append(key)
        if stale:
            self._client.hdel(self._index_key, *stale)
        return found

    def _record(self, value: bytes) -> BlockRecord | None:
        try:
            record = BlockRecord.unpack(value)
        except ForeignRecordError as error:
            self._failures.count(TierFailure.FOREIGN_VERSION, error)
            return None
        except DamagedRecordError as error:
            self._failures.count(TierFailure.CORRUPT, error)
            return None
        return record if record.num_bytes == self._kind.block_bytes else None

    def load_index(self) -> dict[BlockHash, BlockRecord]:
        """The records of all blocks that are there; announces the format beside them."""
        keys = self._guarded(self._known_keys, 0)
        return self.find(keys or [])

    def _known_keys(self) -> list[BlockHash]:
        self._client.set(self._manifest_key, json.dumps(self._kind.manifest()))
        fields = self._client.hscan_iter(self._index_key, count=BATCH)
        return [BlockHash(key) for key in dict(fields)]  # a scan may give one twice

    def close(self) -> None:
        self._client.close()
        self._loader.close()


def _batches(keys: Sequence[BlockHash]) -> Iterator[Sequence[BlockHash]]:
    for start in range(0, len(keys), BATCH):
        yield keys[start : start + BATCH]
