"""Guards K/V arithmetic and the digest that keeps incompatible caches apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.storage import HostKVStorage, NullKVStorage
from ostinato.cache.types import BlockId
from ostinato.errors import ConfigError

SMOL = KVCacheSpec(30, 3, 64, KVDtype.FP16, 16)


def test_bytes_a_token_are_two_times_layers_heads_dim_and_element_size() -> None:
    assert SMOL.bytes_per_token == 2 * 30 * 3 * 64 * 2 == 23_040
    assert SMOL.bytes_per_block == 16 * 23_040
    assert dataclasses.replace(SMOL, dtype=KVDtype.FP32).bytes_per_token == 46_080


def test_blocks_are_rounded_up() -> None:
    assert [SMOL.blocks_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "head_dim", "block_size"])
def test_every_number_of_the_layout_is_in_its_digest_and_must_be_positive(name: str) -> None:
    assert dataclasses.replace(SMOL, **{name: 7}).digest() != SMOL.digest()
    with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
        dataclasses.replace(SMOL, **{name: 0})


def test_the_element_type_is_in_the_digest() -> None:
    assert dataclasses.replace(SMOL, dtype=KVDtype.FP32).digest() != SMOL.digest()


def test_a_block_is_one_contiguous_piece_and_is_copied_whole() -> None:
    spec = KVCacheSpec(2, 1, 4, KVDtype.FP32, 8)
    storage = HostKVStorage(spec, 3)
    assert storage.array[1].flags.c_contiguous
    assert storage.array[1].nbytes == spec.bytes_per_block
    storage.array[1] = np.arange(storage.array[1].size).reshape(spec.block_shape)
    storage.copy_block(BlockId(1), BlockId(2))
    np.testing.assert_array_equal(storage.array[2], storage.array[1])
    assert not storage.array[0].any()


def test_null_storage_has_the_shape_but_not_the_bytes() -> None:
    storage = NullKVStorage(SMOL, 5)
    storage.copy_block(BlockId(0), BlockId(1))
    assert (storage.spec, storage.num_blocks) == (SMOL, 5)


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        HostKVStorage(SMOL, 0)
