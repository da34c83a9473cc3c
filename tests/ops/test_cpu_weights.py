"""Guards packed weights: what is kept on disk must be exactly what packing gives; a bad file is never used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.ops.base import Float32Array, WeightTensor
from ostinato.ops.packed_weights import PackedWeights
from ostinato.ops.reference import ReferenceBackend
from tests.ops.backends import ISAS, NOT_BUILT, needs_native
from tests.ops.dense import ArrayTensor, RandomDecoder, random_decoder
from tests.ops.paging import PagedSequence, Piece, make_batch

pytestmark = needs_native
cpu_weights: Any = pytest.importorskip(
    "ostinato.ops.cpu_weights", reason=NOT_BUILT, exc_type=ImportError
)

ROWS, COLUMNS = 48, 256


@dataclass(frozen=True)
class QuantisedTensor:
    """A tensor as a GGUF file holds it."""

    name: str
    stored: np.ndarray
    encoding: str

    @property
    def shape(self) -> tuple[int, ...]:
        if self.stored.dtype != np.uint8:
            return self.stored.shape
        kind = GGMLQuantizationType[self.encoding]
        return quants.quant_shape_from_byte_shape(self.stored.shape, kind)

    def raw(self) -> np.ndarray:
        return self.stored

    def to_float32(self) -> Float32Array:
        return quants.dequantize(self.stored, GGMLQuantizationType[self.encoding])


def quantised(values: Float32Array, encoding: str, name: str = "w") -> QuantisedTensor:
    kind = GGMLQuantizationType[encoding]
    return QuantisedTensor(name, quants.quantize(values, kind), encoding)


def k_quantised(name: str = "w") -> QuantisedTensor:
    """Random codes in Q6_K: 128 + 64 bytes of codes, 16 scales and an fp16 for 256 weights."""
    raw = np.random.default_rng(0).integers(0, 256, (ROWS, 210), np.uint8)
    raw[:, 208:] = np.array([1e-3], np.float16).view(np.uint8)
    return QuantisedTensor(name, raw, "Q6_K")


def random_values(seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float32)


def rows_of(matrix: Any) -> Float32Array:
    values = np.empty((ROWS, COLUMNS), np.float32)
    for row in range(ROWS):
        matrix.get(row, values[row])
    return values


def pack(tensor: WeightTensor, folder: Path | None, wanted: str = "auto") -> Float32Array:
    return rows_of(cpu_weights.pack([tensor], PackedWeights(folder), wanted))


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Formats of the matrices that were packed from the file's tensors, in order."""
    seen: list[str] = []
    fill = cpu_weights._fill

    def spy(matrix: Any, tensors: Any, targets: Any, form: str) -> None:
        seen.append(form)
        fill(matrix, tensors, targets, form)

    monkeypatch.setattr(cpu_weights, "_fill", spy)
    return seen


@pytest.fixture
def tensor() -> QuantisedTensor:
    """Costly to pack: K-quants go through float32 to int8."""
    return k_quantised()


def test_the_second_load_reads_what_the_first_one_kept(
    tensor: QuantisedTensor, tmp_path: Path, packings: list[str]
) -> None:
    folder = tmp_path / "packed"
    first = pack(tensor, folder)
    assert packings == ["int8"]
    np.testing.assert_array_equal(pack(tensor, folder), first)
    assert packings == ["int8"]
    assert [path.suffix for path in folder.iterdir()] == [".packed"]


def test_nothing_is_kept_of_what_packs_as_fast_as_it_reads(tmp_path: Path) -> None:
    for encoding in ("Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        pack(quantised(random_values(), encoding), tmp_path)
    pack(ArrayTensor("w", random_values()), tmp_path)
    assert list(tmp_path.iterdir()) == []


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.write_bytes(b"something else" * 1000)


def shorter_than_a_header(path: Path) -> None:
    path.write_bytes(b"short")


@pytest.mark.parametrize("spoil", [damaged, truncated, emptied, foreign, shorter_than_a_header])
def test_a_bad_file_is_packed_anew_and_replaced(
    spoil: Any, tensor: QuantisedTensor, tmp_path: Path, packings: list[str]
) -> None:
    first = pack(tensor, tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    spoil(path)
    np.testing.assert_array_equal(pack(tensor, tmp_path), first)
    assert packings == ["int8", "int8"]
    assert path.read_bytes() == good


def test_damage_is_reported(
    tensor: QuantisedTensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack(tensor, tmp_path)
    (path,) = tmp_path.iterdir()
    damaged(path)
    with caplog.at_level(logging.WARNING):
        pack(tensor, tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        f"packed weights {path} are damaged; packing again"
    ]


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tensor: QuantisedTensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")  # a file where the folder should be: holds for root as well
    cache = PackedWeights(blocked / "packed")
    expected = pack(tensor, None)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = rows_of(cpu_weights.pack([tensor], cache, "auto"))
            np.testing.assert_array_equal(found, expected)
    (record,) = caplog.records
    assert "packed weights are not kept" in record.getMessage()


def test_each_target_format_and_tensor_has_a_file_of_its_own(tmp_path: Path) -> None:
    values = random_values()
    for tensor, wanted in (
        (k_quantised(), "int8"),
        (k_quantised(), "int4"),
        (k_quantised("other"), "int8"),
        (quantised(values, "Q5_1"), "int4"),
    ):
        before = len(list(tmp_path.iterdir()))
        pack(tensor, tmp_path, wanted)
        assert len(list(tmp_path.iterdir())) == before + 1


@pytest.mark.parametrize("encoding", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("wanted", ["auto", "int8"])
def test_codes_of_a_file_are_not_rounded_again(encoding: str, wanted: str) -> None:
    tensor = quantised(random_values(), encoding)
    np.testing.assert_array_equal(pack(tensor, None, wanted), tensor.to_float32())


@pytest.mark.parametrize(
    ("encodings", "wanted", "expected"),
    [
        (["Q4_0"], "auto", "int4"),
        (["Q4_0", "Q4_1"], "auto", "int4_minimum"),
        (["Q8_0"], "auto", "int8"),
        (["Q4_0", "Q8_0"], "auto", "int8"),
        (["Q5_0"], "auto", "int8"),
        (["Q5_0", "Q4_0", "Q8_0"], "auto", "int8"),
        (["Q5_1"], "auto", "int8_minimum"),
        (["Q8_0", "Q5_1", "Q4_1"], "auto", "int8_minimum"),
        (["Q5_1", "F16"], "auto", "int8"),
        (["Q4_1"], "int8", "int8_minimum"),
        (["Q4_0"], "int8", "int8"),
        (["F16"], "auto", "fp16"),
        (["F16", "F32"], "auto", "fp32"),
        (["BF16"], "auto", "fp32"),
        (["Q4_0"], "int4", "int4"),
        (["Q8_0"], "int4", "int4_minimum"),
        (["Q4_0"], "fp16", "fp16"),
    ],
)
def test_auto_keeps_the_precision_of_the_file(
    encodings: list[str], wanted: str, expected: str
) -> None:
    values = random_values()
    tensors = [quantised(values, encoding) for encoding in encodings]
    assert cpu_weights.packed_format(tensors, wanted) == expected


WEIGHT_TOLERANCE = {"fp32": 1e-6, "fp16": 1e-3, "int8": 5e-3, "int4": 9e-2}
"""Largest error of a weight as a share of the largest of its 32: half a step, and fp16 scales."""


@pytest.mark.parametrize("wanted", WEIGHT_TOLERANCE)
@pytest.mark.parametrize("encoding", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_encoding_packs_to_every_weight_dtype(encoding: str, wanted: str) -> None:
    tensor = quantised(random_values(), encoding)
    values = tensor.to_float32()
    groups = values.reshape(ROWS, -1, 32)
    error = np.abs(pack(tensor, None, wanted) - values).reshape(groups.shape)
    assert np.all(error <= WEIGHT_TOLERANCE[wanted] * np.abs(groups).max(-1, keepdims=True))


LOGIT_TOLERANCE = {"auto": 2e-5, "fp32": 2e-5, "fp16": 2e-3, "int8": 4e-2, "int4": 0.5}
"""Root mean square difference from the reference's logits, whose own is about 1; activations are float32."""


def logits(ops: Any, decoder: RandomDecoder) -> Float32Array:
    spec = KVCacheSpec(len(decoder.layers), 2, 16, KVDtype.FP32, 16)
    sequence = PagedSequence(np.array([1, 0], np.int32), 16)
    tokens = np.random.default_rng(1).integers(0, decoder.vocab_size, 30)
    batch = make_batch([Piece(sequence, tokens.astype(np.int32))])
    result: Float32Array = decoder.load(ops).forward(batch, ops.allocate_kv(spec, 2))
    return result


@pytest.mark.parametrize("weight_dtype", LOGIT_TOLERANCE)
def test_each_weight_dtype_stays_near_the_reference(
    weight_dtype: Literal["auto", "fp32", "fp16", "int8", "int4"],
) -> None:
    from ostinato.ops.cpu import CpuBackend

    assert LOGIT_TOLERANCE.keys() == set(get_args(cpu_weights.WeightDtype))
    rng = np.random.default_rng(3)
    decoder = random_decoder(rng, hidden_size=64, inner_size=96, head_dim=16)
    ops = CpuBackend(2, ISAS[-1], "fp32", weight_dtype)
    found, expected = logits(ops, decoder), logits(ReferenceBackend(), decoder)
    error = float(np.sqrt(np.mean(np.square(found - expected))))
    assert error < LOGIT_TOLERANCE[weight_dtype]
    if weight_dtype not in ("auto", "fp32"):
        assert error > LOGIT_TOLERANCE["fp32"], "the weights were not packed as asked"


def test_a_model_s_packed_weights_are_read_at_the_second_start(
    tmp_path: Path, packings: list[str]
) -> None:
    from ostinato.ops.cpu import CpuBackend

    decoder = random_decoder(
        np.random.default_rng(4), num_layers=1, hidden_size=64, inner_size=96, head_dim=16
    )
    results = []
    for _ in range(2):
        ops = CpuBackend(1, "", "fp32", "int8")
        ops.keep_packed_weights(tmp_path / "packed")
        results.append(logits(ops, decoder))
    np.testing.assert_array_equal(*results)
    assert packings == ["int8"] * 5  # Q/K/V, output, gate and up, down, embedding
