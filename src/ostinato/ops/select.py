"""Choose the kernels."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ostinato.ops.base import OpsBackend
from ostinato.ops.reference import ReferenceBackend

BackendName: TypeAlias = Literal["auto", "reference"]


def select_backend(name: BackendName) -> OpsBackend:
    """The backend of this name; ``auto`` is the fastest that works on this machine."""
    match name:
        case "auto" | "reference":
            return ReferenceBackend()
