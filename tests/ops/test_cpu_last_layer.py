"""Guards the last layer's short cut: rows that nobody asks for are left out, but not their keys and values."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.ops.base import OpsBackend
from tests.ops.backends import all_isas, cpu_backend
from tests.ops.dense import random_decoder
from tests.ops.paging import Piece, make_batch, scattered_tables

BLOCK_SIZE = 4


@all_isas
@given(
    seed=st.integers(0, 2**31),
    counts=st.lists(st.sampled_from([1, 1, 2, 9, 40, 100]), min_size=1, max_size=4),
    wanted=st.sampled_from(["none", "last", "some", "twice", "all"]),
    num_layers=st.integers(1, 3),
    sliding_window=st.sampled_from([None, 5]),
    qk_norm=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_wanted_rows_are_those_of_layers_run_one_verb_at_a_time(
    isa: str,
    seed: int,
    counts: list[int],
    wanted: str,
    num_layers: int,
    sliding_window: int | None,
    qk_norm: bool,
) -> None:
    ops, rng = cpu_backend(isa), np.random.default_rng(seed)
    decoder = random_decoder(
        rng,
        num_layers=num_layers,
        hidden_size=48,
        inner_size=64,
        group=3,
        head_dim=16,
        qkv_bias=True,
        qk_norm=qk_norm,
        max_position=256,
        sliding_window=sliding_window,
    ).load(ops)
    num_blocks = sum(-(-(count + 9) // BLOCK_SIZE) for count in counts)
    spec = KVCacheSpec(num_layers, 2, 16, KVDtype.FP32, BLOCK_SIZE)
    mine, theirs = (ops.allocate_kv(spec, num_blocks) for _ in range(2))
    tables = scattered_tables(rng, num_blocks, [count + 9 for count in counts], BLOCK_SIZE)
    choice = {
        "none": lambda count: [],
        "last": lambda count: [count - 1],
        "some": lambda count: sorted(rng.choice(count, rng.integers(0, count + 1), replace=False)),
        "twice": lambda count: [count - 1, 0, count - 1],
        "all": lambda count: list(range(count)),
    }[wanted]
    for step in ([9] * len(counts), counts):  # what is there already, then what is looked at
        pieces = [
            Piece(table, rng.integers(0, 30, count).astype(np.int32), choice(count))
            for table, count in zip(tables, step, strict=True)
        ]
        batch = make_batch(pieces)
        start = ops.embed(decoder.head, batch)
        rest = (decoder.layers, decoder.rope, batch)
        expected = OpsBackend.run_layers(ops, start.copy(), *rest, theirs)
        found = ops.run_layers(start, *rest, mine)
        rows = batch.logits_indices
        np.testing.assert_allclose(found[rows], expected[rows], atol=2e-5, rtol=1e-4)
        np.testing.assert_allclose(mine.array, theirs.array, atol=2e-5, rtol=1e-4)
