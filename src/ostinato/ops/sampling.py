"""What a backend may do faster than NumPy when tokens are chosen; `engine/sampler.py` is the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Draws:
    """One token to be drawn from each of n rows, as `SamplingParams` words it. All arrays are ``(n,)``.

    Attributes:
        rows: of the logits; a row may be drawn from more than once.
        temperatures: float32, above 0.
        top_ks: int32; 0 or less keeps all.
        min_ps: float32.
        top_ps: float64.
        uniforms: float64 in [0, 1): where in the cumulative distribution of the tokens kept, by id.
    """

    rows: npt.NDArray[np.int32]
    temperatures: npt.NDArray[np.float32]
    top_ks: npt.NDArray[np.int32]
    min_ps: npt.NDArray[np.float32]
    top_ps: npt.NDArray[np.float64]
    uniforms: npt.NDArray[np.float64]


class SamplingKernels(Protocol):
    """Passes over rows of the vocabulary, all rows at once.

    The order of tokens is that of `engine/candidates.py`: larger logit first, then lower id. What is drawn is
    what the NumPy path draws, unless a bound or a sum is a rounding error away.
    """

    def find_largest(
        self, logits: npt.NDArray[np.float32], limit: float
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """The first largest of each row.

        Args:
            logits: ``(R, vocab)``, contiguous; anything.
            limit: what no logit's magnitude may exceed.

        Returns:
            ``(R,)`` ids; and ``(R,)``, whether the row holds the limit and no NaN. If not, its id means
            nothing.
        """
        ...

    def draw(self, logits: npt.NDArray[np.float32], draws: Draws) -> npt.NDArray[np.int32]:
        """``(n,)`` tokens.

        Args:
            logits: ``(R, vocab)``, contiguous; no NaN, no +inf, in every row something finite.
            draws: how.
        """
        ...

    def ranked(
        self, logits: npt.NDArray[np.float32], k: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The `k` largest of each row.

        Args:
            logits: ``(R, vocab)``, contiguous.
            k: 1 to vocab.

        Returns:
            Their ids and their logits, ``(R, k)`` each, largest first; and ``(R,)``, the logarithm of the sum
            of e^logit over each row.
        """
        ...
