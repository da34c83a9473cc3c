"""Guards the way from a path to logits: the same model must give the same logits from either kind of file.

This is where a wrong name, a wrong row order or a wrong tensor type would show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ostinato.cache.layout import KVDtype
from ostinato.errors import ConfigError, ModelFormatError, ModelNotFoundError, UnsupportedModelError
from ostinato.models.loader import LoadedModel, load_model, read_config
from ostinato.models.registry import resolve_model
from ostinato.ops.base import BatchMetadata, OpsBackend
from ostinato.ops.reference import ReferenceBackend
from tests import tiny
from tests.models.gguf_samples import write_gguf, write_tiny_gguf

BLOCK_SIZE = 16
ARCHITECTURES: list[tiny.TinyArchitecture] = ["llama", "mistral", "qwen2", "qwen3"]


def logits(model: LoadedModel, ops: OpsBackend, ids: list[int]) -> npt.NDArray[np.float32]:
    """Logits of every position of one prompt."""
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    kv = ops.allocate_kv(model.config.kv_spec(KVDtype.FP32, BLOCK_SIZE), num_blocks)
    positions = np.arange(len(ids), dtype=np.int32)
    batch = BatchMetadata(
        token_ids=np.array(ids, np.int32),
        positions=positions,
        slot_mapping=positions.astype(np.int64),
        query_start=np.array([0, len(ids)], np.int32),
        seq_lens=np.array([len(ids)], np.int32),
        block_tables=np.arange(num_blocks, dtype=np.int32)[None],
        logits_indices=positions,
    )
    return model.decoder.forward(batch, kv)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gguf_file_and_a_folder_of_one_model_give_the_same_logits(
    architecture: tiny.TinyArchitecture, tmp_path: Path
) -> None:
    folder = tiny.write_tiny_model(tmp_path / "hf", architecture, seed=3, tie_embeddings=False)
    config = json.loads((folder / "config.json").read_text())
    tensors = tiny.tiny_tensors(config, seed=3)
    file = write_tiny_gguf(tmp_path / "tiny.gguf", config, tensors)
    ops = ReferenceBackend()
    from_folder = load_model(folder, ops, tmp_path / "data", max_model_len=64)
    from_file = load_model(file, ops, tmp_path / "data", max_model_len=64)
    ids = from_file.tokenizer.encode("the end of the sentence, 12 times: é你")
    assert from_folder.tokenizer.encode("the end of the sentence, 12 times: é你") == ids
    np.testing.assert_allclose(
        logits(from_file, ops, ids), logits(from_folder, ops, ids), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_shards_and_half_precision_load(dtype: npt.DTypeLike, tmp_path: Path) -> None:
    ops = ReferenceBackend()
    whole = tiny.write_tiny_model(tmp_path / "whole", seed=1, dtype=dtype)
    parts = tiny.write_tiny_model(tmp_path / "parts", seed=1, dtype=dtype, num_shards=3)
    models = [load_model(path, ops, tmp_path / "data", max_model_len=32) for path in (whole, parts)]
    first, second = (logits(model, ops, [1, 2, 3, 4]) for model in models)
    np.testing.assert_array_equal(first, second)
    assert models[0].weight_bytes == models[1].weight_bytes


def test_everything_that_the_engine_needs_comes_with_the_model(tmp_path: Path) -> None:
    folder = tiny.write_tiny_model(tmp_path / "org--repo")
    model = load_model(folder, ReferenceBackend(), tmp_path / "data", max_model_len=32)
    assert model.name == "org/repo"
    assert model.path == folder
    assert model.config.num_layers == 2
    assert model.tokenizer.token_id("<|im_end|>") in model.tokenizer.eos_token_ids
    assert model.chat_template is not None
    assert model.chat_template.render([{"role": "user", "content": "x"}]).startswith("<|im_start|>")
    assert len(model.digest) == 32


def test_progress_names_every_tensor_and_counts_every_element(tmp_path: Path) -> None:
    folder = tiny.write_tiny_model(tmp_path / "tiny")
    seen: dict[str, int] = {}
    load_model(
        folder,
        ReferenceBackend(),
        tmp_path / "data",
        max_model_len=32,
        progress=lambda name, elements: seen.update({name: elements}),
    )
    config = json.loads((folder / "config.json").read_text())
    assert seen == {name: tensor.size for name, tensor in tiny.tiny_tensors(config).items()}


def test_the_default_model_loads_under_its_known_name(tmp_path: Path) -> None:
    path = resolve_model("smollm2-135m-instruct", tmp_path)
    ops = ReferenceBackend()
    model = load_model(path, ops, tmp_path, max_model_len=64)
    assert model.name == "smollm2-135m-instruct"
    assert model.config == read_config(path)
    assert model.config.vocab_size == model.tokenizer.vocab_size == 49152
    assert model.chat_template is not None
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = model.chat_template.render(question) + "The capital of France is"
    ids = model.tokenizer.encode(prompt)
    best = int(logits(model, ops, ids)[-1].argmax())
    assert model.tokenizer.token_text(best) == " Paris"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_architecture_can_be_read_without_the_weights(
    architecture: tiny.TinyArchitecture, tmp_path: Path
) -> None:
    folder = tiny.write_tiny_model(tmp_path / "hf", architecture)
    config = json.loads((folder / "config.json").read_text())
    file = write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny.tiny_tensors(config))
    from_folder, from_file = read_config(folder), read_config(file)
    for name in (
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "max_position",
    ):
        assert getattr(from_file, name) == getattr(from_folder, name)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    config = tiny.tiny_config()
    folder = tmp_path / "org--repo--q8"
    folder.mkdir()
    write_tiny_gguf(folder / "tiny.gguf", config, tiny.tiny_tensors(config))
    model = load_model(folder, ReferenceBackend(), tmp_path / "data", max_model_len=32)
    assert model.name == "org/repo:q8"
    (folder / "other.gguf").touch()
    with pytest.raises(ModelNotFoundError, match=r"name one: other\.gguf, tiny\.gguf"):
        read_config(folder)


def test_a_base_model_has_no_chat_template(tmp_path: Path) -> None:
    folder = tiny.write_tiny_model(tmp_path / "tiny")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = load_model(folder, ReferenceBackend(), tmp_path / "data", max_model_len=32)
    assert model.chat_template is None


def test_a_context_longer_than_the_models_is_refused(tmp_path: Path) -> None:
    folder = tiny.write_tiny_model(tmp_path / "tiny", max_position=128)
    with pytest.raises(ConfigError, match="128"):
        load_model(folder, ReferenceBackend(), tmp_path / "data", max_model_len=129)


def break_folder(folder: Path, file: str, change: dict[str, Any] | None) -> None:
    if change is None:
        (folder / file).unlink()
        return
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **change}))


@pytest.mark.parametrize(
    ("file", "change", "error", "message"),
    [
        ("config.json", None, ModelNotFoundError, "neither config.json nor a GGUF file"),
        ("config.json", {"architectures": ["MambaForCausalLM"], "model_type": "mamba"},
         UnsupportedModelError, "amba"),
        ("config.json", {"num_hidden_layers": 3}, ModelFormatError, r"model\.layers\.2\."),
        ("config.json", {"intermediate_size": 100}, ModelFormatError, "gate_proj"),
        ("tokenizer.json", None, UnsupportedModelError, "no tokenizer.json"),
        ("model.safetensors", None, ModelFormatError, r"neither model\.safetensors"),
    ],
)  # fmt: skip
def test_a_folder_that_is_incomplete_or_contradicts_itself_is_refused_with_the_reason(
    tmp_path: Path, file: str, change: dict[str, Any] | None, error: type[Exception], message: str
) -> None:
    folder = tiny.write_tiny_model(tmp_path / "tiny")
    break_folder(folder, file, change)
    with pytest.raises(error, match=message):
        load_model(folder, ReferenceBackend(), tmp_path / "data", max_model_len=32)


def test_a_path_to_nothing_or_to_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        read_config(tmp_path / "nothing")
    (tmp_path / "model.safetensors").write_bytes(b"\x10" + bytes(20))
    with pytest.raises(ModelFormatError, match="For safetensors give the folder"):
        read_config(tmp_path / "model.safetensors")


def test_a_gguf_file_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", "mamba", tensors={"t": np.ones(4, np.float32)})
    with pytest.raises(UnsupportedModelError, match="mamba"):
        load_model(file, ReferenceBackend(), tmp_path / "data")


def test_a_file_without_a_byte_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelFormatError, match=r"model\.gguf is empty"):
        read_config(tmp_path / "model.gguf")
