"""The machine's limits, measured in the run whose figures they judge."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import CLOCK
from benchmarks.peers.processes import usable_cores

_SOURCE = Path(__file__).with_name("limits.cpp")
_REPEATS = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """Peaks of all usable cores together, in 10⁹ a second; a multiply-add counts as two operations.

    Attributes:
        read: bytes from memory.
        fp32, int16, int8: operations on registers.
        source: how they were found.
    """

    read: float
    fp32: float
    int16: float
    int8: float
    source: str

    def best(self, other: Limits) -> Limits:
        """The higher of two measurements, one by one."""
        return Limits(
            read=max(self.read, other.read),
            fp32=max(self.fp32, other.fp32),
            int16=max(self.int16, other.int16),
            int8=max(self.int8, other.int8),
            source=self.source,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_limits() -> Limits:
    """With a compiled loop where there is a compiler for this machine, else with NumPy and rules of thumb."""
    try:
        return _compiled()
    except (OSError, subprocess.CalledProcessError, ValueError):
        return _estimated()


def _compiled() -> Limits:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise OSError("no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "limits")
        build = [compiler, "-O3", "-std=c++20", "-march=native", "-pthread"]
        subprocess.run([*build, str(_SOURCE), "-o", program], check=True, capture_output=True)
        command = [program, str(usable_cores())]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peaks = json.loads(output)
    if not all(peaks.values()):
        raise ValueError("no peaks for this kind of CPU")
    return Limits(**peaks, source="limits.cpp, best of 15")


def _estimated() -> Limits:
    fp32 = _gemm()
    return Limits(
        _numpy_read(), fp32, 2 * fp32, 2 * fp32, "NumPy; int16 and int8 taken as twice float32"
    )


def _gemm() -> float:
    a = np.random.default_rng(0).standard_normal((2048, 2048), dtype=np.float32)
    return 2e-9 * 2048**3 / min(_seconds(lambda: a @ a) for _ in range(_REPEATS))


def _numpy_read() -> float:
    cores = usable_cores()
    parts = [np.ones(64 << 20, dtype=np.int64) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        seconds = min(
            _seconds(lambda: list(pool.map(np.bitwise_or.reduce, parts))) for _ in range(_REPEATS)
        )
    return 1e-9 * sum(part.nbytes for part in parts) / seconds


def _seconds(work: Any) -> float:
    start = CLOCK.monotonic()
    work()
    return CLOCK.monotonic() - start
