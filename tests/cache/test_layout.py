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


def test_the_format_is_in_the_digest() -> None:
    digests = {dataclasses.replace(SMOL, dtype=dtype).digest() for dtype in KVDtype}
    assert len(digests) == len(KVDtype) == 5


@pytest.mark.parametrize(
    ("dtype", "of_a_record"),
    [
        (KVDtype.FP8, 2 * (16 * 64 + 16 * 2)),
        (KVDtype.INT8, 2 * (16 * 64 + 16 * 2)),
        (KVDtype.INT4, (16 * 32 + 64 * 4) + (16 * 32 + 16 * 4)),
    ],
)
def test_a_sealed_block_has_a_payload_and_its_scales(dtype: KVDtype, of_a_record: int) -> None:
    spec = dataclasses.replace(SMOL, dtype=dtype)
    assert spec.bytes_per_block == 30 * 3 * of_a_record
    assert spec.bytes_per_token == spec.bytes_per_block / 16
    assert spec.bytes_per_open_block == SMOL.bytes_per_block


def test_records_of_an_odd_size_are_padded_and_bytes_a_token_rounded_up() -> None:
    spec = KVCacheSpec(1, 1, 2, KVDtype.INT8, 3)  # 3 × 2 + 3 × 2 = 12 bytes: padded to 16
    assert (spec.bytes_per_block, spec.bytes_per_token) == (32, 11)


def test_int4_with_heads_of_an_odd_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="int4 K/V needs an even head_dim, not 63"):
        dataclasses.replace(SMOL, dtype=KVDtype.INT4, head_dim=63)


def test_a_block_is_one_contiguous_piece_and_is_copied_whole() -> None:
    spec = KVCacheSpec(2, 1, 4, KVDtype.FP32, 8)
    storage = HostKVStorage(spec, 3)
    assert storage.array[1].flags.c_contiguous
    assert storage.array[1].nbytes == spec.bytes_per_block
    storage.array[1] = np.arange(storage.array[1].size).reshape(spec.block_shape)
    storage.copy_block(BlockId(1), BlockId(2))
    np.testing.assert_array_equal(storage.array[2], storage.array[1])
    assert not storage.array[0].any()
    storage.block_bytes_to_overwrite(BlockId(0))[...] = storage.block_bytes(BlockId(1))
    np.testing.assert_array_equal(storage.array[0], storage.array[1])


def test_null_storage_has_the_shape_but_not_the_bytes() -> None:
    storage = NullKVStorage(SMOL, 5)
    storage.copy_block(BlockId(0), BlockId(1))
    assert (storage.spec, storage.num_blocks) == (SMOL, 5)


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one block"):
        HostKVStorage(SMOL, 0)
