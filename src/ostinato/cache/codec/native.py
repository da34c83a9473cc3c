"""The quantised codecs in native code: the same bytes as the NumPy ones, about ten times faster.

A block of 16 tokens of a small model takes NumPy a millisecond or two, and a long prompt has hundreds: sealing
them would add a tenth to computing them.
"""

from __future__ import annotations

import numpy as np

from ostinato import _native
from ostinato.cache.codec.base import Bytes, FloatArray, KVCodec

_FORMATS = ("fp8", "int8", "int4")
_HEAD_DIM_UNIT = 16


class NativeKVCodec(KVCodec):
    """A codec of the same name and bytes. Blocks that the kernels do not take go to `codec` itself.

    The kernels take contiguous fp16 blocks whose head_dim is a multiple of 16; they run on the calling thread
    and release the interpreter's lock. Of a NaN they make a NaN of all that shares its scale.

    Args:
        codec: fp8, int8 or int4.
        isa: forces an instruction set, for tests; "" takes the best.

    Raises:
        ValueError: another format.
    """

    def __init__(self, codec: KVCodec, isa: str = "") -> None:
        if codec.name not in _FORMATS:
            raise ValueError(f"there is no native codec of {codec.name} K/V")
        super().__init__(codec.name, *codec._parts)
        self._isa = isa

    def encode(self, block: FloatArray, num_tokens: int, out: Bytes) -> None:
        if _fits(block) and out.flags.c_contiguous:
            _native.seal_block(self.name, block, num_tokens, out, isa=self._isa)
        else:
            super().encode(block, num_tokens, out)

    def decode(self, data: Bytes, out: FloatArray) -> None:
        if _fits(out) and data.flags.c_contiguous:
            _native.open_block(self.name, data, out, isa=self._isa)
        else:
            super().decode(data, out)


def _fits(block: FloatArray) -> bool:
    return (
        block.dtype == np.float16
        and block.flags.c_contiguous
        and block.shape[-1] % _HEAD_DIM_UNIT == 0
    )
