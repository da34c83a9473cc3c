"""Guards the native kernels over fp8, int8 and int4 K/V: the oracle's attention, attention mass and writes, for
any mix of open and sealed blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.quantised_storage import SEALED, BlockWrites, QuantisedKVStorage
from ostinato.ops.base import AttentionMass, BatchMetadata
from ostinato.ops.reference import ReferenceBackend
from tests.ops.backends import ISAS, all_isas, cpu_backend, needs_native
from tests.ops.dense import LoadedDecoder, random_decoder
from tests.ops.paging import PagedSequence, Piece, make_batch
from tests.ops.quantised import LAYER, QUANTISED, Case, batch_of, cases, poisoned_memory

REFERENCE = ReferenceBackend()
quickly = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def loaded_layers(case: Case, *backends: Any) -> list[Any]:
    shape = case.shape
    decoder = random_decoder(
        np.random.default_rng(0),
        num_layers=1,
        hidden_size=shape.hidden_size,
        num_kv_heads=shape.num_kv_heads,
        group=shape.num_heads // shape.num_kv_heads,
        head_dim=shape.head_dim,
        sliding_window=shape.sliding_window,
    )
    return [ops.load_layer(shape, decoder.layers[0]) for ops in backends]


def native_and_oracle(
    ops: Any, case: Case, batch: BatchMetadata, kv: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Attention of the same queries. The native backend takes them multiplied by the attention scale."""
    query = case.query(batch.num_tokens)
    mine, theirs = loaded_layers(case, ops, REFERENCE)
    scaled = query * np.float32(case.shape.attention_scale)
    found = ops.attention(scaled, mine, LAYER, batch, kv)
    return found, REFERENCE.attention(query, theirs, LAYER, batch, kv)


@all_isas
@quickly
@given(case=cases())
def test_attention_agrees_with_the_oracle(isa: str, case: Case) -> None:
    batch = batch_of(case)
    kv = poisoned_memory(case, batch)
    found, wanted = native_and_oracle(cpu_backend(isa), case, batch, kv)
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=1e-4)


@all_isas
@settings(quickly, max_examples=6)
@given(case=cases())
def test_attention_in_integers_is_near_the_oracle(isa: str, case: Case) -> None:
    batch = batch_of(case)
    kv = poisoned_memory(case, batch)
    found, wanted = native_and_oracle(cpu_backend(isa, "int8"), case, batch, kv)
    # Outliers take bits from the rest, so a single element may be far off.
    assert np.abs(found - wanted).mean() < 0.05 * np.abs(wanted).mean() + 5e-3


@all_isas
@quickly
@given(case=cases(), observed=st.sampled_from([None, 1, 4, 50]))
def test_attention_mass_agrees_with_the_oracle(isa: str, case: Case, observed: int | None) -> None:
    ops = cpu_backend(isa)
    batch = batch_of(case)
    kv = poisoned_memory(case, batch)
    query = case.query(batch.num_tokens)
    mine, theirs = loaded_layers(case, ops, REFERENCE)
    found, wanted = (AttentionMass.of(batch, observed) for _ in range(2))
    found.sums[...] = 1  # sums are added to
    scaled = query * np.float32(case.shape.attention_scale)
    ops.attention_mass(scaled, mine, LAYER, batch, kv, found)
    REFERENCE.attention_mass(query, theirs, LAYER, batch, kv, wanted)
    np.testing.assert_allclose(found.sums - 1, wanted.sums, atol=1e-3, rtol=1e-4)
    counts = np.minimum(case.counts, observed or max(case.counts))
    np.testing.assert_allclose(wanted.sums.sum(1), counts * case.shape.num_heads, rtol=1e-4)


@pytest.mark.parametrize("dtype", [KVDtype.FP16, KVDtype.FP32])
@all_isas
def test_attention_mass_of_plain_memory_agrees_with_the_oracle(isa: str, dtype: KVDtype) -> None:
    ops, rng = cpu_backend(isa), np.random.default_rng(1)
    decoder = random_decoder(rng, head_dim=16, max_position=200)
    kv = ops.allocate_kv(KVCacheSpec(2, 2, 16, dtype, 16), 20)
    kv.array[...] = rng.standard_normal(kv.array.shape)
    sequences = [PagedSequence(np.arange(9, dtype=np.int32), 16, 99)]
    sequences.append(PagedSequence(np.arange(9, 20, dtype=np.int32), 16, 150))
    batch = make_batch([Piece(sequences[0], [1]), Piece(sequences[1], list(range(20)))])
    query = rng.standard_normal((21, 4, 16), np.float32)
    found, wanted = AttentionMass.of(batch), AttentionMass.of(batch)
    mine = ops.load_layer(decoder.shape, decoder.layers[0])
    theirs = REFERENCE.load_layer(decoder.shape, decoder.layers[0])
    ops.attention_mass(query * np.float32(0.25), mine, 0, batch, kv, found)
    REFERENCE.attention_mass(query, theirs, 0, batch, kv, wanted)
    np.testing.assert_allclose(found.sums, wanted.sums, atol=1e-4)


def run_in_steps(
    loaded: LoadedDecoder, kv: QuantisedKVStorage, sequence: PagedSequence, steps: list[list[int]]
) -> list[np.ndarray]:
    """Logits of each step, blocks opened and sealed as the runner does."""
    logits = []
    for tokens in steps:
        batch = make_batch([Piece(sequence, tokens)])
        writes = BlockWrites.of_slots(batch.slot_mapping, kv.spec.block_size)
        kv.open_for_write(writes)
        logits.append(loaded.forward(batch, kv))
        kv.seal(writes.filled(kv.spec.block_size))
    return logits


@pytest.mark.parametrize("dtype", QUANTISED)
@all_isas
def test_a_sequence_computed_in_steps_agrees_with_the_oracle(isa: str, dtype: KVDtype) -> None:
    rng = np.random.default_rng(3)
    decoder = random_decoder(rng, head_dim=32)
    steps = [rng.integers(0, 30, n).tolist() for n in (19, 1, 1, 12, 1, 5)]
    table = rng.permutation(8).astype(np.int32)
    found, wanted = (
        run_in_steps(
            decoder.load(ops),
            ops.allocate_kv(KVCacheSpec(2, 2, 32, dtype, 8), 8, max_open=4),
            PagedSequence(table, 8),
            steps,
        )
        for ops in (cpu_backend(isa), REFERENCE)
    )
    for mine, theirs in zip(found, wanted, strict=True):
        # A key that two backends round to neighbouring halves may be sealed to neighbouring codes.
        np.testing.assert_allclose(mine, theirs, atol=0.15)
        assert np.abs(mine - theirs).mean() < 0.01


@needs_native
def test_writes_reach_open_blocks_alone() -> None:
    ops, rng = cpu_backend(ISAS[0]), np.random.default_rng(5)
    decoder = random_decoder(rng, num_layers=1, head_dim=16)
    kv = ops.allocate_kv(KVCacheSpec(1, 2, 16, KVDtype.INT8, 4), 6, max_open=3)
    sequence = PagedSequence(np.array([5, 2], np.int32), 4)
    batch = make_batch([Piece(sequence, list(range(6)))])
    kv.open_for_write(BlockWrites.of_slots(batch.slot_mapping, 4))
    decoder.load(ops).forward(batch, kv)
    assert (kv.open_slot != SEALED).tolist() == [False, False, True, False, False, True]
    assert not kv.sealed.any()
    used = np.sort(kv.open_slot[[5, 2]])
    assert kv.open[used].any(axis=(1, 2, 3, 4, 5)).all()
    assert not kv.open[np.setdiff1d(np.arange(3), used)].any()
