"""The memory behind the blocks. The pool decides who owns a block; this module only holds its bytes."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

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
