"""The memory behind the blocks. The pool decides who owns a block; this module only holds its bytes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ostinato.cache.codec.base import KEY, VALUE, Bytes, Float32Array
from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.types import BlockId
from ostinato.errors import ConfigError


class KVStorage(Protocol):
    """What the manager needs of block memory, wherever it lies."""

    @property
    def spec(self) -> KVCacheSpec: ...

    @property
    def num_blocks(self) -> int: ...

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        """Copy the whole content of `source` over `target`, ordered with later reads and writes."""
        ...

    def wipe_block(self, block_id: BlockId) -> None:
        """Overwrite the whole content, of which nothing may be left."""
        ...


class HostKVStorage:
    """All blocks in one NumPy array of the process.

    Attributes:
        array: ``(num_blocks, layers, 2, kv heads, block_size, head_dim)``, C-contiguous, of `spec.dtype`.

    Pages of the array are committed by the operating system when they are first written, so a large pool
    costs nothing until it is used.
    """

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a K/V pool needs at least one block, not {num_blocks}")
        self._spec = spec
        self.array: npt.NDArray[np.generic] = np.zeros(
            (num_blocks, *spec.block_shape), dtype=spec.dtype.numpy
        )

    @property
    def spec(self) -> KVCacheSpec:
        return self._spec

    @property
    def num_blocks(self) -> int:
        return int(self.array.shape[0])

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        np.copyto(self.array[target], self.array[source])

    def wipe_block(self, block_id: BlockId) -> None:
        self.array[block_id] = 0

    def block_bytes(self, block_id: BlockId) -> Bytes:
        """The bytes of a block as they are kept elsewhere, ``(bytes_per_block,)``; a view."""
        data: Bytes = self.array[block_id].reshape(-1).view(np.uint8)
        return data

    def block_bytes_to_overwrite(self, block_id: BlockId) -> Bytes:
        """Like `block_bytes`, for a caller that will fill them; what the block held is lost."""
        return self.block_bytes(block_id)

    def read(
        self, block_ids: npt.NDArray[np.integer[Any]], layer_index: int, part: int
    ) -> npt.NDArray[np.generic]:
        """K (0) or V (1) of one layer of some blocks, ``(n, kv heads, block_size, head_dim)``."""
        found: npt.NDArray[np.generic] = self.array[block_ids, layer_index, part]
        return found

    def write(
        self,
        block_ids: npt.NDArray[np.integer[Any]],
        offsets: npt.NDArray[np.integer[Any]],
        layer_index: int,
        key: Float32Array,
        value: Float32Array,
    ) -> None:
        """Store K and V of one layer, each ``(T, kv heads, head_dim)``, token t in ``block_ids[t]``."""
        self.array[block_ids, layer_index, KEY, :, offsets] = key
        self.array[block_ids, layer_index, VALUE, :, offsets] = value


class NullKVStorage:
    """Blocks without content: for simulations and for tests of bookkeeping."""

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        self._spec = spec
        self._num_blocks = num_blocks

    @property
    def spec(self) -> KVCacheSpec:
        return self._spec

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        return None

    def wipe_block(self, block_id: BlockId) -> None:
        return None
