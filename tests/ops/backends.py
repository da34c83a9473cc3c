"""The backends that can be tested on this machine: NumPy, and every instruction set of the native kernels."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, Literal

import pytest

from ostinato.errors import ConfigError
from ostinato.ops.base import OpsBackend
from ostinato.ops.reference import ReferenceBackend

KNOWN_ISAS = ("avx2", "avx512", "avx512_vnni", "neon")
THREADS = 2
NOT_BUILT = "the native extension is not built here (it needs a C++20 compiler)"

HAS_NATIVE = importlib.util.find_spec("ostinato._native") is not None
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason=NOT_BUILT)


@cache
def cpu_backend(isa: str, activation_dtype: Literal["int8", "fp32"] = "fp32") -> Any:
    """One backend of two threads for each instruction set and mode, kept for all tests."""
    from ostinato.ops.cpu import CpuBackend

    return CpuBackend(THREADS, isa, activation_dtype)


def _runs(isa: str) -> bool:
    try:
        cpu_backend(isa)
    except ConfigError:
        return False
    return True


ISAS = [isa for isa in KNOWN_ISAS if HAS_NATIVE and _runs(isa)]
"""What this CPU runs; empty without the extension."""

EXACT_BACKENDS = ["reference", *(f"cpu-{isa}" for isa in ISAS)]
"""Backends that multiply float32 activations."""

all_isas = pytest.mark.parametrize(
    "isa", ISAS or [pytest.param("none", marks=pytest.mark.skip(reason=NOT_BUILT))]
)
all_exact_backends = pytest.mark.parametrize("backend", EXACT_BACKENDS)


def exact_backend(name: str) -> OpsBackend:
    """A backend of `EXACT_BACKENDS`."""
    if name == "reference":
        return ReferenceBackend()
    backend: OpsBackend = cpu_backend(name.removeprefix("cpu-"))
    return backend


def head_unit(name: str) -> int:
    """What the backend's head sizes must be multiples of."""
    return 2 if name == "reference" else 16
