"""Guards the block-hash chain: names must be equal across processes and differ with every token before."""

from __future__ import annotations

import hashlib

import numpy as np

from ostinato.cache.hashing import HASH_VERSION, block_hashes
from ostinato.cache.types import NamespaceKey

ROOT = NamespaceKey(b"r" * 32)


def _hashes(tokens: list[int], block_size: int = 2, root: bytes = ROOT) -> list[bytes]:
    return list(block_hashes(NamespaceKey(root), np.array(tokens, dtype=np.int32), block_size))


def test_the_chain_is_version_parent_and_little_endian_tokens() -> None:
    first = hashlib.sha256(HASH_VERSION + ROOT + bytes([1, 0, 0, 0, 0, 1, 0, 0])).digest()
    second = hashlib.sha256(HASH_VERSION + first + bytes([3, 0, 0, 0, 4, 0, 0, 0])).digest()
    assert _hashes([1, 256, 3, 4]) == [first, second]


def test_only_full_blocks_have_a_hash() -> None:
    assert len(_hashes([1, 2, 3])) == 1
    assert _hashes([1]) == []
    assert _hashes([]) == []


def test_a_changed_token_changes_every_hash_from_its_block_on() -> None:
    one, two = _hashes([1, 2, 3, 4, 5, 6]), _hashes([1, 2, 9, 4, 5, 6])
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, False, False]


def test_namespaces_have_disjoint_chains() -> None:
    assert not set(_hashes([1, 2, 3, 4])) & set(_hashes([1, 2, 3, 4], root=b"q" * 32))


def test_a_chain_can_be_continued_from_its_last_hash() -> None:
    whole = _hashes([1, 2, 3, 4, 5, 6])
    assert _hashes([5, 6], root=whole[1]) == whole[2:]
