"""Guards the measure of quality: a wrong KL divergence would let a mode be the default that should not be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.quality.divergence import Divergence, log_softmax, paired_difference


def logits(*rows: list[float]) -> np.ndarray:
    return np.log(np.array(rows)).astype(np.float32)


def test_kl_of_two_known_distributions() -> None:
    divergence = Divergence()
    tokens = np.array([0], dtype=np.int32)
    divergence.add(logits([0.5, 0.5]), logits([0.25, 0.75]), tokens)
    assert divergence.mean == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-6)
    assert divergence.top1_agreement == 0.0


def test_equal_logits_have_no_divergence_whatever_is_added_to_them() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, 100)).astype(np.float32)
    divergence = Divergence()
    divergence.add(values, values + np.float32(8.0), np.arange(5, dtype=np.int32))
    assert abs(divergence.mean) < 1e-6
    assert divergence.top1_agreement == 1.0


def test_perplexity_scores_each_token_by_the_row_before_it() -> None:
    divergence = Divergence()
    measured = logits([0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4])
    divergence.add(measured, measured, np.array([2, 1, 2], dtype=np.int32))
    assert divergence.perplexity == pytest.approx(math.exp(-(math.log(0.25) + math.log(0.8)) / 2))


def test_percentiles_and_error_are_over_all_windows() -> None:
    divergence = Divergence(kl=[0.0, 1.0, 2.0, 3.0, 4.0])
    assert divergence.percentile(50) == 2.0
    assert divergence.mean_error == pytest.approx(math.sqrt(2.0) / math.sqrt(5))


def test_the_paired_difference_cancels_what_both_find_hard() -> None:
    ours, theirs = Divergence(kl=[1.0, 5.0, 9.0]), Divergence(kl=[0.0, 4.0, 8.0])
    assert paired_difference(ours, theirs) == (1.0, 0.0)


def test_windows_in_pieces_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(1)
    exact, measured = rng.standard_normal((2, 9, 20)).astype(np.float32)
    tokens = rng.integers(0, 20, 9).astype(np.int32)
    whole, pieces = Divergence(), Divergence()
    whole.add(exact, measured, tokens)
    for start in (0, 4, 8):
        part = Divergence()
        rows = slice(start, start + 4)
        part.add_log_probs(
            log_softmax(exact[rows]), log_softmax(measured[rows]), tokens[start : start + 5]
        )
        pieces.merge(part)
    assert pieces == whole
    assert pieces.perplexity == pytest.approx(whole.perplexity)


def test_large_logits_do_not_overflow() -> None:
    assert log_softmax(np.array([[1e4, 0.0]], dtype=np.float32))[0, 0] == pytest.approx(0.0)
