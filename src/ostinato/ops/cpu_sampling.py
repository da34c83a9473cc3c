"""`SamplingKernels` over the C++ kernels: no row is sorted, and rows are spread over the threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ostinato.ops.base import BoolArray, Float32Array, Int32Array
from ostinato.ops.sampling import Draws


class CpuSampling:
    """See `SamplingKernels`.

    Args:
        runtime: of the backend, ``_native.Runtime``.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def find_largest(self, logits: Float32Array, limit: float) -> tuple[Int32Array, BoolArray]:
        ids = np.empty(len(logits), dtype=np.int32)
        within = np.empty(len(logits), dtype=np.bool_)
        self._runtime.find_largest(logits, limit, ids, within)
        return ids, within

    def draw(self, logits: Float32Array, draws: Draws) -> Int32Array:
        tokens = np.empty(len(draws.rows), dtype=np.int32)
        d = draws
        filters = (d.temperatures, d.top_ks, d.min_ps, d.top_ps)
        self._runtime.draw(logits, d.rows, *filters, d.uniforms, tokens)
        return tokens

    def ranked(self, logits: Float32Array, k: int) -> tuple[Int32Array, Float32Array, Float32Array]:
        count = len(logits)
        ids = np.empty((count, k), dtype=np.int32)
        values = np.empty((count, k), dtype=np.float32)
        log_sums = np.empty(count, dtype=np.float32)
        self._runtime.top_k(logits, 1.0, ids, values, log_sums)
        return ids, values, log_sums
