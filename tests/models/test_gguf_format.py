"""Guards our own reading of GGUF headers: against the `gguf` package, and against damaged files.

A header that is misread gives garbage weights; one that is trusted blindly gives endless loops.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.errors import ModelFormatError
from ostinato.models.weights.gguf_format import read_header
from tests.models.gguf_samples import write_gguf

METADATA = {
    "general.name": "naïve 模型",
    "llama.block_count": 3,
    "llama.rope.freq_base": 10000.5,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.tokens": ["a", "Ġb", "é"],
    "tokenizer.ggml.token_type": [1, -2, 3],
    "tokenizer.ggml.scores": [0.5, -1.25],
}


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    tensors = {
        "token_embd.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "output_norm.weight": np.ones(5, dtype=np.float16),
    }
    return write_gguf(tmp_path / "sample.gguf", "llama", METADATA, tensors)


def test_values_and_tensor_places_are_those_that_the_gguf_package_reads(sample: Path) -> None:
    header = read_header(sample)
    reader = gguf.GGUFReader(sample)
    theirs = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    assert {key: header.metadata[key] for key in theirs} == theirs
    assert [(t.name, t.shape, t.type_id, t.offset) for t in header.tensors] == [
        (t.name, tuple(reversed(t.shape.tolist())), int(t.tensor_type), t.data_offset)
        for t in reader.tensors
    ]


def test_the_vocabulary_size_is_taken_from_the_embedding_where_the_file_leaves_it_out(
    sample: Path,
) -> None:
    assert read_header(sample).metadata["llama.vocab_size"] == 3


def test_a_vocabulary_size_in_the_file_is_kept(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "sized.gguf",
        metadata={"llama.vocab_size": 2},
        tensors={"token_embd.weight": np.zeros((3, 4), np.float32)},
    )
    assert read_header(path).metadata["llama.vocab_size"] == 2


def test_another_alignment_moves_the_tensors(sample: Path, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "aligned.gguf", "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("token_embd.weight", np.zeros((3, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_header(tmp_path / "aligned.gguf").tensors[0].offset % 256 == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 something else", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1), "GGUF version 1"),
        (b"GGUF" + struct.pack(">I", 3), "big-endian"),
        (b"GGUF" + struct.pack("<IQ", 3, 1), "ends in the middle"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "ends in the middle"),
        (
            b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 0, 1 << 60),
            "claims 1152921504606846976 elements",
        ),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "no value type 99"),
        (b"GGUF" + struct.pack("<IQQQ2sI", 3, 0, 1, 2, b"\xff\xfe", 0), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 1 << 30), "claims 1073741824 dim"),
    ],
)
def test_a_file_that_is_no_sound_gguf_file_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match=message):
        read_header(path)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    entry = struct.pack("<Q1sIQIQ", 1, b"t", 1, 1, 0, 0)
    path = tmp_path / "twice.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + entry * 2)
    with pytest.raises(ModelFormatError, match="the same name"):
        read_header(path)


@pytest.mark.parametrize("alignment", [0, 3])
def test_an_impossible_alignment_is_refused(tmp_path: Path, alignment: int) -> None:
    path = write_gguf(tmp_path / "odd.gguf", metadata={"general.alignment": alignment})
    with pytest.raises(ModelFormatError, match="not a power of two"):
        read_header(path)


@given(data=st.data())
def test_any_truncation_of_the_header_is_an_error_of_ours(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = write_gguf(folder / "whole.gguf", "llama", METADATA).read_bytes()
    length = data.draw(st.integers(0, len(whole.rstrip(b"\0")) - 5))
    (folder / "cut.gguf").write_bytes(whole[:length])
    with pytest.raises(ModelFormatError):
        read_header(folder / "cut.gguf")
