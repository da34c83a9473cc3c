"""From a path to a model that runs: weights, tokenizer, chat template, decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ostinato.errors import ModelFormatError, ModelNotFoundError
from ostinato.models.chat_template import ChatTemplate
from ostinato.models.config import ModelConfig
from ostinato.models.decoder import Decoder
from ostinato.models.hf_files import read_json
from ostinato.models.registry import display_name
from ostinato.models.tokenizer import Tokenizer
from ostinato.models.tokenizer_gguf import tokenizer_from_gguf
from ostinato.models.weights.base import WeightFile
from ostinato.models.weights.gguf import GgufFile
from ostinato.models.weights.gguf_format import MAGIC, read_header
from ostinato.models.weights.safetensors import CONFIG_FILE, SafetensorsFolder
from ostinato.ops.base import LoadProgress, OpsBackend


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that the engine needs of a model.

    Attributes:
        name: what clients call it unless the settings say otherwise.
        path: the GGUF file or the folder.
        config: the architecture.
        tokenizer: text to ids and back.
        chat_template: None for a base model without one.
        decoder: the loaded weights, ready to run.
        digest: 32 bytes that name weights and configuration.
        weight_bytes: size of the weights as stored.
    """

    name: str
    path: Path
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    decoder: Decoder
    digest: bytes
    weight_bytes: int


def load_model(
    path: Path,
    ops: OpsBackend,
    data_dir: Path,
    *,
    max_model_len: int | None = None,
    progress: LoadProgress | None = None,
) -> LoadedModel:
    """Load a GGUF file, or a folder of safetensors + config + tokenizer.

    Args:
        path: as `registry.resolve_model` returns it.
        ops: the backend that will run the model.
        data_dir: where file digests and packed weights are kept.
        max_model_len: longest sequence in tokens; default: the model's own context.
        progress: told of each tensor.

    Raises:
        ModelNotFoundError: there is nothing at `path`, or no model in that folder.
        ModelFormatError: a file is damaged or incomplete.
        UnsupportedModelError: architecture, tokenizer or tensor type that we do not run; named.
        ConfigError: `max_model_len` is longer than the model's context.
    """
    file = _model_file(path)
    parts = _open_gguf(file, data_dir) if file.is_file() else _open_folder(file, data_dir)
    length = parts.config.max_position if max_model_len is None else max_model_len
    digest = parts.weights.digest()
    ops.keep_packed_weights(data_dir / "packed" / digest.hex()[:32])
    return LoadedModel(
        name=display_name(path, digest),
        path=path,
        config=parts.config,
        tokenizer=parts.tokenizer,
        chat_template=parts.chat_template,
        decoder=Decoder(parts.config, parts.weights, ops, length, progress),
        digest=digest,
        weight_bytes=parts.weights.nbytes,
    )


def read_config(path: Path) -> ModelConfig:
    """The architecture alone, without reading weights.

    Raises:
        ModelNotFoundError: there is no model at `path`.
        ModelFormatError: a file is damaged.
        UnsupportedModelError: an architecture that we do not run.
    """
    file = _model_file(path)
    if file.is_dir():
        return ModelConfig.from_hf(read_json(file / CONFIG_FILE))
    return ModelConfig.from_gguf(read_header(file).metadata)


@dataclass(frozen=True, slots=True)
class _Parts:
    weights: WeightFile
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


def _model_file(path: Path) -> Path:
    """The GGUF file, or the folder where it holds safetensors."""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            if not start:
                raise ModelFormatError(f"{path} is empty. Fetch the model again")
            if start != MAGIC:
                raise ModelFormatError(
                    f"{path} is not a GGUF file. For safetensors give the folder that holds them"
                )
        return path
    if not path.is_dir():
        raise ModelNotFoundError(f"there is no file or folder {path}")
    if (path / CONFIG_FILE).is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelNotFoundError(
            f"{path} holds several GGUF files; name one: {', '.join(file.name for file in files)}"
        )
    raise ModelNotFoundError(
        f"{path} is not a model's folder: it has neither {CONFIG_FILE} nor a GGUF file"
    )


def _open_gguf(file: Path, data_dir: Path) -> _Parts:
    weights = GgufFile(file, data_dir)
    return _Parts(
        weights,
        ModelConfig.from_gguf(weights.metadata),
        tokenizer_from_gguf(weights.metadata),
        ChatTemplate.from_gguf(weights.metadata),
    )


def _open_folder(folder: Path, data_dir: Path) -> _Parts:
    return _Parts(
        SafetensorsFolder(folder, data_dir),
        ModelConfig.from_hf(read_json(folder / CONFIG_FILE)),
        Tokenizer.from_folder(folder),
        ChatTemplate.from_folder(folder),
    )
