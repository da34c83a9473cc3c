"""The products of one decode step of two models, and what each of them costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.limits import Limits

GROUP = 32
"""Weights that share a scale, in both engines."""


@dataclass(frozen=True, slots=True)
class Product:
    """x (tokens, cols) @ weights (rows, cols)ᵀ.

    Attributes:
        name: what it is in the model.
        rows, cols: of the weights.
        per_step: how often a step computes it.
    """

    name: str
    rows: int
    cols: int
    per_step: int

    @property
    def weights(self) -> int:
        return self.rows * self.cols

    def bytes(self, bits: int) -> int:
        """Packed by Ostinato: two bytes of scale a group, and with 4 bits two of minimum."""
        return self.weights * bits // 8 + self.weights // GROUP * (4 if bits == 4 else 2)

    def least_seconds(self, tokens: int, bits: int, limits: Limits) -> float:
        """No machine with these limits is faster: the weights are read once, all products are made."""
        reading = self.bytes(bits) / (limits.read * 1e9)
        return max(reading, 2 * tokens * self.weights / (limits.int8 * 1e9))


OUTPUT = "output"
MODELS: dict[str, tuple[Product, ...]] = {
    "SmolLM2-135M": (
        Product("qkv", 960, 576, 30),
        Product("attention output", 576, 576, 30),
        Product("gate and up", 3072, 576, 30),
        Product("down", 576, 1536, 30),
        Product(OUTPUT, 49_152, 576, 1),
    ),
    "Qwen2.5-0.5B": (
        Product("qkv", 1152, 896, 24),
        Product("attention output", 896, 896, 24),
        Product("gate and up", 9728, 896, 24),
        Product("down", 896, 4864, 24),
        Product(OUTPUT, 151_936, 896, 1),
    ),
}

MOST_OUTPUT_TOKENS = 16
"""A prefill computes logits for its last row only, so the output matrix never meets a whole chunk."""


def is_computed(product: Product, tokens: int) -> bool:
    """Whether an engine ever multiplies so many rows with this matrix."""
    return product.name != OUTPUT or tokens <= MOST_OUTPUT_TOKENS


def copies(product: Product, tokens: int, bits: int, cache_bytes: int, most_ops: float) -> int:
    """Matrices to walk through in turn, so that none is still in a cache when its turn comes again.

    Twice the last cache, but no more than `most_ops` operations a pass: where there are that many, the
    time goes into multiplying. Two at least.
    """
    wanted = -(-2 * cache_bytes // product.bytes(bits))
    affordable = int(most_ops // (2 * tokens * product.weights))
    return max(2, min(wanted, affordable))


def step_seconds(model: Sequence[Product], seconds: dict[str, float]) -> float:
    """Of all products of a step that were measured, each as often as the step computes it."""
    return sum(one.per_step * seconds[one.name] for one in model if one.name in seconds)
