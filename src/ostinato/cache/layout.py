"""The shape of K/V memory.

    [block][layer][K, V][kv head][token in block][head dim]

One block is one contiguous piece of memory, over all layers, so that a tier moves it with a single copy
and a checksum covers a single range. In the quantised formats a block has this shape, in fp16, only while it is
open; the bytes that it is sealed to are drawn in `codec/base.py`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ostinato.cache.codec import KVCodec, codec_named
from ostinato.errors import ConfigError

LAYOUT_VERSION = 1
"""Changes whenever the bytes of a block change meaning; part of the digest."""


class KVDtype(StrEnum):
    """Format of stored K/V."""

    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def is_quantised(self) -> bool:
        """Whether blocks are encoded when they are full, and in fp16 before."""
        return self not in (KVDtype.FP16, KVDtype.FP32)

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """Element type of a block that can be written."""
        return np.dtype(np.float32 if self is KVDtype.FP32 else np.float16)

    @property
    def codec(self) -> KVCodec:
        """Between a block that can be written and its stored bytes."""
        return codec_named(self.value)


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Everything that decides how many bytes a token takes and whether two caches are compatible.

    Attributes:
        num_layers: decoder layers that keep K/V.
        num_kv_heads: key/value heads a layer (1 = MQA, fewer than query heads = GQA).
        head_dim: elements of one head.
        dtype: format of stored K/V.
        block_size: tokens a block.

    Raises:
        ConfigError: if a number is not positive, or the format cannot store such heads.
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
        try:
            _ = self.bytes_per_block
        except ValueError as error:
            raise ConfigError(str(error)) from error

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """``(layers, 2, kv heads, block_size, head_dim)``."""
        return (self.num_layers, 2, self.num_kv_heads, self.block_size, self.head_dim)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a stored block's token, rounded up: 2 × layers × kv heads × head dim × element size,
        and the scales of a quantised format."""
        return -(-self.bytes_per_block // self.block_size)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a stored block; of a sealed one where the format is quantised."""
        return self.dtype.codec.block_bytes(
            self.num_layers, self.num_kv_heads, self.block_size, self.head_dim
        )

    @property
    def bytes_per_open_block(self) -> int:
        """Bytes of a block that can be written."""
        return math.prod(self.block_shape) * self.dtype.numpy.itemsize

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
