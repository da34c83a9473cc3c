"""Guards `GgufFile`: names, the order of Q and K rows, every encoding, and what a bad file is told.

Rows in the wrong order give a model that talks fluent nonsense, so the order is checked on quantised bytes,
on values, and (in test_loader.py) on logits.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.registry import resolve_model
from ostinato.models.weights.gguf import GgufFile, rotate_half_order
from tests.models.gguf_samples import interleave, write_gguf

QUANTISED = sorted(
    (
        encoding
        for encoding in GGMLQuantizationType
        if encoding.name.startswith(("Q", "IQ", "TQ", "MXFP"))
        and encoding.name not in ("Q8_1", "Q8_K", "Q1_0")  # the gguf package has no dequantiser
    ),
    key=lambda encoding: encoding.name,
)
EASY_TO_QUANTISE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
HEADS = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    data_dir = tmp_path_factory.mktemp("data")
    return GgufFile(resolve_model("smollm2-135m-instruct", data_dir), data_dir)


def random_bytes(encoding: GGMLQuantizationType, rows: int) -> np.ndarray:
    """Valid blocks of any type: random bits, with every half-precision scale kept finite."""
    _, block_bytes = GGML_QUANT_SIZES[encoding]
    rng = np.random.default_rng(3)
    return (rng.integers(0, 256, (rows, 2 * block_bytes)) & 0x3B).astype(np.uint8)


@pytest.mark.parametrize("encoding", QUANTISED, ids=lambda encoding: encoding.name)
def test_every_quantised_type_reads_as_the_gguf_package_reads_it(
    encoding: GGMLQuantizationType, tmp_path: Path
) -> None:
    stored = random_bytes(encoding, rows=3)
    expected = gguf.dequantize(stored, encoding)
    name = "blk.0.ffn_up.weight"
    path = write_gguf(tmp_path / "q.gguf", tensors={name: stored}, types={name: encoding})
    tensor = GgufFile(path, tmp_path).tensor("model.layers.0.mlp.up_proj.weight")
    assert (tensor.encoding, tensor.shape) == (encoding.name, expected.shape)
    np.testing.assert_array_equal(tensor.raw(), stored)
    np.testing.assert_array_equal(tensor.to_float32(), expected)


def test_a_type_without_a_dequantiser_is_refused_by_name(tmp_path: Path) -> None:
    stored = random_bytes(GGMLQuantizationType.Q8_K, rows=1)
    path = write_gguf(
        tmp_path / "q.gguf", tensors={"t": stored}, types={"t": GGMLQuantizationType.Q8_K}
    )
    tensor = GgufFile(path, tmp_path).tensor("t")
    with pytest.raises(UnsupportedModelError, match="'t' is stored as Q8_K"):
        tensor.to_float32()


def test_float_types_give_their_elements_and_exact_values(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.25, 3.0]], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    path = write_gguf(
        tmp_path / "f.gguf",
        tensors={"f32": values, "f16": values.astype(np.float16), "bf16": bits.view(np.uint8)},
        types={"bf16": GGMLQuantizationType.BF16},
    )
    weights = GgufFile(path, tmp_path)
    for name, dtype in (("f32", np.float32), ("f16", np.float16), ("bf16", np.uint16)):
        tensor = weights.tensor(name)
        assert tensor.encoding == name.upper()
        assert tensor.raw().dtype == dtype
        assert tensor.raw().shape == (2, 2)
        np.testing.assert_array_equal(tensor.to_float32(), values)
        assert tensor.to_float32().dtype == np.float32


def test_the_raw_bytes_are_a_view_of_the_file_and_not_a_copy(smollm2: GgufFile) -> None:
    raw = smollm2.tensor("model.layers.3.mlp.down_proj.weight").raw()
    assert not raw.flags.owndata
    assert not raw.flags.writeable


@pytest.mark.parametrize("encoding", EASY_TO_QUANTISE)
def test_q_and_k_rows_come_in_rotate_half_order_quantised_or_not(
    encoding: str, tmp_path: Path
) -> None:
    kind = GGMLQuantizationType[encoding]
    rng = np.random.default_rng(1)
    query = gguf.quantize(rng.normal(size=(32, 64)).astype(np.float32), kind)
    key = gguf.quantize(rng.normal(size=(16, 64)).astype(np.float32), kind)
    names = {"blk.0.attn_q.weight": interleave(query, 4), "blk.0.attn_k.weight": interleave(key, 2)}
    path = write_gguf(tmp_path / "qk.gguf", "llama", HEADS, names, types=dict.fromkeys(names, kind))
    weights = GgufFile(path, tmp_path)
    for letter, rows in (("q", query), ("k", key)):
        tensor = weights.tensor(f"model.layers.0.self_attn.{letter}_proj.weight")
        np.testing.assert_array_equal(tensor.raw(), rows)
        np.testing.assert_array_equal(tensor.to_float32(), gguf.dequantize(rows, kind))


def test_qwen_rows_are_left_as_they_are(tmp_path: Path) -> None:
    query = np.arange(64, dtype=np.float32).reshape(16, 4)
    path = write_gguf(
        tmp_path / "qwen.gguf",
        "qwen2",
        {"qwen2.attention.head_count": 2},
        {"blk.0.attn_q.weight": query, "blk.0.attn_q.bias": query[:, 0]},
    )
    weights = GgufFile(path, tmp_path)
    tensor = weights.tensor("model.layers.0.self_attn.q_proj.weight")
    np.testing.assert_array_equal(tensor.raw(), query)
    assert "model.layers.0.self_attn.q_proj.bias" in weights


def test_the_row_order_undoes_the_converters_permutation() -> None:
    rows = np.arange(24)
    np.testing.assert_array_equal(interleave(rows, 3)[rotate_half_order(24, 3)], rows)


def test_the_default_model_has_every_tensor_of_a_llama_under_its_hugging_face_name(
    smollm2: GgufFile,
) -> None:
    parts = [f"self_attn.{name}_proj" for name in "qkvo"]
    parts += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    parts += ["input_layernorm", "post_attention_layernorm"]
    names = [f"model.layers.{layer}.{part}.weight" for layer in range(30) for part in parts]
    assert all(
        name in smollm2 for name in [*names, "model.embed_tokens.weight", "model.norm.weight"]
    )
    assert smollm2.tensor("model.layers.29.self_attn.k_proj.weight").shape == (192, 576)
    assert smollm2.nbytes == 96_576_768


def test_two_threads_read_the_same_values_as_one(smollm2: GgufFile) -> None:
    names = [f"model.layers.{layer}.mlp.gate_proj.weight" for layer in range(8)]

    def total(name: str) -> float:
        return float(smollm2.tensor(name).to_float32().sum())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(total, names)) == [total(name) for name in names]


def test_the_digest_is_the_sha256_of_the_file(smollm2: GgufFile) -> None:
    assert smollm2.digest().hex().startswith("b179c9523d0e6a0f")


def test_a_missing_tensor_is_named_with_the_nearest_that_is_there(smollm2: GgufFile) -> None:
    with pytest.raises(
        ModelFormatError, match=r"lacks the tensor 'model\.norm\.wait'.*norm\.weight"
    ):
        smollm2.tensor("model.norm.wait")


def test_a_truncated_file_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", tensors={"t": np.ones((64, 64), np.float32)})
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFormatError, match="truncated: tensor 't'"):
        GgufFile(path, tmp_path)


def test_a_vocabulary_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="no tensors"):
        GgufFile(write_gguf(tmp_path / "v.gguf"), tmp_path)


def test_one_file_of_a_split_set_is_refused_with_the_way_to_join_them(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "s.gguf", metadata={"split.count": 3}, tensors={"t": np.ones(4, np.float32)}
    )
    with pytest.raises(UnsupportedModelError, match="llama-gguf-split --merge"):
        GgufFile(path, tmp_path)


def test_heads_that_do_not_divide_the_rows_are_a_damaged_file(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "h.gguf", "llama", HEADS, {"blk.0.attn_q.weight": np.ones((30, 4), np.float32)}
    )
    with pytest.raises(ModelFormatError, match="30 rows, which 4 heads"):
        GgufFile(path, tmp_path)


def test_an_unknown_tensor_type_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "u.gguf", tensors={"t": np.ones(4, np.float32)})
    header = path.read_bytes()
    place = header.index(b"t", header.index(b"llama") + 5) + 1 + 4 + 8  # name, rank, one dimension
    path.write_bytes(header[:place] + (77).to_bytes(4, "little") + header[place + 4 :])
    with pytest.raises(UnsupportedModelError, match="unknown GGML type 77"):
        GgufFile(path, tmp_path)
