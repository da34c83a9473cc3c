"""The shape of K/V memory.

    [block][layer][K, V][kv head][token in block][head dim]

One block is one contiguous piece of memory, over all layers, so that a tier moves it with a single copy
and a checksum covers a single range.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ostinato.errors import ConfigError

LAYOUT_VERSION = 1
"""Changes whenever the bytes of a block change meaning; part of the digest."""


class KVDtype(StrEnum):
    """Element type of stored K/V."""

    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return np.dtype(np.float16 if self is KVDtype.FP16 else np.float32)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Everything that decides how many bytes a token takes and whether two caches are compatible.

    Attributes:
        num_layers: decoder layers that keep K/V.
        num_kv_heads: key/value heads a layer (1 = MQA, fewer than query heads = GQA).
        head_dim: elements of one head.
        dtype: element type.
        block_size: tokens a block.

    Raises:
        ConfigError: if a number is not positive.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: KVDtype
    block_size: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """``(layers, 2, kv heads, block_size, head_dim)``."""
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def bytes_per_token(self) -> int:
        """2 × layers × kv heads × head dim × element size."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.numpy.itemsize

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens (rounded up)."""
        return -(-num_tokens // self.block_size)

    def digest(self) -> bytes:
        """32 bytes that differ whenever stored blocks would not be interchangeable."""
        packed = struct.pack(
            "<6I",
            LAYOUT_VERSION,
            self.num_layers,
            self.num_kv_heads,
            self.head_dim,
            self.block_size,
            self.dtype.numpy.itemsize,
        )
        return hashlib.sha256(b"ostinato-kv-layout" + packed + self.dtype.value.encode()).digest()
