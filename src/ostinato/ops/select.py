"""Choose the kernels."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ostinato.errors import UnsupportedKernelsError
from ostinato.ops.base import OpsBackend
from ostinato.ops.reference import ReferenceBackend

_log = logging.getLogger(__name__)

BackendName: TypeAlias = Literal["auto", "cpu", "reference"]


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What a backend may be told; the reference backend has nothing to choose.

    Attributes:
        threads: workers; 0 takes the CPUs that the process may really use.
        weight_dtype: what matrices are packed to; ``auto`` keeps the file's own precision.
        activation_dtype: ``int8`` rounds activations before products with integer weights, ``fp32`` is exact.
    """

    threads: int = 0
    weight_dtype: Literal["auto", "fp32", "fp16", "int8", "int4"] = "auto"
    activation_dtype: Literal["int8", "fp32"] = "int8"


def select_backend(name: BackendName, options: KernelOptions | None = None) -> OpsBackend:
    """The backend of this name; ``auto`` is the native one, or NumPy with a warning where that cannot run.

    Raises:
        UnsupportedKernelsError: ``cpu`` was asked for and cannot run here.
    """
    if name == "reference":
        return ReferenceBackend()
    try:
        return _native_backend(options or KernelOptions())
    except UnsupportedKernelsError as error:
        return fallback_backend(name, error)


def fallback_backend(name: BackendName, error: UnsupportedKernelsError) -> OpsBackend:
    """NumPy with a warning, in place of what ``auto`` had chosen.

    Raises:
        UnsupportedKernelsError: `error`, where a backend was asked for by name.
    """
    if name != "auto":
        raise error
    _log.warning("%s The NumPy backend runs instead, some ten times slower.", error)
    return ReferenceBackend()


def _native_backend(options: KernelOptions) -> OpsBackend:
    try:
        from ostinato.ops.cpu import CpuBackend
    except ImportError as error:
        raise UnsupportedKernelsError(
            f"The native kernels are not installed ({error}): install a C++20 compiler (GCC 11 or "
            "Clang 14 and newer) and install Ostinato again."
        ) from error
    return CpuBackend(
        threads=options.threads,
        activation_dtype=options.activation_dtype,
        weight_dtype=options.weight_dtype,
    )
