"""Block memory of the quantised formats: sealed bytes for all blocks, fp16 for the few that are open.

    sealed     uint8    (num_blocks, bytes_per_block)                                  codec/base.py
    open       float16  (num_open, layers, 2, kv heads, block_size, head_dim)
    open_slot  int32    (num_blocks,): the block's place in `open`, -1 if it is sealed

A reader takes a block from ``open[open_slot[b]]`` where that is not -1, else decodes ``sealed[b]``. So the
newest block of a sequence is read in full precision until it is full, and so is what a step computes while
it runs.

             open_for_write                      seal
    sealed ───────────────► open (written to) ─────────► sealed
             (decodes what the block held)

Blocks that are full are sealed after the step that filled them. A partial block stays open as long as its
place is not wanted; then the one that was not written to for longest is sealed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ostinato.cache.codec import KVCodec
from ostinato.cache.codec.base import KEY, VALUE, Bytes, Float32Array
from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.types import BlockId
from ostinato.errors import CacheIntegrityError, ConfigError

SEALED = -1
"""In `open_slot`."""


@dataclass(frozen=True, slots=True)
class BlockWrites:
    """Which blocks a step writes to, each once.

    Attributes:
        block_ids: ``(n,)``.
        starts: ``(n,)``, tokens of each block that stay as they are; the step writes behind them.
        ends: ``(n,)``, tokens of each block afterwards.
    """

    block_ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]

    @classmethod
    def of_slots(cls, slot_mapping: npt.NDArray[np.int64], block_size: int) -> BlockWrites:
        """From ``block_id × block_size + offset`` of each token, a sequence's tokens in order."""
        block_ids, offsets = np.divmod(slot_mapping, block_size)
        first = np.flatnonzero(np.diff(block_ids, prepend=-1))
        last = np.append(first[1:], len(slot_mapping)) - 1
        return cls(block_ids[first], offsets[first], offsets[last] + 1)

    def filled(self, block_size: int) -> npt.NDArray[np.int64]:
        """The blocks that the step fills."""
        found: npt.NDArray[np.int64] = self.block_ids[self.ends == block_size]
        return found


class QuantisedKVStorage:
    """See the module's docstring.

    One thread computes. Others may move the bytes of blocks that it does not use meanwhile; the lock is for the
    places in `open`, which such a block may still have from an earlier owner.

    Args:
        spec: of a quantised format.
        num_blocks: capacity.
        num_open: most blocks that are open at once; at least as many as one step writes to.
        codec: does the work in place of the format's own, byte for byte, e.g. in native code.

    Raises:
        ConfigError: no blocks, or none that could be open.
    """

    def __init__(
        self, spec: KVCacheSpec, num_blocks: int, num_open: int, codec: KVCodec | None = None
    ) -> None:
        if num_blocks < 1 or num_open < 1:
            raise ConfigError(
                f"a quantised K/V pool needs at least one block and one open block, "
                f"not {num_blocks} and {num_open}"
            )
        self._spec = spec
        self._codec = codec or spec.dtype.codec
        self.sealed: Bytes = np.zeros((num_blocks, spec.bytes_per_block), dtype=np.uint8)
        self.open: npt.NDArray[np.float16] = np.zeros(
            (num_open, *spec.block_shape), dtype=np.float16
        )
        self.open_slot: npt.NDArray[np.int32] = np.full(num_blocks, SEALED, dtype=np.int32)
        self._num_tokens = np.zeros(num_open, dtype=np.int64)
        self._free_slots = list(range(num_open))
        self._by_last_write: OrderedDict[BlockId, None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def spec(self) -> KVCacheSpec:
        return self._spec

    @property
    def num_blocks(self) -> int:
        return len(self.open_slot)

    @property
    def num_open(self) -> int:
        """Blocks that are open now."""
        return len(self._by_last_write)

    @property
    def nbytes(self) -> int:
        return int(self.sealed.nbytes + self.open.nbytes)

    def open_for_write(self, writes: BlockWrites) -> None:
        """Open what a step writes to. What the blocks held before their `starts` is kept.

        Raises:
            CacheIntegrityError: more blocks than can be open; then nothing has changed.
        """
        block_ids = [BlockId(block_id) for block_id in writes.block_ids.tolist()]
        if len(block_ids) > len(self.open):
            raise CacheIntegrityError(
                f"a step writes to {len(block_ids)} blocks, but {len(self.open)} can be open at once"
            )
        with self._lock:
            for block_id in block_ids:  # first of all, so that none of them makes room for another
                if block_id in self._by_last_write:
                    self._by_last_write.move_to_end(block_id)
            for block_id, kept in zip(block_ids, writes.starts.tolist(), strict=True):
                if block_id in self._by_last_write:
                    continue
                slot = self._take_slot()
                if kept:
                    self._codec.decode(self.sealed[block_id], self.open[slot])
                self._occupy(block_id, slot)
            self._num_tokens[self.open_slot[writes.block_ids]] = writes.ends

    def seal(self, block_ids: npt.NDArray[np.int64]) -> None:
        """Encode those of the blocks that are open."""
        with self._lock:
            for block_id in block_ids.tolist():
                self._seal_if_open(BlockId(block_id))

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """Copy the whole content; a copy of an open block is open too, if there is room for both."""
        with self._lock:
            if len(self.open) == 1:
                self._seal_if_open(source)
            if source not in self._by_last_write:
                self._release_if_open(target)
                np.copyto(self.sealed[target], self.sealed[source])
                return
            self._by_last_write.move_to_end(source)
            slot = int(self.open_slot[target])
            if slot == SEALED:
                slot = self._take_slot()
            np.copyto(self.open[slot], self.open[self.open_slot[source]])
            self._num_tokens[slot] = self._num_tokens[self.open_slot[source]]
            self._occupy(target, slot)

    def wipe_block(self, block_id: BlockId) -> None:
        """Overwrite the whole content, of which nothing may be left."""
        with self._lock:
            self._release_if_open(block_id)
        self.sealed[block_id] = 0

    def block_bytes(self, block_id: BlockId) -> Bytes:
        """The bytes of a block as they are kept elsewhere, ``(bytes_per_block,)``, a view; seals it."""
        with self._lock:
            self._seal_if_open(block_id)
        data: Bytes = self.sealed[block_id]
        return data

    def block_bytes_to_overwrite(self, block_id: BlockId) -> Bytes:
        """Like `block_bytes`, for a caller that will fill them; what the block held is lost."""
        with self._lock:
            self._release_if_open(block_id)
        data: Bytes = self.sealed[block_id]
        return data

    def read(
        self, block_ids: npt.NDArray[np.integer[Any]], layer_index: int, part: int
    ) -> Float32Array:
        """K (0) or V (1) of one layer of some blocks, ``(n, kv heads, block_size, head_dim)``."""
        shape = self._spec.block_shape
        slots = self.open_slot[block_ids]
        is_open = slots != SEALED
        found = np.empty((len(block_ids), *shape[2:]), dtype=np.float32)
        found[is_open] = self.open[slots[is_open], layer_index, part]
        found[~is_open] = self._codec.decode_heads(
            self.sealed, block_ids[~is_open], layer_index, part, shape
        )
        return found

    def write(
        self,
        block_ids: npt.NDArray[np.integer[Any]],
        offsets: npt.NDArray[np.integer[Any]],
        layer_index: int,
        key: Float32Array,
        value: Float32Array,
    ) -> None:
        """Store K and V of one layer, each ``(T, kv heads, head_dim)``, token t in ``block_ids[t]``.

        Raises:
            CacheIntegrityError: a block is sealed.
        """
        slots = self.open_slot[block_ids]
        if (slots == SEALED).any():
            raise CacheIntegrityError(f"K/V is written to sealed blocks {block_ids[slots < 0]}")
        self.open[slots, layer_index, KEY, :, offsets] = key
        self.open[slots, layer_index, VALUE, :, offsets] = value

    def check_integrity(self) -> None:
        """Verify that every place in `open` is free or belongs to one block. O(blocks).

        Raises:
            CacheIntegrityError: naming what is wrong.
        """
        taken = {int(block_id): int(self.open_slot[block_id]) for block_id in self._by_last_write}
        if sorted([*taken.values(), *self._free_slots]) != list(range(len(self.open))):
            raise CacheIntegrityError("a place of an open block is lost, or has two owners")
        if set(taken) != set(np.flatnonzero(self.open_slot != SEALED).tolist()):
            raise CacheIntegrityError("a block has a place that it does not own")

    def _take_slot(self) -> int:
        """A free place; if there is none, that of the block that was not written to for longest."""
        if not self._free_slots:
            self._seal_if_open(next(iter(self._by_last_write)))
        return self._free_slots.pop()

    def _occupy(self, block_id: BlockId, slot: int) -> None:
        self.open_slot[block_id] = slot
        self._by_last_write[block_id] = None
        self._by_last_write.move_to_end(block_id)

    def _seal_if_open(self, block_id: BlockId) -> None:
        slot = int(self.open_slot[block_id])
        if slot != SEALED:
            self._codec.encode(self.open[slot], int(self._num_tokens[slot]), self.sealed[block_id])
            self._release_if_open(block_id)

    def _release_if_open(self, block_id: BlockId) -> None:
        slot = int(self.open_slot[block_id])
        if slot != SEALED:
            self.open[slot] = 0  # or a copy of what is wiped later would be left here
            self._free_slots.append(slot)
            self.open_slot[block_id] = SEALED
            del self._by_last_write[block_id]
