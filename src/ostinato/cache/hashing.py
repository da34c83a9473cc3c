"""The block-hash chain: names a prefix by content, identically in every process and after every restart.

    hash(i) = SHA-256(version ‖ parent ‖ token ids of block i as little-endian u32)

The parent of block 0 is the namespace key, so tenant, salt, model and K/V format are in every hash that
follows. Only full blocks have a hash. (The chain is the one vLLM introduced, with a root that is never random.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from ostinato.cache.native_hashing import HASH_BYTES, hash_blocks
from ostinato.cache.types import BlockHash, NamespaceKey, TokenArray

HASH_VERSION = b"ostinato-block-v1"

FIRST_BATCH = 32
"""Blocks that are hashed together at least, if the sequence has them: about 5 µs."""

Digest = Callable[[bytes], bytes]
"""Maps a message to a digest of `HASH_BYTES`; replaced in tests to force collisions."""


def sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


class HashChain:
    """The block hashes of one sequence, each computed once, however often the sequence is looked up.

    It remembers hashes, not tokens: whoever holds it only ever appends to the sequence and uses it with one
    block size and digest.

    Args:
        root: namespace of the sequence.
    """

    __slots__ = ("_count", "_known", "_origin", "_root", "_shared")

    def __init__(self, root: NamespaceKey) -> None:
        self._root = root
        self._origin: HashChain | None = None
        self._shared = 0  # leading blocks that `_origin` has as well
        self._count = 0
        self._known = np.empty((0, HASH_BYTES), dtype=np.uint8)  # with room for more than `_count`

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
        for at in range(start, len(token_ids) // block_size):
            if self._count <= at:
                self._extend(token_ids, block_size, digest, at)
            yield BlockHash(self._known[at].tobytes())

    def extend_to(self, token_ids: TokenArray, block_size: int) -> int:
        """Hash all full blocks of `token_ids` that are not known yet, in one call; how many are known then."""
        self._hash_to(token_ids, block_size, len(token_ids) // block_size)
        return self._count

    def _extend(self, token_ids: TokenArray, block_size: int, digest: Digest, at: int) -> None:
        """Hash on, at least to block `at`."""
        if self._origin is not None and self._count < self._shared:
            self._take_shared(self._origin, token_ids, block_size, digest)
            if self._count > at:
                return
        if digest is sha256:
            # In batches that double: a lookup hashes little more than twice what it asks for.
            end = max(at + 1, 2 * self._count, FIRST_BATCH)
            self._hash_to(token_ids, block_size, min(end, len(token_ids) // block_size))
            return
        self._reserve(at + 1)
        while self._count <= at:
            tokens = token_ids[self._count * block_size : (self._count + 1) * block_size]
            block = np.ascontiguousarray(tokens, dtype="<u4").tobytes()
            found = digest(HASH_VERSION + self._last() + block)
            self._known[self._count] = np.frombuffer(found, dtype=np.uint8)
            self._count += 1

    def _take_shared(
        self, origin: HashChain, token_ids: TokenArray, block_size: int, digest: Digest
    ) -> None:
        """Have the sequence that this one was forked from hash what both begin with, for all its forks."""
        if origin._count < self._shared:
            origin._extend(token_ids, block_size, digest, self._shared - 1)
        self._reserve(self._shared)
        self._known[: self._shared] = origin._known[: self._shared]
        self._count = self._shared

    def _hash_to(self, token_ids: TokenArray, block_size: int, end: int) -> None:
        """Hash on to block `end` - 1 in one call."""
        if end <= self._count:
            return
        self._reserve(end)
        tokens = token_ids[self._count * block_size : end * block_size]
        out = self._known[self._count : end]
        hash_blocks(HASH_VERSION, self._last(), tokens, block_size, out)
        self._count = end

    def _reserve(self, count: int) -> None:
        """Make room for `count` hashes, and for as many again as there were, so that growing costs little."""
        if count > len(self._known):
            grown = np.empty((max(count, 2 * len(self._known)), HASH_BYTES), dtype=np.uint8)
            grown[: self._count] = self._known[: self._count]
            self._known = grown

    def _last(self) -> bytes:
        return self._known[self._count - 1].tobytes() if self._count else self._root

    def fork(self, shared: int) -> HashChain:
        """For a sequence that begins like this one: no block of what they share is hashed twice.

        Args:
            shared: leading full blocks that both have.
        """
        twin = HashChain(self._root)
        twin._known = self._known[: self._count].copy()
        twin._count = self._count
        twin._origin, twin._shared = self, shared
        return twin
