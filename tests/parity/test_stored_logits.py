"""Guards against a decoder that is almost right: logits must equal what transformers computed.

The reference files come from `make_reference.py`. This runs without PyTorch, on every backend that
multiplies float32 activations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ostinato.models.decoder import Decoder
from ostinato.ops.base import Float32Array, OpsBackend
from tests.ops.backends import EXACT_BACKENDS, all_exact_backends, exact_backend, head_unit
from tests.parity.cases import (
    NUM_TOKENS,
    REFERENCE_FOLDER,
    SMOLLM2,
    TINY_CASES,
    TOLERANCE,
    load_smollm2,
    load_tiny,
)
from tests.parity.make_reference import log_sum_exp
from tests.parity.passes import chunk_lengths, prefill_then_decode, run_in_chunks

WAYS = {
    "one-shot": [NUM_TOKENS],
    "chunks-of-7": chunk_lengths(NUM_TOKENS, 7),
    "chunks-of-64": chunk_lengths(NUM_TOKENS, 64),
    "decode-32": prefill_then_decode(NUM_TOKENS, 32),
}


def assert_logits_equal_the_stored_ones(
    name: str, decoder: Decoder, ops: OpsBackend, lengths: list[int]
) -> None:
    stored = np.load(REFERENCE_FOLDER / f"{name}.npz")
    logits = run_in_chunks(decoder, ops, stored["token_ids"], lengths)
    assert logits.shape == (NUM_TOKENS, decoder.config.vocab_size)
    assert len(stored["columns"]) > decoder.config.hidden_size
    assert_close(logits[:, stored["columns"]], stored["logits"])
    assert_close(log_sum_exp(logits), stored["logsumexp"])
    assert_argmax_agrees(logits, stored["argmax"])


def assert_close(found: Float32Array, expected: Float32Array) -> None:
    worst = float(np.abs(found - expected).max())
    assert worst < TOLERANCE, f"largest difference {worst:.2e}"


def assert_argmax_agrees(logits: Float32Array, expected: np.ndarray) -> None:
    """The expected winner is the winner, or within the tolerance of it."""
    rows = np.arange(len(logits))
    assert np.all(logits[rows, expected] >= logits.max(axis=-1) - 2 * TOLERANCE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TINY_CASES)
@all_exact_backends
def test_a_tiny_model_gives_the_logits_of_transformers(
    backend: str, name: str, way: str, tmp_path: Path
) -> None:
    ops, case = exact_backend(backend), TINY_CASES[name]
    if case.config()["head_dim"] % head_unit(backend):
        pytest.skip(  # ok: these head sizes run on the NumPy backend, in the same test
            f"the native kernels need head sizes that are multiples of {head_unit(backend)}"
        )
    decoder = load_tiny(case.write(tmp_path), case.config(), ops)
    assert_logits_equal_the_stored_ones(name, decoder, ops, WAYS[way])


@pytest.fixture(scope="module", params=EXACT_BACKENDS)
def smollm2(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Decoder, OpsBackend]:
    ops = exact_backend(request.param)
    return load_smollm2(tmp_path_factory.mktemp("data"), ops), ops


@pytest.mark.parametrize("way", ["one-shot", "chunks-of-64", "decode-32"])
def test_the_default_model_gives_the_logits_of_transformers(
    smollm2: tuple[Decoder, OpsBackend], way: str
) -> None:
    assert_logits_equal_the_stored_ones(SMOLLM2, *smollm2, WAYS[way])


def test_the_stored_tokens_are_the_tokens_of_the_case() -> None:
    for name, case in TINY_CASES.items():
        stored = np.load(REFERENCE_FOLDER / f"{name}.npz")
        np.testing.assert_array_equal(stored["token_ids"], case.token_ids(), err_msg=name)
