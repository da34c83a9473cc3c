"""What every backend must do, checked through the contract alone against a dense float64 decoder.

Guards the page arithmetic (block tables, slots, chunks, mixed batches), the grouping of heads, and that
nothing is ever read that was not written: all unused slots hold NaN.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.storage import HostKVStorage, KVStorage
from ostinato.ops.base import AttentionMass, Float32Array, OpsBackend
from ostinato.ops.select import select_backend
from tests.ops.backends import all_exact_backends, exact_backend, head_unit
from tests.ops.dense import LoadedDecoder, RandomDecoder, dense_logits, random_decoder
from tests.ops.paging import PagedSequence, Piece, make_batch, scattered_tables

TOLERANCE = {KVDtype.FP32: 2e-5, KVDtype.FP16: 2e-2}
"""fp16: K/V that differ in the last bit of float32 may round to neighbours."""

pytestmark = all_exact_backends


def poisoned_kv(
    ops: OpsBackend, decoder: RandomDecoder, dtype: KVDtype, block_size: int, num_blocks: int
) -> KVStorage:
    """Storage full of NaN."""
    shape = decoder.shape
    spec = KVCacheSpec(len(decoder.layers), shape.num_kv_heads, shape.head_dim, dtype, block_size)
    kv = ops.allocate_kv(spec, num_blocks)
    assert isinstance(kv, HostKVStorage)
    kv.array[...] = np.nan
    return kv


def run_schedule(
    loaded: LoadedDecoder,
    kv: KVStorage,
    sequences: list[PagedSequence],
    tokens: list[np.ndarray],
    steps: list[list[tuple[int, int]]],
) -> list[Float32Array]:
    """Run steps of (sequence, length) pieces; logits of every token, by sequence."""
    found: list[list[Float32Array]] = [[] for _ in sequences]
    for step in steps:
        pieces = []
        for index, length in step:
            start = sequences[index].num_computed
            pieces.append(Piece(sequences[index], tokens[index][start : start + length]))
        logits = loaded.forward(make_batch(pieces), kv)
        ends = np.cumsum([length for _, length in step])
        for (index, _), rows in zip(step, np.split(logits, ends[:-1]), strict=True):
            found[index].append(rows)
    return [np.concatenate(rows) for rows in found]


@st.composite
def schedules(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Steps in which up to four sequences advance by chunks of any length, decodes among them."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    done = [0] * len(lengths)
    steps: list[list[tuple[int, int]]] = []
    while done != lengths:
        waiting = [i for i, length in enumerate(lengths) if done[i] < length]
        chosen = draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        step = [(i, draw(st.integers(1, lengths[i] - done[i]))) for i in chosen]
        for index, length in step:
            done[index] += length
        steps.append(step)
    return steps


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=schedules(),
    block_size=st.sampled_from([1, 3, 4, 16]),
    dtype=st.sampled_from([KVDtype.FP16, KVDtype.FP32]),
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_units=st.sampled_from([1, 3, 4]),
    window=st.sampled_from([None, None, 1, 5, 16, 30]),
    options=st.fixed_dictionaries(
        {"qkv_bias": st.booleans(), "qk_norm": st.booleans(), "tied": st.booleans()}
    ),
)
def test_any_schedule_over_scattered_blocks_equals_the_dense_decoder(
    backend: str,
    seed: int,
    steps: list[list[tuple[int, int]]],
    block_size: int,
    dtype: KVDtype,
    num_kv_heads: int,
    group: int,
    head_units: int,
    window: int | None,
    options: dict[str, bool],
) -> None:
    rng = np.random.default_rng(seed)
    decoder = random_decoder(
        rng,
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_units * head_unit(backend),
        sliding_window=window,
        **options,
    )
    count = 1 + max(index for step in steps for index, _ in step)
    lengths = [sum(n for step in steps for i, n in step if i == k) for k in range(count)]
    num_blocks = 3 + sum(-(-length // block_size) for length in lengths)
    ops = exact_backend(backend)
    kv = poisoned_kv(ops, decoder, dtype, block_size, num_blocks)
    sequences = scattered_tables(rng, num_blocks, lengths, block_size)
    tokens = [rng.integers(0, decoder.vocab_size, n).astype(np.int32) for n in lengths]
    found = run_schedule(decoder.load(ops), kv, sequences, tokens, steps)
    for logits, ids in zip(found, tokens, strict=True):
        expected = dense_logits(decoder, ids, dtype.numpy)
        # A norm over heads of two elements magnifies float32's rounding: 3.5e-5 was seen.
        atol = max(TOLERANCE[dtype], 1e-4 if options["qk_norm"] else 0.0)
        np.testing.assert_allclose(logits, expected, atol=atol)


def test_a_mixed_batch_of_prefill_and_decode_equals_one_by_one(backend: str) -> None:
    rng = np.random.default_rng(7)
    ops = exact_backend(backend)
    decoder = random_decoder(rng, num_kv_heads=3, group=3, head_dim=head_unit(backend))
    loaded = decoder.load(ops)
    lengths = [37, 12, 50, 1]
    tokens = [rng.integers(0, decoder.vocab_size, n).astype(np.int32) for n in lengths]
    alone = [[(i, n)] for i, n in enumerate(lengths)]
    mixed = [[(0, 36), (1, 5)], [(2, 20), (0, 1), (1, 7), (3, 1)], [(2, 30)]]
    results = []
    for steps in (alone, mixed):
        kv = poisoned_kv(ops, decoder, KVDtype.FP32, 4, 30)
        sequences = scattered_tables(rng, 30, lengths, 4)
        results.append(run_schedule(loaded, kv, sequences, tokens, steps))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_prompt_longer_than_a_tile_equals_the_dense_decoder(backend: str) -> None:
    rng = np.random.default_rng(8)
    ops = exact_backend(backend)
    decoder = random_decoder(rng, num_layers=1, max_position=400, head_dim=head_unit(backend))
    tokens = rng.integers(0, decoder.vocab_size, 400).astype(np.int32)
    kv = poisoned_kv(ops, decoder, KVDtype.FP32, 16, 25)
    sequences = scattered_tables(rng, 25, [400], 16)
    steps = [[(0, 70)], [(0, 329)], [(0, 1)]]
    (found,) = run_schedule(decoder.load(ops), kv, sequences, [tokens], steps)
    np.testing.assert_allclose(found, dense_logits(decoder, tokens, np.float32), atol=2e-5)


def test_only_the_wanted_logits_are_returned_in_the_wanted_order(backend: str) -> None:
    rng = np.random.default_rng(9)
    ops = exact_backend(backend)
    decoder = random_decoder(rng, head_dim=head_unit(backend))
    tokens = rng.integers(0, decoder.vocab_size, (2, 10)).astype(np.int32)
    kv = poisoned_kv(ops, decoder, KVDtype.FP32, 4, 8)
    first, second = scattered_tables(rng, 8, [10, 10], 4)
    batch = make_batch([Piece(first, tokens[0], [9]), Piece(second, tokens[1], [9, 3])])
    found = decoder.load(ops).forward(batch, kv)
    dense = [dense_logits(decoder, ids, np.float32) for ids in tokens]
    expected = np.stack([dense[0][9], dense[1][9], dense[1][3]])
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_shared_prefix_blocks_serve_two_sequences(backend: str) -> None:
    rng = np.random.default_rng(10)
    ops = exact_backend(backend)
    decoder = random_decoder(rng, head_dim=head_unit(backend))
    loaded = decoder.load(ops)
    prefix, tails = rng.integers(0, 30, 8), rng.integers(0, 30, (2, 5))
    kv = poisoned_kv(ops, decoder, KVDtype.FP32, 4, 8)
    writer = PagedSequence(np.array([6, 2, 5, 0], dtype=np.int32), 4)
    reader = PagedSequence(np.array([6, 2, 1, 7], dtype=np.int32), 4, num_computed=8)
    whole = np.concatenate((prefix, tails[0])).astype(np.int32)
    loaded.forward(make_batch([Piece(writer, whole)]), kv)
    found = loaded.forward(make_batch([Piece(reader, tails[1].astype(np.int32))]), kv)
    other = np.concatenate((prefix, tails[1])).astype(np.int32)
    np.testing.assert_allclose(found, dense_logits(decoder, other, np.float32)[8:], atol=2e-5)


def test_a_copied_block_serves_like_its_source(backend: str) -> None:
    rng = np.random.default_rng(11)
    ops = exact_backend(backend)
    decoder = random_decoder(rng, head_dim=head_unit(backend))
    loaded = decoder.load(ops)
    tokens = rng.integers(0, 30, 10).astype(np.int32)
    kv = poisoned_kv(ops, decoder, KVDtype.FP16, 4, 6)
    original = PagedSequence(np.array([3, 1, 4], dtype=np.int32), 4)
    loaded.forward(make_batch([Piece(original, tokens[:6])]), kv)
    kv.copy_block(1, 5)  # type: ignore[arg-type]
    fork = PagedSequence(np.array([3, 5, 0], dtype=np.int32), 4, num_computed=6)
    ahead = loaded.forward(make_batch([Piece(fork, tokens[6:])]), kv)
    np.testing.assert_allclose(ahead, dense_logits(decoder, tokens, np.float16)[6:], atol=2e-2)


def test_the_backend_says_what_it_is(backend: str) -> None:
    info = exact_backend(backend).info
    assert info.name == backend.split("-")[0]
    assert info.facts


def test_it_can_be_selected_by_name(backend: str) -> None:
    selected = select_backend(backend.split("-")[0])  # type: ignore[arg-type]
    assert isinstance(selected, type(exact_backend(backend)))


def test_a_request_without_new_tokens_changes_nothing_for_the_others(backend: str) -> None:
    ops = exact_backend(backend)
    decoder = random_decoder(np.random.default_rng(5), head_dim=16)
    loaded, found, sums = decoder.load(ops), [], []
    for absent in (False, True):
        kv = poisoned_kv(ops, decoder, KVDtype.FP32, 4, 6)
        sequence = PagedSequence(np.array([3, 1], np.int32), 4)
        pieces = [Piece(sequence, np.arange(5, dtype=np.int32))]
        if absent:
            nobody = PagedSequence(np.array([0, 0], np.int32), 4)
            waiting = PagedSequence(np.array([2, 5], np.int32), 4, num_computed=6)
            none: list[int] = []
            pieces = [Piece(nobody, none), *pieces, Piece(waiting, none)]
        batch = make_batch(pieces)
        mass = AttentionMass.of(batch)
        hidden = ops.run_layers(
            ops.embed(loaded.head, batch), loaded.layers, loaded.rope, batch, kv, mass
        )
        found.append(ops.logits(hidden, loaded.head, batch))
        sums.append(mass.sums)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(sums[1], [[0, 0], *sums[0], [0, 0]])
