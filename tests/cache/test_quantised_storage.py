"""Guards quantised block memory: no token is lost or misread between open and sealed, and room stays bounded.

The state machine writes values that every format stores exactly, so that a model that keeps fp16 copies can be
compared bit by bit, however often a block was sealed, opened and copied.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ostinato.cache.codec import KVCodec
from ostinato.cache.codec.per_token import Int8PerToken
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.quantised_storage import SEALED, BlockWrites, QuantisedKVStorage
from ostinato.cache.types import BlockId
from ostinato.errors import CacheIntegrityError, ConfigError

BLOCK_SIZE = 4
HEAD_DIM = 6
QUANTISED = [dtype for dtype in KVDtype if dtype.is_quantised]
all_formats = pytest.mark.parametrize("dtype", QUANTISED)


def make(dtype: KVDtype, num_blocks: int = 6, num_open: int = 3) -> QuantisedKVStorage:
    return QuantisedKVStorage(KVCacheSpec(2, 2, HEAD_DIM, dtype, BLOCK_SIZE), num_blocks, num_open)


def slots(block_id: int, start: int, end: int) -> np.ndarray:
    return block_id * BLOCK_SIZE + np.arange(start, end)


def exact_tokens(dtype: KVDtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """``(count, layers, 2, kv heads, head_dim)``, what `dtype` stores without loss."""
    shape = (count, 2, 2, 2, HEAD_DIM)
    if dtype is KVDtype.INT4:  # any group has the range 0 or 15
        return 15.0 * rng.integers(0, 2, shape)
    if dtype is KVDtype.INT8:  # a largest value of 127 makes the scale 1
        values = rng.integers(-127, 128, shape).astype(float)
        values[..., 0] = 127
    else:
        values = rng.choice([0.0, 0.5, 1.25, 3.5, -9.0, -240.0], shape)
        values[..., 0] = 448
    return values * 2.0 ** rng.integers(-3, 3, (count, 1, 1, 1, 1))


def write(
    kv: QuantisedKVStorage, slot_mapping: np.ndarray, tokens: np.ndarray, *, seal: bool = True
) -> None:
    """A step, as the runner does it; `tokens` as of `exact_tokens`."""
    writes = BlockWrites.of_slots(slot_mapping, BLOCK_SIZE)
    kv.open_for_write(writes)
    block_ids, offsets = np.divmod(slot_mapping, BLOCK_SIZE)
    for layer in range(2):
        key, value = tokens[:, layer, 0], tokens[:, layer, 1]
        kv.write(block_ids, offsets, layer, key.astype(np.float32), value.astype(np.float32))
    if seal:
        kv.seal(writes.filled(BLOCK_SIZE))


def content(kv: QuantisedKVStorage, block_id: int) -> np.ndarray:
    """``(block_size, layers, 2, kv heads, head_dim)``."""
    ids = np.array([block_id])
    layers = [[kv.read(ids, layer, part)[0] for part in (0, 1)] for layer in range(2)]
    return np.array(layers).transpose(3, 0, 1, 2, 4)


def test_the_writes_of_a_step_are_found_in_its_slots() -> None:
    mapping = np.concatenate((slots(5, 2, 4), slots(0, 0, 4), slots(3, 0, 1), slots(2, 3, 4)))
    writes = BlockWrites.of_slots(mapping, BLOCK_SIZE)
    assert writes.block_ids.tolist() == [5, 0, 3, 2]
    assert writes.starts.tolist() == [2, 0, 0, 3]
    assert writes.ends.tolist() == [4, 4, 1, 4]
    assert writes.filled(BLOCK_SIZE).tolist() == [5, 0, 2]


@all_formats
def test_the_newest_block_is_in_full_precision_until_it_is_full(dtype: KVDtype) -> None:
    rng = np.random.default_rng(0)
    kv = make(dtype)
    tokens = rng.standard_normal((4, 2, 2, 2, HEAD_DIM)).astype(np.float16).astype(float)
    write(kv, slots(4, 0, 3), tokens[:3])
    np.testing.assert_array_equal(content(kv, 4)[:3], tokens[:3])
    write(kv, slots(4, 3, 4), tokens[3:])
    assert kv.open_slot[4] == SEALED
    error = np.abs(content(kv, 4) - tokens)
    assert 0 < error.max() < 0.3


@all_formats
def test_what_a_step_computes_is_read_in_full_precision_while_it_runs(dtype: KVDtype) -> None:
    kv = make(dtype)
    tokens = np.random.default_rng(0).standard_normal((8, 2, 2, 2, HEAD_DIM)).astype(np.float16)
    write(kv, np.concatenate((slots(1, 0, 4), slots(0, 0, 4))), tokens, seal=False)
    np.testing.assert_array_equal(content(kv, 1), tokens[:4].astype(float))
    np.testing.assert_array_equal(content(kv, 0), tokens[4:].astype(float))


def test_the_block_that_was_not_written_to_for_longest_makes_room() -> None:
    kv = make(KVDtype.INT8, num_open=2)
    tokens = exact_tokens(KVDtype.INT8, 4, np.random.default_rng(0))
    write(kv, slots(0, 0, 1), tokens[:1])
    write(kv, slots(1, 0, 1), tokens[1:2])
    write(kv, slots(0, 1, 2), tokens[2:3])
    write(kv, slots(2, 0, 1), tokens[3:])
    assert (kv.open_slot[:3] != SEALED).tolist() == [True, False, True]
    np.testing.assert_array_equal(content(kv, 1)[:1], tokens[1:2])


def test_no_block_of_a_step_makes_room_for_another() -> None:
    kv = make(KVDtype.INT8, num_open=2)
    tokens = exact_tokens(KVDtype.INT8, 2, np.random.default_rng(0))
    write(kv, slots(0, 0, 1), tokens[:1])
    write(kv, slots(3, 0, 1), tokens[:1])
    write(kv, np.concatenate((slots(5, 0, 1), slots(0, 1, 2))), tokens)
    assert (kv.open_slot[[0, 3, 5]] != SEALED).tolist() == [True, False, True]


def test_a_step_over_more_blocks_than_can_be_open_is_refused_and_changes_nothing() -> None:
    kv = make(KVDtype.INT8, num_open=2)
    with pytest.raises(CacheIntegrityError, match="writes to 3 blocks, but 2 can be open"):
        kv.open_for_write(BlockWrites.of_slots(np.array([0, 4, 8]), BLOCK_SIZE))
    assert kv.num_open == 0


def test_writing_to_a_sealed_block_is_refused() -> None:
    kv = make(KVDtype.INT8)
    row = np.zeros((1, 2, HEAD_DIM), dtype=np.float32)
    with pytest.raises(CacheIntegrityError, match="sealed blocks"):
        kv.write(np.array([2]), np.array([0]), 0, row, row)


def test_a_copy_of_an_open_block_is_open_and_exact() -> None:
    kv = make(KVDtype.INT4)
    tokens = np.random.default_rng(0).standard_normal((2, 2, 2, 2, HEAD_DIM)).astype(np.float16)
    write(kv, slots(1, 0, 2), tokens)
    kv.copy_block(BlockId(1), BlockId(5))
    np.testing.assert_array_equal(content(kv, 5)[:2], tokens.astype(float))
    assert kv.num_open == 2


def test_bytes_from_elsewhere_replace_a_block_that_was_left_open() -> None:
    """A freed block may still have a place in fp16; what a tier loads into it must win."""
    kv = make(KVDtype.INT8)
    rng = np.random.default_rng(0)
    stale, wanted = exact_tokens(KVDtype.INT8, 2, rng), exact_tokens(KVDtype.INT8, 4, rng)
    write(kv, slots(0, 0, 2), stale)
    write(kv, slots(1, 0, 4), wanted)
    kv.block_bytes_to_overwrite(BlockId(0))[...] = kv.block_bytes(BlockId(1))
    np.testing.assert_array_equal(content(kv, 0), wanted)


def test_bytes_from_elsewhere_wait_until_the_block_they_replace_is_sealed() -> None:
    """Else a transfer thread fills the very bytes that the engine is still encoding the old content into."""
    started, finish = threading.Event(), threading.Event()

    class SlowCodec(KVCodec):
        def encode(self, block: Any, num_tokens: int, out: Any) -> None:
            started.set()
            assert finish.wait(10)
            out[...] = 1

    codec = SlowCodec("int8", Int8PerToken(), Int8PerToken())
    spec = KVCacheSpec(2, 2, HEAD_DIM, KVDtype.INT8, BLOCK_SIZE)
    kv = QuantisedKVStorage(spec, 2, 1, codec)
    kv.open_for_write(BlockWrites.of_slots(slots(0, 0, 2), BLOCK_SIZE))
    sealing = threading.Thread(target=kv.seal, args=(np.array([0]),))
    loading = threading.Thread(target=lambda: kv.block_bytes_to_overwrite(BlockId(0)).fill(2))
    sealing.start()
    assert started.wait(10)
    loading.start()
    loading.join(0.05)
    assert loading.is_alive()
    finish.set()
    sealing.join()
    loading.join()
    assert (kv.block_bytes(BlockId(0)) == 2).all()
    kv.check_integrity()


@pytest.mark.parametrize("end", [BLOCK_SIZE - 1, BLOCK_SIZE])
def test_a_wiped_block_leaves_nothing_open_or_sealed(end: int) -> None:
    kv = make(KVDtype.INT8)
    write(kv, slots(1, 0, end), exact_tokens(KVDtype.INT8, end, np.random.default_rng(1)))
    assert (kv.sealed if end == BLOCK_SIZE else kv.open).any()
    kv.wipe_block(BlockId(1))
    kv.check_integrity()
    assert not kv.sealed[1].any()
    assert not kv.open.any()


def test_memory_is_that_of_sealed_and_open_blocks() -> None:
    kv = make(KVDtype.INT8)
    assert kv.nbytes == 6 * kv.spec.bytes_per_block + 3 * kv.spec.bytes_per_open_block
    assert kv.spec.bytes_per_open_block == 2 * 2 * 2 * BLOCK_SIZE * HEAD_DIM * 2


@pytest.mark.parametrize(("num_blocks", "num_open"), [(0, 1), (1, 0)])
def test_a_pool_without_room_is_refused(num_blocks: int, num_open: int) -> None:
    with pytest.raises(ConfigError, match=f"not {num_blocks} and {num_open}"):
        make(KVDtype.INT8, num_blocks, num_open)


class StorageMachine(RuleBasedStateMachine):
    """Steps, copies and loads in any order, against fp16 copies of all blocks."""

    @initialize(
        dtype=st.sampled_from(QUANTISED),
        num_open=st.integers(1, 4),
        seed=st.integers(0, 2**32 - 1),
    )
    def start(self, dtype: KVDtype, num_open: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype
        self.num_open = num_open
        self.kv = make(dtype, num_blocks=6, num_open=num_open)
        self.model: dict[int, np.ndarray] = {}

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        ids = st.lists(st.integers(0, 5), min_size=1, max_size=self.num_open, unique=True)
        mapping, parts = [], {}
        for block_id in data.draw(ids):
            held = len(self.model.get(block_id, ()))
            # Behind what it holds, or from the start or the middle of it: a new owner, a shorter match.
            start = data.draw(st.integers(0, min(held, BLOCK_SIZE - 1)))
            end = data.draw(st.integers(start + 1, BLOCK_SIZE))
            mapping.append(slots(block_id, start, end))
            parts[block_id] = (start, exact_tokens(self.dtype, end - start, self.rng))
        tokens = np.concatenate([new for _, new in parts.values()])
        write(self.kv, np.concatenate(mapping), tokens, seal=False)
        for block_id, (start, new) in parts.items():
            kept = self.model.get(block_id, new)[:start]
            self.model[block_id] = np.concatenate((kept, new))
        self.compare()
        self.kv.seal(BlockWrites.of_slots(np.concatenate(mapping), BLOCK_SIZE).filled(BLOCK_SIZE))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.model)))
        target = data.draw(st.sampled_from([i for i in range(6) if i != source]))
        self.kv.copy_block(BlockId(source), BlockId(target))
        self.model[target] = self.model[source]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def move_through_another_tier(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.model)))
        target = data.draw(st.integers(0, 5))
        kept = self.kv.block_bytes(BlockId(source)).copy()
        self.kv.block_bytes_to_overwrite(BlockId(target))[...] = kept
        self.model[target] = self.model[source]

    @rule(block_id=st.integers(0, 5))
    def seal(self, block_id: int) -> None:
        self.kv.seal(np.array([block_id]))
        assert self.kv.open_slot[block_id] == SEALED

    @invariant()
    def compare(self) -> None:
        if not hasattr(self, "kv"):
            return
        self.kv.check_integrity()
        assert self.kv.num_open <= self.num_open
        for block_id, expected in self.model.items():
            found = content(self.kv, block_id)[: len(expected)]
            np.testing.assert_array_equal(found, expected)


TestStorageMachine = StorageMachine.TestCase
TestStorageMachine.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
