"""What a decoder needs of a weight file, and what both kinds of file share.

Names are Hugging Face's (``model.layers.0.self_attn.q_proj.weight``) and rows are in Hugging Face order
(rotate-half RoPE) whatever the file holds; the differences end at this contract.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ostinato.errors import ModelFormatError
from ostinato.ops.base import Float32Array, WeightTensor

ELEMENT_TYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
"""How unquantised elements lie in a file, by encoding; BF16 as its bit patterns."""


class WeightFile(Protocol):
    """All tensors of one model. Reading is thread-safe."""

    def tensor(self, hf_name: str) -> WeightTensor:
        """The tensor under its Hugging Face name.

        Raises:
            ModelFormatError: if the file has no such tensor.
        """
        ...

    def __contains__(self, hf_name: str) -> bool: ...

    def digest(self) -> bytes:
        """32 bytes that name content and configuration: equal digests, equal answers."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        ...


def bf16_to_float32(bits: npt.NDArray[np.uint16]) -> Float32Array:
    """Widen bfloat16, given as its bit patterns, exactly: it is the upper half of a float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def missing_tensor(path: Path, hf_name: str, present: Iterable[str]) -> ModelFormatError:
    """The error for a tensor that a file should have but lacks."""
    near = difflib.get_close_matches(hf_name, list(present), n=1, cutoff=0.8)
    hint = f"; the nearest name in it is {near[0]!r}" if near else ""
    return ModelFormatError(
        f"{path} lacks the tensor {hf_name!r}{hint}. The file is incomplete, or its architecture "
        f"differs from what its configuration says: fetch the model again"
    )
