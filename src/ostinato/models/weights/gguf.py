"""A GGUF file as a `WeightFile`: memory-mapped, quantised tensors left as they are until asked for.

What differs from a Hugging Face checkpoint, and is undone here:

* names (``blk.0.attn_q.weight`` is ``model.layers.0.self_attn.q_proj.weight``);
* rows of Q and K of Llama-type architectures, which the converter interleaves for its own form of RoPE.
  Rows are moved whole, so this works on quantised bytes as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ostinato.errors import ModelFormatError, UnsupportedModelError
from ostinato.models.weights.base import ELEMENT_TYPES, bf16_to_float32, missing_tensor
from ostinato.models.weights.dequantize import dequantize
from ostinato.models.weights.files import DigestMemo
from ostinato.models.weights.gguf_format import GgufHeader, TensorInfo, read_header
from ostinato.ops.base import Float32Array

INTERLEAVED_ARCHITECTURES = frozenset({"llama", "mistral"})
"""Architectures whose Q and K rows the GGUF converter permutes."""

_ROOT_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def hf_name(gguf_name: str) -> str:
    """The Hugging Face name of a tensor; names without a counterpart (``rope_freqs.weight``) stay."""
    if gguf_name in _ROOT_NAMES:
        return _ROOT_NAMES[gguf_name]
    match = _LAYER_TENSOR.fullmatch(gguf_name)
    if match and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    return gguf_name


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """A tensor in a mapped GGUF file; implements `ops.base.WeightTensor`.

    Attributes:
        name: name in the file.
        shape: logical shape.
        encoding: GGML type name: ``F32``, ``F16``, ``BF16``, ``Q4_1``, ….
        row_order: for each row in Hugging Face order, its row in the file; None where they agree.
    """

    name: str
    shape: tuple[int, ...]
    encoding: str
    type_id: int
    row_order: npt.NDArray[np.intp] | None
    _stored: npt.NDArray[np.uint8]

    def raw(self) -> npt.NDArray[np.generic]:
        """Stored bytes ``(rows, bytes a row)``, or the elements of `shape`; BF16 as uint16 bit patterns.

        A read-only view of the file unless rows had to be moved.
        """
        rows: npt.NDArray[np.generic]
        if self.encoding in ELEMENT_TYPES:
            rows = self._stored.view(ELEMENT_TYPES[self.encoding]).reshape(self.shape)
        else:
            rows = self._stored.reshape(int(np.prod(self.shape[:-1])), -1)
        return rows if self.row_order is None else rows[self.row_order]

    def to_float32(self) -> Float32Array:
        """The values, of `shape`. Quantised types go through `dequantize`.

        Raises:
            UnsupportedModelError: if the type cannot be dequantised.
        """
        raw = self.raw()
        if self.encoding == "BF16":
            return bf16_to_float32(raw.astype(np.uint16, copy=False))
        if self.encoding in ELEMENT_TYPES:
            return raw.astype(np.float32, copy=False)
        try:
            return dequantize(raw.view(np.uint8), self.type_id, self.shape)
        except NotImplementedError as error:  # ok: what `gguf` raises for a type it cannot decode
            raise UnsupportedModelError(
                f"tensor {self.name!r} is stored as {self.encoding}, which cannot be dequantised here: "
                "take the model in another quantisation"
            ) from error


class GgufFile:
    """One GGUF file. Implements `WeightFile`.

    Attributes:
        path: the file.
        metadata: as `GgufHeader` has it.
    """

    def __init__(self, path: Path, data_dir: Path) -> None:
        """Read the header and map the file.

        Raises:
            ModelFormatError: not a GGUF file, damaged, or shorter than its header says.
            UnsupportedModelError: one file of a split set, or a tensor of a type without a name.
            OSError: the file cannot be read.
        """
        self.path = path
        self._digests = DigestMemo(data_dir)
        header = read_header(path)
        self.metadata = header.metadata
        if self.metadata.get("split.count", 1) > 1:
            raise UnsupportedModelError(
                f"{path} is one of {self.metadata['split.count']} split files: "
                "join them with `llama-gguf-split --merge`"
            )
        self._tensors = self._map(header)

    @property
    def architecture(self) -> str:
        """``general.architecture``, e.g. ``llama``."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def nbytes(self) -> int:
        return sum(tensor._stored.nbytes for tensor in self._tensors.values())

    def __contains__(self, hf_name: str) -> bool:
        return hf_name in self._tensors

    def tensor(self, hf_name: str) -> GgufTensor:
        try:
            return self._tensors[hf_name]
        except KeyError:
            raise missing_tensor(self.path, hf_name, self._tensors) from None

    def digest(self) -> bytes:
        """SHA-256 of the file, computed once for as long as the file does not change."""
        return self._digests.sha256(self.path)

    def _map(self, header: GgufHeader) -> dict[str, GgufTensor]:
        if not header.tensors:
            raise ModelFormatError(f"{self.path} holds no tensors: it is a vocabulary, not a model")
        mapped = np.memmap(self.path, dtype=np.uint8, mode="r")
        return {hf_name(info.name): self._tensor(info, mapped) for info in header.tensors}

    def _tensor(self, info: TensorInfo, mapped: npt.NDArray[np.uint8]) -> GgufTensor:
        encoding, num_bytes = _stored_form(self.path, info)
        end = info.offset + num_bytes
        if end > mapped.shape[0]:
            raise ModelFormatError(
                f"{self.path} is truncated: tensor {info.name!r} should end at byte {end}, the file has "
                f"{mapped.shape[0]}. Fetch the model again"
            )
        return GgufTensor(
            name=info.name,
            shape=info.shape,
            encoding=encoding,
            type_id=info.type_id,
            row_order=self._row_order(info),
            _stored=mapped[info.offset : end],
        )

    def _row_order(self, info: TensorInfo) -> npt.NDArray[np.intp] | None:
        match = _LAYER_TENSOR.fullmatch(info.name)
        if self.architecture not in INTERLEAVED_ARCHITECTURES or match is None:
            return None
        if match[2] == "attn_q":
            heads = self._head_count("head_count")
        elif match[2] == "attn_k":
            heads = self._head_count("head_count_kv", "head_count")
        else:
            return None
        rows = info.shape[0]
        if rows % (2 * heads):
            raise ModelFormatError(
                f"{self.path}: {info.name!r} has {rows} rows, which {heads} heads do not divide into "
                "pairs. The file is damaged: fetch the model again"
            )
        return rotate_half_order(rows, heads)

    def _head_count(self, *keys: str) -> int:
        for key in keys:
            value = self.metadata.get(f"{self.architecture}.attention.{key}")
            if isinstance(value, int) and value > 0:
                return value
            if value is not None:
                raise UnsupportedModelError(
                    f"{self.path}: attention.{key} differs between layers, which is not supported"
                )
        raise ModelFormatError(f"{self.path} lacks {self.architecture}.attention.{keys[0]}")


def rotate_half_order(rows: int, heads: int) -> npt.NDArray[np.intp]:
    """For each row in rotate-half order, its row in interleaved order.

    Inside a head of d rows, rotate-half order pairs row i with row i + d/2; interleaved order stores such a
    pair in rows 2i and 2i + 1.
    """
    pairs = np.arange(rows, dtype=np.intp).reshape(heads, rows // heads // 2, 2)
    return pairs.swapaxes(1, 2).reshape(rows)


def _stored_form(path: Path, info: TensorInfo) -> tuple[str, int]:
    """Type name and stored bytes of a tensor."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        encoding = GGMLQuantizationType(info.type_id)
    except ValueError:
        raise UnsupportedModelError(
            f"{path}: tensor {info.name!r} has the unknown GGML type {info.type_id}; "
            "a newer `gguf` package may know it"
        ) from None
    block_elements, block_bytes = GGML_QUANT_SIZES[encoding]
    row_elements = info.shape[-1] if info.shape else 1
    if row_elements % block_elements:
        raise ModelFormatError(
            f"{path} is damaged: a row of {info.name!r} has {row_elements} elements, not a multiple of "
            f"{encoding.name}'s {block_elements}. Fetch the model again"
        )
    num_elements = 1
    for dimension in info.shape:  # Python's integers: a damaged header must not overflow
        num_elements *= dimension
    return encoding.name, num_elements // block_elements * block_bytes
