"""Guards that both hash chains are one: servers with and without the compiled module share K/V by hash."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache import native_hashing
from ostinato.cache.hashing import HASH_VERSION
from ostinato.cache.native_hashing import HASH_BYTES, hash_blocks, hash_blocks_in_python

needs_native = pytest.mark.skipif(
    native_hashing._native is None, reason="the native extension is not built here"
)


def hashes_of(function: object, *arguments: object) -> bytes:
    """What a function that fills an array with hashes makes of all full blocks."""
    _, _, tokens, block_size = arguments
    out = np.empty((len(tokens) // block_size, HASH_BYTES), dtype=np.uint8)  # type: ignore[arg-type]
    function(*arguments, out)  # type: ignore[operator]
    return out.tobytes()


def chain(version: bytes, parent: bytes, tokens: np.ndarray, block_size: int) -> bytes:
    """As the design words it."""
    hashes = []
    for end in range(block_size, len(tokens) + 1, block_size):
        block = b"".join(int(t).to_bytes(4, "little") for t in tokens[end - block_size : end])
        parent = hashlib.sha256(version + parent + block).digest()
        hashes.append(parent)
    return b"".join(hashes)


cases = given(
    seed=st.integers(0, 2**31),
    blocks=st.integers(0, 40),
    tail=st.integers(0, 99),
    block_size=st.sampled_from([1, 5, 16, 32, 100]),
    parent=st.sampled_from([0, 16, 32, 80]),
    version=st.sampled_from([b"", HASH_VERSION]),
)


def check(
    chain_of: object,
    seed: int,
    blocks: int,
    tail: int,
    block_size: int,
    parent: int,
    version: bytes,
) -> None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 2**32, blocks * block_size + tail % block_size, dtype=np.uint32)
    key = rng.bytes(parent)
    found = hashes_of(chain_of, version, key, tokens, block_size)
    assert found == chain(version, key, tokens, block_size)


@needs_native
@cases
@settings(max_examples=50, deadline=None)
def test_the_compiled_chain_is_the_designed_one(**case: object) -> None:
    check(hash_blocks, **case)  # type: ignore[arg-type]


@cases
@settings(max_examples=50, deadline=None)
def test_the_python_chain_is_the_designed_one(**case: object) -> None:
    check(hash_blocks_in_python, **case)  # type: ignore[arg-type]


def test_signed_token_ids_of_any_stride_hash_like_unsigned_ones() -> None:
    tokens = np.arange(64, dtype=np.int32)[::2]
    expected = chain(HASH_VERSION, b"root", tokens, 16)
    assert hashes_of(hash_blocks, HASH_VERSION, b"root", tokens, 16) == expected


def test_without_the_compiled_module_python_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_hashing, "_native", None)
    tokens = np.arange(40, dtype=np.int32)
    expected = chain(HASH_VERSION, b"root", tokens, 16)
    assert hashes_of(hash_blocks, HASH_VERSION, b"root", tokens, 16) == expected
