"""Codecs of sealed K/V blocks; `codec_named` finds one. The layout of the bytes is drawn in `base.py`."""

from __future__ import annotations

import numpy as np

from ostinato.cache.codec.base import KEY, VALUE, KVCodec
from ostinato.cache.codec.int4 import Int4PerChannel, Int4PerToken
from ostinato.cache.codec.per_token import Fp8PerToken, Int8PerToken
from ostinato.cache.codec.plain import Plain

__all__ = ["KEY", "VALUE", "KVCodec", "codec_named"]

_CODECS = {
    codec.name: codec
    for codec in (
        KVCodec("fp32", Plain(np.float32), Plain(np.float32)),
        KVCodec("fp16", Plain(np.float16), Plain(np.float16)),
        KVCodec("fp8", Fp8PerToken(), Fp8PerToken()),
        KVCodec("int8", Int8PerToken(), Int8PerToken()),
        KVCodec("int4", Int4PerChannel(), Int4PerToken()),
    )
}


def codec_named(name: str) -> KVCodec:
    """The codec of that name.

    Raises:
        KeyError: there is none.
    """
    return _CODECS[name]
