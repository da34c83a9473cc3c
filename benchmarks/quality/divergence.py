"""How far one model's predictions are from another's, token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
"""``(T, vocab)``."""
LogProbs = npt.NDArray[np.float64]
"""``(T, vocab)``, natural logarithms."""


@dataclass(slots=True)
class Divergence:
    """Grows window by window.

    KL is the Kullback-Leibler divergence of the measured from the reference distribution, in nats: the mean
    extra surprise of someone who expects the measured one while the reference holds.
    """

    kl: list[float] = field(default_factory=list)
    same_top: int = 0
    positions: int = 0
    nll_sum: float = 0.0
    scored: int = 0

    def add(self, reference: Logits, measured: Logits, token_ids: npt.NDArray[np.int32]) -> None:
        """One window: logits of its positions, and its tokens (the next one is what each row predicts)."""
        self.add_log_probs(log_softmax(reference), log_softmax(measured), token_ids)

    def add_log_probs(
        self, reference_log: LogProbs, measured_log: LogProbs, token_ids: npt.NDArray[np.int32]
    ) -> None:
        """`add` of what is normalised already. The token after the last position may follow the window's."""
        divergence = (np.exp(reference_log) * (reference_log - measured_log)).sum(axis=1)
        self.kl += divergence.tolist()
        self.same_top += int((reference_log.argmax(1) == measured_log.argmax(1)).sum())
        self.positions += len(reference_log)
        rows = np.arange(len(token_ids) - 1)
        self.nll_sum -= float(measured_log[rows, token_ids[1:]].sum())
        self.scored += len(rows)

    def merge(self, other: Divergence) -> None:
        """Add all windows of `other`."""
        self.kl += other.kl
        self.same_top += other.same_top
        self.positions += other.positions
        self.nll_sum += other.nll_sum
        self.scored += other.scored

    @property
    def mean(self) -> float:
        return float(np.mean(self.kl))

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.kl, percent))

    @property
    def top1_agreement(self) -> float:
        return self.same_top / self.positions

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll_sum / self.scored)

    @property
    def mean_error(self) -> float:
        """Standard error of `mean`, positions taken as independent."""
        return float(np.std(self.kl) / math.sqrt(len(self.kl)))


def paired_difference(ours: Divergence, theirs: Divergence) -> tuple[float, float]:
    """Mean of our KL minus theirs, position by position, and its standard error.

    Both were measured at the same positions, so what is hard to predict for both cancels.
    """
    difference = np.array(ours.kl) - np.array(theirs.kl)
    return float(difference.mean()), float(difference.std() / math.sqrt(len(difference)))


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Row by row, in float64: differences of 10⁻⁴ nats must not drown in rounding."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
