"""How a block of the device looks in the tiers: as it is, or encoded to fewer bytes on the way.

Called from transfer threads, several at once; a buffer belongs to the calling thread until its next call.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import numpy as np

from ostinato.cache.codec.base import Bytes, FloatArray
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.types import BlockId
from ostinato.errors import ConfigError


@runtime_checkable
class BlockMemory(Protocol):
    """What the tiers need of the device's memory; see `storage.HostKVStorage`."""

    def block_bytes(self, block_id: BlockId) -> Bytes: ...

    def block_bytes_to_overwrite(self, block_id: BlockId) -> Bytes: ...


class BlockCarrier(ABC):
    """Between blocks of the device and the bytes that tiers keep.

    Attributes:
        block_bytes: length of a block in the tiers.
    """

    block_bytes: int

    @abstractmethod
    def source(self, block_id: BlockId) -> memoryview:
        """What a tier is to keep of a full block."""

    @abstractmethod
    def target(self, block_id: BlockId) -> memoryview:
        """Where a tier is to put the bytes of a block; `arrived` must follow."""

    @abstractmethod
    def arrived(self, block_id: BlockId) -> None:
        """The bytes are in `target(block_id)`, which the same thread asked for last."""


class RawCarrier(BlockCarrier):
    """Tiers keep the very bytes of the device: each block is moved by a single copy.

    Args:
        memory: of the device.
        block_bytes: length of a block there.
    """

    def __init__(self, memory: BlockMemory, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._memory = memory

    def source(self, block_id: BlockId) -> memoryview:
        return self._memory.block_bytes(block_id).data

    def target(self, block_id: BlockId) -> memoryview:
        return self._memory.block_bytes_to_overwrite(block_id).data

    def arrived(self, block_id: BlockId) -> None:
        return None


class EncodingCarrier(BlockCarrier):
    """Tiers keep blocks in a format of their own, e.g. int8 below a device pool in fp16.

    Args:
        memory: of the device.
        spec: shape and format there.
        tier_dtype: format in the tiers.

    Raises:
        ConfigError: the format cannot hold such heads.
    """

    def __init__(self, memory: BlockMemory, spec: KVCacheSpec, tier_dtype: KVDtype) -> None:
        self._memory = memory
        self._spec = spec
        self._codec = tier_dtype.codec
        try:
            self.block_bytes = self._codec.block_bytes(
                spec.num_layers, spec.num_kv_heads, spec.block_size, spec.head_dim
            )
        except ValueError as error:
            raise ConfigError(f"the tiers' K/V format: {error}") from error
        self._buffers = threading.local()

    def source(self, block_id: BlockId) -> memoryview:
        values, encoded = self._own_buffers()
        self._spec.dtype.codec.decode(self._memory.block_bytes(block_id), values)
        self._codec.encode(values, self._spec.block_size, encoded)
        return encoded.data

    def target(self, block_id: BlockId) -> memoryview:
        return self._own_buffers()[1].data

    def arrived(self, block_id: BlockId) -> None:
        values, encoded = self._own_buffers()
        self._codec.decode(encoded, values)
        out = self._memory.block_bytes_to_overwrite(block_id)
        self._spec.dtype.codec.encode(values, self._spec.block_size, out)

    def _own_buffers(self) -> tuple[FloatArray, Bytes]:
        """One block in numbers, one in the tiers' bytes; of the calling thread."""
        buffers: tuple[FloatArray, Bytes] | None = getattr(self._buffers, "pair", None)
        if buffers is None:
            values = np.empty(self._spec.block_shape, dtype=self._spec.dtype.numpy)
            buffers = (values, np.empty(self.block_bytes, dtype=np.uint8))
            self._buffers.pair = buffers
        assert buffers is not None
        return buffers
