"""Guards the block-hash chain: names must be equal across processes and differ with every token before."""

from __future__ import annotations

import hashlib

import numpy as np

from ostinato.cache.hashing import HASH_VERSION, HashChain
from ostinato.cache.types import NamespaceKey

ROOT = NamespaceKey(b"r" * 32)


def _hashes(tokens: list[int], block_size: int = 2, root: bytes = ROOT) -> list[bytes]:
    return list(HashChain(NamespaceKey(root)).hashes(np.array(tokens, dtype=np.int32), block_size))


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


def test_a_chain_hashes_each_block_once_as_it_grows_and_so_do_its_forks() -> None:
    asked: list[bytes] = []

    def count(message: bytes) -> bytes:
        asked.append(message)
        return hashlib.sha256(message).digest()

    def hashes(chain: HashChain, tokens: list[int], start: int = 0) -> list[bytes]:
        return list(chain.hashes(np.array(tokens, dtype=np.int32), 2, count, start))

    chain = HashChain(ROOT)
    lazy = chain.hashes(np.array([1, 2, 3, 4], dtype=np.int32), 2, count)
    next(lazy)
    assert len(asked) == 1
    assert hashes(chain, [1, 2, 3, 4]) == _hashes([1, 2, 3, 4])
    assert hashes(chain, [1, 2, 3, 4, 5, 6, 7], start=2) == _hashes([1, 2, 3, 4, 5, 6])[2:]
    assert len(asked) == 3
    twin = chain.fork(3)
    assert hashes(twin, [1, 2, 3, 4, 5, 6, 7, 8]) == _hashes([1, 2, 3, 4, 5, 6, 7, 8])
    assert hashes(chain, [1, 2, 3, 4, 5, 6, 7, 9]) == _hashes([1, 2, 3, 4, 5, 6, 7, 9])
    assert len(asked) == 5


def test_forks_of_a_chain_that_knows_nothing_yet_hash_what_they_share_once() -> None:
    asked: list[bytes] = []

    def count(message: bytes) -> bytes:
        asked.append(message)
        return hashlib.sha256(message).digest()

    chain = HashChain(ROOT)
    first, second = chain.fork(2), chain.fork(2)
    for sequence, own in ((second, [5, 6]), (first, [7, 8]), (chain, [9, 10])):
        tokens = [1, 2, 3, 4, *own]
        found = sequence.hashes(np.array(tokens, dtype=np.int32), 2, count)
        assert list(found) == _hashes(tokens)
    assert len(asked) == 2 + 3


def test_a_chain_may_be_asked_for_a_late_block_first() -> None:
    late = HashChain(ROOT).hashes(np.array([1, 2, 3, 4, 5, 6], dtype=np.int32), 2, start=2)
    assert list(late) == _hashes([1, 2, 3, 4, 5, 6])[2:]


def test_hashing_ahead_gives_the_hashes_that_asking_one_by_one_gives() -> None:
    tokens = np.arange(2 * 70 + 1, dtype=np.int32)
    ahead = HashChain(ROOT)
    next(ahead.hashes(tokens, 2))
    assert ahead.extend_to(tokens, 2) == 70
    assert list(ahead.hashes(tokens, 2)) == _hashes(tokens.tolist())
    assert ahead.extend_to(tokens[:10], 2) == 70
    assert HashChain(ROOT).extend_to(tokens[:1], 2) == 0
