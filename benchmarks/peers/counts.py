"""Operations and bytes that each figure needs at least, and the time that the machine's peaks make of them.

A multiply-add is two operations. Products with weights are counted at the int8 peak, attention at the int16
peak, weights in the bytes of the file, K/V in fp16, both read once a step; a prefix that streams share is read
once. Operations and reads overlap at best, so the limit is the longer of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.figures import STREAMS, Decode, Prefill, Scenario, Shared, Streams
from benchmarks.peers.limits import Limits
from ostinato.cache.layout import KVDtype
from ostinato.models.config import ModelConfig
from ostinato.models.weights.gguf import GgufFile


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be done at least.

    Attributes:
        linear_ops: products with weights.
        attention_ops: query-key and weight-value products.
        read_bytes: weights and K/V.
    """

    linear_ops: float = 0.0
    attention_ops: float = 0.0
    read_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.linear_ops + other.linear_ops,
            self.attention_ops + other.attention_ops,
            self.read_bytes + other.read_bytes,
        )

    def __mul__(self, times: float) -> Work:
        return Work(self.linear_ops * times, self.attention_ops * times, self.read_bytes * times)

    def seconds(self, limits: Limits) -> float:
        """At the machine's peaks."""
        compute = self.linear_ops / limits.int8 + self.attention_ops / limits.int16
        return 1e-9 * max(compute, self.read_bytes / limits.read)


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """What one token costs in a model."""

    layer_ops: int
    head_ops: int
    attention_ops: int
    """For each earlier token that is attended to."""
    weight_bytes: int
    kv_bytes: int

    @classmethod
    def of(cls, config: ModelConfig, file: Path, data_dir: Path) -> ModelCounts:
        hidden, heads = config.hidden_size, config.num_heads * config.head_dim
        kv = 2 * config.num_kv_heads * config.head_dim
        matrices = hidden * (2 * heads + kv) + 3 * hidden * config.intermediate_size
        weights = GgufFile(file, data_dir)
        unread = 0
        if "lm_head.weight" in weights:  # then the embedding is only looked up
            unread = weights.tensor("model.embed_tokens.weight").raw().nbytes
        return cls(
            layer_ops=2 * config.num_layers * matrices,
            head_ops=2 * config.vocab_size * hidden,
            attention_ops=4 * config.num_layers * heads,
            weight_bytes=weights.nbytes - unread,
            kv_bytes=config.kv_spec(KVDtype.FP16, 16).bytes_per_token,
        )

    def prefill(self, tokens: int, cached: int = 0, rows: int = 1) -> Work:
        """`rows` prompts of which each computes `tokens` new tokens after `cached` shared ones."""
        pairs = tokens * cached + tokens * (tokens + 1) / 2
        return Work(
            rows * (tokens * self.layer_ops + self.head_ops),
            rows * pairs * self.attention_ops,
            self.weight_bytes + cached * self.kv_bytes,
        )

    def step(self, own: float, shared: int = 0, rows: int = 1) -> Work:
        """One decode step of `rows` streams with `own` tokens each after `shared` common ones."""
        return Work(
            rows * (self.layer_ops + self.head_ops),
            rows * (own + shared) * self.attention_ops,
            self.weight_bytes + (rows * own + shared) * self.kv_bytes,
        )


def work_of(scenario: Scenario, counts: ModelCounts) -> dict[str, tuple[Work, float]]:
    """For each figure of a scenario its least work, and the tokens it makes (0: the figure is a time)."""
    if isinstance(scenario, Prefill):
        n = scenario.length
        return {
            f"prefill-{n}": (counts.prefill(n), n),
            f"cached-{n}": (counts.step(n), 0),
        }
    if isinstance(scenario, Decode):
        own = scenario.context + scenario.output / 2
        return {scenario.name: (counts.step(own), 1)}
    if isinstance(scenario, Streams):
        own = scenario.context + scenario.output / 2
        return {scenario.name: (counts.step(own, rows=STREAMS), STREAMS)}
    if isinstance(scenario, Shared):
        suffixes = counts.prefill(scenario.own, scenario.prefix, STREAMS)
        own = scenario.own + scenario.output / 2
        steps = counts.step(own, scenario.prefix, STREAMS) * (scenario.output - 1)
        primed = suffixes + steps
        return {
            "shared-cold": (counts.prefill(scenario.prefix) + primed, 0),
            "shared-primed": (primed, 0),
        }
    raise TypeError(f"no counts for {type(scenario).__name__}")


def share_of_limit(value: float, work: Work, tokens: float, limits: Limits, unit: float) -> float:
    """1.0 = as fast as the machine can be.

    Args:
        value: a rate in tokens/s if `tokens` is not 0, else a time in units of `unit` seconds.
        work: least work.
        tokens: that this work makes.
        limits: of the machine.
        unit: seconds a unit of `value`; not used for a rate.
    """
    least = work.seconds(limits)
    seconds = tokens / value if tokens else value * unit
    return least / seconds if seconds else math.nan


def as_json(work: Work, limits: Limits) -> dict[str, Any]:
    return {
        "linear_ops": work.linear_ops,
        "attention_ops": work.attention_ops,
        "read_bytes": work.read_bytes,
        "limit_seconds": work.seconds(limits),
    }
