"""How much memory K/V takes: the arithmetic behind ``ostinato plan``.

    attention heads   2 × layers × kv heads × head dim      elements a token (K and V)
    MLA               (latent + rope) × layers              elements a token (one shared latent)

Multi-head latent attention keeps one compressed latent and one rotated key part for all heads
(DeepSeek-V2, arXiv:2405.04434, section 2.1), so head counts do not matter there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from ostinato.cache.layout import KVDtype

MAX_COUNT = 10**12
"""Layers, heads, elements, tokens or sequences beyond this are a slip of the finger."""
MIN_KV_BYTES, MAX_KV_BYTES = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """MHA, GQA or MQA.

    Attributes:
        layers: layers that keep K/V.
        kv_heads: key/value heads a layer.
        head_dim: elements of one head.
    """

    layers: int
    kv_heads: int
    head_dim: int

    @property
    def elements_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim

    def describe(self) -> str:
        return (
            f"{self.layers} layers × {self.kv_heads} K/V heads × {self.head_dim} dim"
            f" × 2 (K and V) = {self.elements_per_token:,} elements a token"
        )


@dataclass(frozen=True, slots=True)
class LatentLayout:
    """Multi-head latent attention.

    Attributes:
        layers: layers that keep K/V.
        latent: width of the compressed latent.
        rope: width of the shared rotated key part.
    """

    layers: int
    latent: int
    rope: int

    @property
    def elements_per_token(self) -> int:
        return (self.latent + self.rope) * self.layers

    def describe(self) -> str:
        return (
            f"({self.latent} latent + {self.rope} rope) × {self.layers} layers"
            f" = {self.elements_per_token:,} elements a token"
        )


@dataclass(frozen=True, slots=True)
class KVPlan:
    """K/V memory of one layout under one load.

    Attributes:
        layout: what one token keeps.
        kv_bytes: bytes an element; 2 is fp16, 1 is 8-bit, 0.5 is 4-bit.
        context: tokens of one sequence.
        batch: sequences at once.

    Raises:
        ConfigError: if a number is not positive or beyond `MAX_COUNT` or `MAX_KV_BYTES`.
    """

    layout: HeadLayout | LatentLayout
    kv_bytes: float
    context: int
    batch: int

    def __post_init__(self) -> None:
        if not MIN_KV_BYTES <= self.kv_bytes <= MAX_KV_BYTES:
            raise ConfigError(
                f"kv_bytes must be {MIN_KV_BYTES:g} to {MAX_KV_BYTES:g}, not {self.kv_bytes:g}"
            )
        for name, value in (("context", self.context), ("batch", self.batch)):
            if not 0 < value <= MAX_COUNT:
                raise ConfigError(f"{name} must be 1 to {MAX_COUNT:,}, not {_shown(value)}")
        for name in self.layout.__dataclass_fields__:
            if (value := getattr(self.layout, name)) > MAX_COUNT:
                raise ConfigError(f"{name} must be at most {MAX_COUNT:,}, not {_shown(value)}")
        if self.layout.elements_per_token < 1:
            raise ConfigError(f"no K/V at all: {self.layout.describe()}")

    @property
    def bytes_per_token(self) -> float:
        return self.layout.elements_per_token * self.kv_bytes

    @property
    def bytes_per_context(self) -> int:
        return math.ceil(self.bytes_per_token * self.context)

    @property
    def bytes_total(self) -> int:
        return math.ceil(self.bytes_per_token * self.context * self.batch)

    def tokens_in(self, memory: int) -> int:
        """Whole tokens whose K/V fits in `memory` bytes."""
        return math.floor(memory / self.bytes_per_token)

    def contexts_in(self, memory: int) -> int:
        """Whole contexts of `context` tokens that fit in `memory` bytes."""
        return self.tokens_in(memory) // self.context


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table that sets kinds of attention side by side."""

    kind: str
    kv_heads: int
    plan: KVPlan
    share_of_mha: float


def compare_head_counts(plan: KVPlan, heads: int) -> list[Comparison]:
    """The same model with all, some (as `plan` has) and one of its `heads` keeping K/V.

    Raises:
        ConfigError: if `plan` is MLA, or its K/V heads do not divide `heads`.
    """
    layout = plan.layout
    if not isinstance(layout, HeadLayout):
        raise ConfigError("MLA keeps one latent for all heads; there are no head counts to compare")
    if heads % layout.kv_heads:
        raise ConfigError(
            f"{heads} query heads cannot share {layout.kv_heads} K/V heads evenly;"
            " the number of heads must be a multiple of the number of K/V heads"
        )
    rows = []
    for kv_heads in sorted({heads, layout.kv_heads, 1}, reverse=True):
        variant = KVPlan(
            HeadLayout(layout.layers, kv_heads, layout.head_dim),
            plan.kv_bytes,
            plan.context,
            plan.batch,
        )
        rows.append(
            Comparison(attention_kind(heads, kv_heads), kv_heads, variant, kv_heads / heads)
        )
    return rows


@dataclass(frozen=True, slots=True)
class FormatRow:
    """What ``--kv-dtype`` makes of a model, stored blocks only: a few open ones are in fp16 beside them.

    Attributes:
        dtype: the format.
        bytes_per_token: scales included.
        tokens_of_fp16: tokens that fit where one fits in fp16.
    """

    dtype: KVDtype
    bytes_per_token: float
    tokens_of_fp16: float

    def tokens_in(self, memory: int) -> int:
        """Whole tokens whose K/V fits in `memory` bytes."""
        return math.floor(memory / self.bytes_per_token)


def compare_formats(layout: HeadLayout, block_size: int) -> list[FormatRow]:
    """Every format that can store such heads, largest first."""
    from ostinato.cache.layout import KVCacheSpec, KVDtype

    def bytes_per_token(dtype: KVDtype) -> float:
        spec = KVCacheSpec(layout.layers, layout.kv_heads, layout.head_dim, dtype, block_size)
        return spec.bytes_per_block / block_size

    fp16 = bytes_per_token(KVDtype.FP16)
    rows = []
    for dtype in KVDtype:
        try:
            size = bytes_per_token(dtype)
        except ConfigError:  # int4 and heads of an odd size
            continue
        rows.append(FormatRow(dtype, size, fp16 / size))
    return sorted(rows, key=lambda row: -row.bytes_per_token)


def _shown(value: float) -> str:
    """A number whose digits do not fill the screen."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}… ({len(text)} digits)"


def attention_kind(heads: int, kv_heads: int) -> str:
    """MHA, GQA or MQA, by the head counts."""
    if kv_heads == heads:
        return "MHA"
    return "MQA" if kv_heads == 1 else "GQA"
