"""The block-hash chain: names a prefix by content, identically in every process and after every restart.

    hash(i) = SHA-256(version ‖ parent ‖ token ids of block i as little-endian u32)

The parent of block 0 is the namespace key, so tenant, salt, model and K/V format are in every hash that
follows. Only full blocks have a hash. (The chain is the one vLLM introduced, with a root that is never random.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from ostinato.cache.types import BlockHash, NamespaceKey, TokenArray

HASH_VERSION = b"ostinato-block-v1"

Digest = Callable[[bytes], bytes]
"""Maps a message to a digest; replaced in tests to force collisions."""


def sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


def block_hashes(
    parent: BlockHash | NamespaceKey,
    token_ids: TokenArray,
    block_size: int,
    digest: Digest = sha256,
) -> Iterator[BlockHash]:
    """Hash the full blocks of `token_ids`, continuing the chain at `parent`; a partial tail is left out.

    Lazy: a lookup that stops at the first miss pays only for the blocks it asked for.
    """
    encoded = np.ascontiguousarray(token_ids, dtype="<u4").tobytes()
    width = 4 * block_size
    current: bytes = parent
    for end in range(width, len(encoded) + 1, width):
        current = digest(HASH_VERSION + current + encoded[end - width : end])
        yield BlockHash(current)
