"""Weights that both engines hold exactly, in either one's encoding.

A weight is ``scale * (code - zero_point)`` in groups of 32. Scales have four significant bits, so that Q4_1's
minimum ``-scale * zero_point`` is exact in fp16 too. With 8 bits the zero point is 128: Ostinato has no other,
and ONNX Runtime then needs none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.linear.shapes import GROUP

Float32Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """Attributes:
    bits: 4 or 8.
    codes: (rows, groups, 32), below ``2**bits``.
    scales: (rows, groups) float32.
    zero_points: (rows, groups), below ``2**bits``.
    """

    bits: int
    codes: Bytes
    scales: Float32Array
    zero_points: Bytes

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.codes.shape[0], self.codes.shape[1] * GROUP

    def values(self) -> Float32Array:
        """(rows, cols)."""
        centred = self.codes.astype(np.float32) - self.zero_points[..., None]
        return (centred * self.scales[..., None]).reshape(self.shape)

    def gguf(self) -> Bytes:
        """Rows of Q4_1 or Q8_0 blocks, as a GGUF file has them."""
        scale = self.scales.astype(np.float16)[..., None].view(np.uint8)
        if self.bits == 8:
            parts = [scale, self.codes ^ 0x80]
        else:
            minimum = -self.scales * self.zero_points
            halves = self.codes[..., :16] | self.codes[..., 16:] << 4
            parts = [scale, minimum.astype(np.float16)[..., None].view(np.uint8), halves]
        return np.concatenate(parts, axis=-1).reshape(self.shape[0], -1)

    def matmul_nbits(self) -> dict[str, npt.NDArray[np.generic]]:
        """Inputs B, scales and, with 4 bits, zero_points of com.microsoft.MatMulNBits."""
        if self.bits == 8:
            return {"B": self.codes, "scales": self.scales}
        codes = self.codes[..., 0::2] | self.codes[..., 1::2] << 4
        even = np.pad(self.zero_points, ((0, 0), (0, self.zero_points.shape[1] % 2)))
        points = even[:, 0::2] | even[:, 1::2] << 4
        return {"B": codes, "scales": self.scales, "zero_points": points}

    def rolled(self, by: int) -> QuantisedWeights:
        """The same rows, each `by` further down; the last ones come first."""
        return QuantisedWeights(
            self.bits,
            np.roll(self.codes, by, axis=0),
            np.roll(self.scales, by, axis=0),
            np.roll(self.zero_points, by, axis=0),
        )


def random_weights(rng: np.random.Generator, bits: int, rows: int, cols: int) -> QuantisedWeights:
    """Every code appears. `cols` is a multiple of 32."""
    groups = cols // GROUP
    scales = rng.integers(8, 16, (rows, groups)).astype(np.float32) * np.float32(2.0**-9 / 2**bits)
    codes = rng.integers(0, 1 << bits, (rows, groups, GROUP), np.uint8)
    points = (
        rng.integers(0, 16, (rows, groups), np.uint8)
        if bits == 4
        else np.full((rows, groups), 128, np.uint8)
    )
    return QuantisedWeights(bits, codes, scales, points)


def rounding_bound(x: Float32Array, values: Float32Array) -> npt.NDArray[np.float64]:
    """(tokens, rows): how far a product may be off whose activations are rounded to int8 in groups of 32.

    Half a step of 1/127 of the group's largest activation at every weight; and 1e-5 of the terms, for sums in
    float32.
    """
    tokens, cols = x.shape
    groups = np.abs(x.astype(np.float64)).reshape(tokens, cols // GROUP, GROUP)
    magnitudes = np.abs(values.astype(np.float64))
    steps = groups.max(axis=-1) / 127
    by_group = magnitudes.reshape(len(values), cols // GROUP, GROUP).sum(axis=-1)
    rounding: npt.NDArray[np.float64] = 0.5 * steps @ by_group.T
    return rounding + 1e-5 * (np.abs(x.astype(np.float64)) @ magnitudes.T)
