"""Recomputes the reference with the installed PyTorch and transformers and compares every logit.

Guards against reference files that no longer say what transformers says. Run with ``-m parity``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ostinato.models.decoder import Decoder
from ostinato.ops.base import Float32Array, Int32Array
from ostinato.ops.reference import ReferenceBackend
from tests.parity.cases import (
    NUM_TOKENS,
    REFERENCE_FOLDER,
    SMOLLM2,
    TINY_CASES,
    TOLERANCE,
    load_smollm2,
    load_tiny,
    smollm2_file,
)
from tests.parity.oracle import load_oracle_folder, load_oracle_gguf, oracle_logits
from tests.parity.passes import prefill_then_decode, run_in_chunks

pytestmark = pytest.mark.parity

DECODED = 32


@pytest.fixture(autouse=True)
def _torch_is_there_and_may_warn() -> Iterator[None]:
    """Warnings of other people's packages are not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch", reason="PyTorch is not installed (extra `parity`)")
        pytest.importorskip("transformers", reason="transformers is not installed (extra `parity`)")
        yield


def assert_prefill_and_decode_equal(
    name: str, decoder: Decoder, token_ids: Int32Array, expected: Float32Array
) -> None:
    ops = ReferenceBackend()
    found = run_in_chunks(decoder, ops, token_ids, prefill_then_decode(NUM_TOKENS, DECODED))
    difference = np.abs(found - expected)
    prefill, decode = difference[:-DECODED].max(), difference[-DECODED:].max()
    print(f"{name}: max abs difference, prefill {prefill:.2e}, decode {decode:.2e}")
    assert max(prefill, decode) < TOLERANCE


def assert_file_still_holds(name: str, expected: Float32Array) -> None:
    stored = np.load(REFERENCE_FOLDER / f"{name}.npz")
    assert np.abs(stored["logits"] - expected[:, stored["columns"]]).max() < TOLERANCE / 10


@pytest.mark.parametrize("name", TINY_CASES)
def test_a_tiny_model_equals_transformers_in_every_logit(name: str, tmp_path: Path) -> None:
    case = TINY_CASES[name]
    folder = case.write(tmp_path)
    expected = oracle_logits(load_oracle_folder(folder), case.token_ids())
    decoder = load_tiny(folder, case.config(), ReferenceBackend())
    assert_prefill_and_decode_equal(name, decoder, case.token_ids(), expected)
    assert_file_still_holds(name, expected)


def test_the_default_model_equals_transformers_in_every_logit(tmp_path: Path) -> None:
    token_ids = np.load(REFERENCE_FOLDER / f"{SMOLLM2}.npz")["token_ids"]
    expected = oracle_logits(load_oracle_gguf(smollm2_file()), token_ids)
    decoder = load_smollm2(tmp_path, ReferenceBackend())
    assert_prefill_and_decode_equal(SMOLLM2, decoder, token_ids, expected)
    assert_file_still_holds(SMOLLM2, expected)
