"""Guards folders of safetensors: BF16 without PyTorch, shards, and files that are not what they claim."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.weights.safetensors import SafetensorsFolder


def write_raw(path: Path, entries: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Write the format by hand, for types that NumPy does not have."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in entries.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def bf16(values: np.ndarray) -> bytes:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def open_folder(folder: Path) -> SafetensorsFolder:
    (folder / "config.json").touch()
    return SafetensorsFolder(folder, folder / "data")


def test_all_three_float_types_read_exactly(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.125], [3.0, -0.5, 65280.0]], np.float32)
    write_raw(
        tmp_path / "model.safetensors",
        {
            "f32": ("F32", [2, 3], values.tobytes()),
            "f16": ("F16", [2, 3], np.minimum(values, 60000).astype(np.float16).tobytes()),
            "bf16": ("BF16", [2, 3], bf16(values)),
        },
    )
    weights = open_folder(tmp_path)
    np.testing.assert_array_equal(weights.tensor("f32").to_float32(), values)
    np.testing.assert_array_equal(weights.tensor("bf16").to_float32(), values)
    np.testing.assert_array_equal(
        weights.tensor("f16").to_float32(), np.minimum(values, 60000).astype(np.float16)
    )
    assert weights.tensor("bf16").raw().dtype == np.uint16
    assert weights.tensor("bf16").encoding == "BF16"
    assert weights.nbytes == 24 + 12 + 12


def test_bfloat16_keeps_infinities_nan_and_denormals(tmp_path: Path) -> None:
    bits = np.array([0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8000], np.uint16)
    write_raw(tmp_path / "model.safetensors", {"t": ("BF16", [5], bits.tobytes())})
    values = open_folder(tmp_path).tensor("t").to_float32()
    np.testing.assert_array_equal(values.view(np.uint32), bits.astype(np.uint32) << 16)


def test_shards_are_read_as_one_model(tmp_path: Path) -> None:
    first, second = np.ones((2, 2), np.float32), np.full(3, 2, np.float16)
    save_file({"a": first}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": second}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    index["weight_map"]["b"] = "model-00002-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = open_folder(tmp_path)
    np.testing.assert_array_equal(weights.tensor("a").to_float32(), first)
    np.testing.assert_array_equal(weights.tensor("b").to_float32(), second)
    assert "c" not in weights
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"lacks 1 of 2 .* model-00002-of-00002"):
        open_folder(tmp_path)


def test_the_digest_changes_with_content_and_configuration_and_not_with_the_folder(
    tmp_path: Path,
) -> None:
    def digest(name: str, value: float, config: str) -> bytes:
        folder = tmp_path / name
        folder.mkdir()
        save_file({"a": np.array([value], np.float32)}, folder / "model.safetensors")
        (folder / "config.json").write_text(config)
        return SafetensorsFolder(folder, tmp_path / "data").digest()

    one = digest("one", 1.0, "{}")
    assert digest("copy", 1.0, "{}") == one
    assert digest("other-weights", 2.0, "{}") != one
    assert digest("other-config", 1.0, '{"rope_theta": 1}') != one
    assert len(one) == 32


def test_a_quantised_type_is_refused_by_name_when_it_is_asked_for(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", {"t": ("F8_E4M3", [2], b"\0\0")})
    with pytest.raises(UnsupportedModelError, match="F8_E4M3"):
        open_folder(tmp_path).tensor("t")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    save_file({"model.norm.weight": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"lacks the tensor 'lm_head\.weight'"):
        open_folder(tmp_path).tensor("lm_head.weight")


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"neither model\.safetensors nor"):
        open_folder(tmp_path)


def test_a_truncated_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.ones(100, np.float32)}, file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ModelFormatError, match="truncated: tensor 'a'"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "header length is 0"),
        (struct.pack("<Q", 1 << 40) + b"{}", "header length"),
        (struct.pack("<Q", 5) + b"oops!", "not JSON"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 8) + b'{"t": 1}', "entry for 't'"),
    ],
)
def test_a_damaged_header_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFormatError, match=message):
        open_folder(tmp_path)


def test_a_shape_that_does_not_fit_its_bytes_is_refused(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", {"t": ("F32", [3], b"\0" * 8)})
    with pytest.raises(ModelFormatError, match=r"shape \(3,\) .* cannot lie in bytes 0 to 8"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "damaged"),
        ('{"weights": {}}', "damaged"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "points outside"),
    ],
)
def test_a_bad_shard_index_is_refused(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFormatError, match=message):
        open_folder(tmp_path)
