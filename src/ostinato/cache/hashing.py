"""The block-hash chain: names a prefix by content, identically in every process and after every restart.

    hash(i) = SHA-256(version ‖ parent ‖ token ids of block i as little-endian u32)

The parent of block 0 is the namespace key, so tenant, salt, model and K/V format are in every hash that
follows. Only full blocks have a hash. (The chain is the one vLLM introduced, with a root that is never random.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from ostinato.cache.native_hashing import hash_blocks
from ostinato.cache.types import BlockHash, NamespaceKey, TokenArray

HASH_VERSION = b"ostinato-block-v1"

FIRST_BATCH = 32
"""Blocks that are hashed together at least, if the sequence has them: about 5 µs."""

Digest = Callable[[bytes], bytes]
"""Maps a message to a digest; replaced in tests to force collisions."""


def sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


class HashChain:
    """The block hashes of one sequence, each computed once, however often the sequence is looked up.

    It remembers hashes, not tokens: whoever holds it only ever appends to the sequence and uses it with one
    block size and digest.

    Args:
        root: namespace of the sequence.
    """

    __slots__ = ("_known", "_root")

    def __init__(self, root: NamespaceKey) -> None:
        self._root = root
        self._known: list[BlockHash] = []

    def hashes(
        self, token_ids: TokenArray, block_size: int, digest: Digest = sha256, start: int = 0
    ) -> Iterator[BlockHash]:
        """Hashes of the full blocks of `token_ids` from block `start` on; a partial tail has none.

        Lazy: a lookup that stops at the first miss pays for little more than the blocks it asked for.

        Args:
            token_ids: of the sequence, from its first token.
            block_size: tokens a block.
            digest: hash function.
            start: first block that is wanted.
        """
        known = self._known
        for at in range(start, len(token_ids) // block_size):
            if len(known) <= at:
                self._extend(token_ids, block_size, digest, at)
            yield known[at]

    def _extend(self, token_ids: TokenArray, block_size: int, digest: Digest, at: int) -> None:
        """Hash on, at least to block `at`."""
        known = self._known
        if digest is sha256:
            # In batches that double: a lookup hashes little more than twice what it asks for.
            end = max(at + 1, 2 * len(known), FIRST_BATCH)
            tokens = token_ids[len(known) * block_size : end * block_size]
            parent = known[-1] if known else self._root
            known += hash_blocks(HASH_VERSION, parent, tokens, block_size)
            return
        while len(known) <= at:
            end = (len(known) + 1) * block_size
            block = np.ascontiguousarray(token_ids[end - block_size : end], dtype="<u4")
            parent = known[-1] if known else self._root
            known.append(BlockHash(digest(HASH_VERSION + parent + block.tobytes())))

    def fork(self) -> HashChain:
        """For a sequence that begins like this one does so far: what is known is not hashed again."""
        twin = HashChain(self._root)
        twin._known = self._known.copy()
        return twin
