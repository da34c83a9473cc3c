"""Guards the rows of logits of which only the largest is wanted: a bound that is too tight would choose
another token now and then, and greedy text would change without anything failing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.ops.base import DecoderShape, Float32Array, HeadTensors
from tests.ops.backends import all_isas, cpu_backend, needs_native
from tests.ops.dense import ArrayTensor
from tests.ops.paging import PagedSequence, Piece, make_batch
from tests.ops.test_cpu_weights import QuantisedTensor

pytestmark = needs_native


def loaded_head(ops: Any, output: Float32Array, encoding: str, norm: Float32Array) -> Any:
    """An output matrix in a GGUF encoding; the embedding is not used."""
    width = output.shape[1]
    packed = quants.quantize(output, GGMLQuantizationType[encoding])
    return ops.load_head(
        DecoderShape(width, 1, 1, 16, 1e-5, 1.0),
        HeadTensors(
            embedding=ArrayTensor("e", np.zeros((16, width), np.float32)),
            final_norm=ArrayTensor("n", norm),
            output=QuantisedTensor("o", packed, encoding),
        ),
    )


def logits_of(ops: Any, head: Any, hidden: Float32Array, argmax_only: np.ndarray | None) -> Any:
    sequence = PagedSequence(np.arange(len(hidden), dtype=np.int32), 1)
    batch = make_batch([Piece(sequence, [0] * len(hidden))])
    return ops.logits(hidden, head, replace(batch, argmax_only=argmax_only))


def rivals(rng: np.random.Generator, vocab: int, width: int, closeness: float) -> Float32Array:
    """Rows of which many are nearly or exactly alike, so that their logits are."""
    likely = rng.standard_normal((3, width))
    rows = likely[rng.integers(0, 3, vocab)] + closeness * rng.standard_normal((vocab, width))
    return (rows * rng.choice([0.3, 1.0, 1.0], (vocab, 1))).astype(np.float32)


@all_isas
@given(
    seed=st.integers(0, 2**31),
    encoding=st.sampled_from(["Q8_0", "Q4_0", "Q4_1"]),
    vocab=st.sampled_from([1, 15, 64, 100, 700]),
    width=st.sampled_from([32, 96, 576]),
    closeness=st.sampled_from([0.0, 1e-3, 0.03, 1.0]),
    rows=st.sampled_from([1, 2, 16, 37, 70]),
    outlier=st.sampled_from([1.0, 30.0]),
    share=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_largest_logit_is_that_of_the_whole_row(
    isa: str,
    seed: int,
    encoding: str,
    vocab: int,
    width: int,
    closeness: float,
    rows: int,
    outlier: float,
    share: float,
) -> None:
    ops, rng = cpu_backend(isa, "int8"), np.random.default_rng(seed)
    output = rivals(rng, vocab, width, closeness)
    norm = rng.uniform(0.2, outlier, width).astype(np.float32)
    head = loaded_head(ops, output, encoding, norm)
    hidden = output[rng.integers(0, vocab, rows)] + rng.standard_normal((rows, width))
    hidden = hidden.astype(np.float32)
    whole = logits_of(ops, head, hidden, None)
    argmax_only = rng.random(rows) < share
    found = logits_of(ops, head, hidden, argmax_only)
    np.testing.assert_array_equal(found[~argmax_only], whole[~argmax_only])
    largest = whole.max(axis=1, keepdims=True)
    np.testing.assert_array_equal(found == largest, whole == largest)
    assert np.all(found <= largest)


@all_isas
def test_most_of_a_row_is_left_as_it_is(isa: str) -> None:
    ops, rng = cpu_backend(isa, "int8"), np.random.default_rng(1)
    output = rng.standard_normal((2000, 96)).astype(np.float32)
    head = loaded_head(ops, output, "Q8_0", np.ones(96, np.float32))
    hidden = 3 * output[:9] + rng.standard_normal((9, 96)).astype(np.float32)
    whole = logits_of(ops, head, hidden, None)
    found = logits_of(ops, head, hidden, np.ones(9, np.bool_))
    assert np.mean(found == whole) < 0.1, "all second parts were computed after all"
    assert np.max(np.abs(found - whole)) < 0.02 * np.max(np.abs(whole))


@all_isas
@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_a_fault_reaches_the_row_and_no_other(isa: str, fault: float) -> None:
    ops, rng = cpu_backend(isa, "int8"), np.random.default_rng(2)
    output = rng.standard_normal((80, 64)).astype(np.float32)
    head = loaded_head(ops, output, "Q8_0", np.ones(64, np.float32))
    hidden = rng.standard_normal((6, 64)).astype(np.float32)
    hidden[1, 7] = fault
    found = logits_of(ops, head, hidden, np.ones(6, np.bool_))
    assert np.isnan(found[1]).any()
    assert np.isfinite(found[[0, 2, 3, 4, 5]]).all()


@all_isas
@pytest.mark.parametrize("mode", ["fp32", "int8"])
def test_unrounded_products_ignore_the_hint(isa: str, mode: Literal["fp32", "int8"]) -> None:
    ops, rng = cpu_backend(isa, mode), np.random.default_rng(3)
    tensors = [ArrayTensor("t", rng.standard_normal((40, 32)).astype(np.float32)) for _ in range(2)]
    norm = ArrayTensor("n", np.ones(32, np.float32))
    head = ops.load_head(
        DecoderShape(32, 1, 1, 16, 1e-5, 1.0), HeadTensors(tensors[0], norm, tensors[1])
    )
    hidden = rng.standard_normal((2, 32)).astype(np.float32)
    whole = logits_of(ops, head, hidden, None)
    np.testing.assert_array_equal(logits_of(ops, head, hidden, np.ones(2, np.bool_)), whole)
