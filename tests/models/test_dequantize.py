"""Guards our own unpacking of common GGUF types: it must give the bits that the `gguf` package gives."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf import dequantize as dequantize_by_gguf

from ostinato.models.weights import dequantize as module
from ostinato.models.weights.dequantize import dequantize

OURS = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)


def random_rows(kind: GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Any bytes are valid elements; the float16 scales are made finite."""
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = rows * columns // block_elements
    rng = np.random.default_rng(rows)
    stored = rng.integers(0, 256, (blocks, block_bytes), dtype=np.uint8)
    num_scales = 2 if kind is GGMLQuantizationType.Q4_1 else 1
    scales = rng.normal(0, 0.1, (blocks, num_scales)).astype(np.float16)
    stored[:, : 2 * num_scales] = scales.view(np.uint8)
    return stored.reshape(rows, -1)


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("piece", [1, 7, module.PIECE])
def test_our_unpacking_equals_the_package_bit_by_bit(
    monkeypatch: pytest.MonkeyPatch, kind: GGMLQuantizationType, piece: int
) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    stored = random_rows(kind, 24, 96)
    found = dequantize(stored, kind, (24, 96))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, dequantize_by_gguf(stored, kind))


def test_a_tensor_of_several_pieces_is_unpacked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 1000)
    stored = random_rows(GGMLQuantizationType.Q4_1, 64, 1024)
    found = dequantize(stored, GGMLQuantizationType.Q4_1, (64, 1024))
    np.testing.assert_array_equal(found, dequantize_by_gguf(stored, GGMLQuantizationType.Q4_1))


def test_other_types_go_through_the_package() -> None:
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType.Q6_K][1]
    stored = np.zeros((2, block_bytes), dtype=np.uint8)
    found = dequantize(stored, GGMLQuantizationType.Q6_K, (2, 256))
    np.testing.assert_array_equal(found, np.zeros((2, 256), dtype=np.float32))
