"""Steps over quantised K/V memory with everything poisoned that nothing may read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.quantised_storage import QuantisedKVStorage
from ostinato.ops.base import BatchMetadata, DecoderShape, Float32Array
from tests.ops.paging import PagedSequence, Piece, make_batch

QUANTISED = [dtype for dtype in KVDtype if dtype.is_quantised]
LAYER, NUM_LAYERS = 1, 2
POISON = 0xFF
"""As a byte; two of them are a NaN in fp16, so every scale of an unused block is one."""


@dataclass
class Case:
    """The requests of one step; `open_share` of the blocks before it are open."""

    rng: np.random.Generator
    shape: DecoderShape
    spec: KVCacheSpec
    counts: list[int]
    past: list[int]
    shared: int
    open_share: float

    def query(self, num_tokens: int) -> Float32Array:
        shape = (num_tokens, self.shape.num_heads, self.shape.head_dim)
        return self.rng.standard_normal(shape, np.float32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3, 4, 7]))
    dim = draw(st.sampled_from([16, 32, 48, 64, 80, 128]))
    window = draw(st.sampled_from([None, None, None, 1, 33, 100]))
    block_size = draw(st.sampled_from([4, 16, 16, 24, 32, 128]))
    dtype = draw(st.sampled_from(QUANTISED))
    requests = draw(st.integers(1, 5))
    shared = draw(st.sampled_from([0, 0, 128, 200])) // block_size * block_size
    return Case(
        rng=np.random.default_rng(draw(st.integers(0, 2**31))),
        shape=DecoderShape(8, heads, kv_heads, dim, 1e-5, dim**-0.5, window),
        spec=KVCacheSpec(NUM_LAYERS, kv_heads, dim, dtype, block_size),
        counts=[draw(st.sampled_from([1, 1, 1, 2, 5, 70])) for _ in range(requests)],
        past=[shared + draw(st.integers(0, 250)) for _ in range(requests)],
        shared=shared,
        open_share=draw(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0])),
    )


def batch_of(case: Case) -> BatchMetadata:
    """The step, over shuffled blocks of which the first of each request may be shared."""
    size = case.spec.block_size
    ends = [past + count for past, count in zip(case.past, case.counts, strict=True)]
    width = -(-max(ends) // size)
    order = case.rng.permutation(len(ends) * width + 1).astype(np.int32)
    tables = order[: len(ends) * width].reshape(len(ends), width)
    tables[:, : case.shared // size] = tables[0, : case.shared // size]
    pieces = []
    for table, past, end in zip(tables, case.past, ends, strict=True):
        sequence = PagedSequence(table[: -(-end // size)], size, past)
        pieces.append(Piece(sequence, [0] * (end - past)))
    return make_batch(pieces)


def poisoned_memory(case: Case, batch: BatchMetadata) -> QuantisedKVStorage:
    """Random K/V for all that a token of the step sees, its own included; NaN in every other place.

    What the step writes to is open, as the runner leaves it, and so are `open_share` of the blocks before.
    """
    spec, size = case.spec, case.spec.block_size
    num_blocks = int(batch.block_tables.size) + 1
    memory = QuantisedKVStorage(spec, num_blocks, num_blocks + 1)
    memory.sealed[...] = POISON
    memory.open[...] = np.nan
    slots = case.rng.permutation(num_blocks + 1).astype(np.int32)
    done = set()
    for request, past in enumerate(case.past):
        seq_len = int(batch.seq_lens[request])
        first = max(0, past - (case.shape.sliding_window or seq_len) + 1) // size
        for index in range(first, -(-seq_len // size)):
            block = int(batch.block_tables[request, index])
            if block in done:
                continue
            done.add(block)
            tokens = min(size, seq_len - index * size)
            content = np.full(spec.block_shape, np.nan, np.float16)
            content[:, :, :, :tokens] = random_block(case.rng, spec)[:, :, :, :tokens]
            written = (index + 1) * size > past
            if written or case.rng.random() < case.open_share:
                memory.open_slot[block] = slots[block]
                memory.open[slots[block]] = content
            else:
                spec.dtype.codec.encode(content, tokens, memory.sealed[block])
    return memory


def random_block(rng: np.random.Generator, spec: KVCacheSpec) -> np.ndarray:
    """Some channels and some tokens are ten times the others, as in real keys."""
    block = rng.standard_normal(spec.block_shape)
    block *= np.where(rng.random(spec.head_dim) < 0.1, 10, 1)
    block *= np.where(rng.random((spec.block_size, 1)) < 0.1, 3, 1)
    return block.astype(np.float16)
