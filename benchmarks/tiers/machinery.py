"""What the parts share: emptying levels, dropping the page cache, plain copies and reads to compare with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.engines import CLOCK
from ostinato.cache.tiers.cost import RateMeter
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.types import Tier
from ostinato.engine.core import EngineCore

READ_CHUNK = 8 * 2**20
START_SECONDS = 10.0
CPU_CACHE_BYTES = 256 * 2**20
"""More than any cache holds."""


def tiers_of(core: EngineCore) -> TierHierarchy:
    """What lies below the pool of `core`."""
    tiers = core._manager.tiers
    assert tiers is not None
    return tiers


def empty_device(core: EngineCore) -> None:
    """Evict everything, so that it is written back, and let all transfers end."""
    assert core._manager.reset()
    settle(core)


def settle(core: EngineCore) -> None:
    """Let all transfers end."""
    core.step()
    while tiers_of(core).num_in_flight:
        core.tiers.wait(1.0)
        core.step()


def fresh_meter(core: EngineCore, tier: Tier) -> RateMeter:
    """Measure the loads from `tier` anew: bytes a second between the first block's start and the last's end."""
    meter = RateMeter(float("inf"))
    tiers_of(core)._costs.load[tier] = _Optimist(meter)
    return meter


class _Optimist(RateMeter):
    """Believes that loading is fast, so that it is always chosen; passes on what is measured."""

    def __init__(self, meter: RateMeter) -> None:
        super().__init__(1.0)
        self._meter = meter

    @property
    def rate(self) -> float:
        return 1e12

    def observe(self, units: float, seconds: float) -> None:
        self._meter.observe(units, seconds)


def drop_page_cache(folder: Path) -> bool:
    """Write every file of `folder` to the device and forget its pages; False where the system cannot."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    return True


def copy_rate(num_bytes: int) -> float:
    """Bytes a second of one plain copy between two buffers whose pages exist and that no CPU cache holds;
    the best of five."""
    source = np.ones(num_bytes, dtype=np.uint8)
    target = np.ones(num_bytes, dtype=np.uint8)
    others = np.ones(CPU_CACHE_BYTES, dtype=np.uint8)
    best = 0.0
    for _ in range(5):
        others += 1
        start = CLOCK.monotonic()
        np.copyto(target, source)
        best = max(best, num_bytes / (CLOCK.monotonic() - start))
    return best


def read_rate(path: Path, num_bytes: int) -> float:
    """Bytes a second of reading `num_bytes` of a file from its start, in large pieces, one after the other."""
    buffer = memoryview(bytearray(READ_CHUNK))
    buffer[:] = bytes(READ_CHUNK)
    start, left = CLOCK.monotonic(), num_bytes
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while left > 0 and (count := os.readv(descriptor, [buffer[: min(left, READ_CHUNK)]])):
            left -= count
    finally:
        os.close(descriptor)
    return (num_bytes - left) / (CLOCK.monotonic() - start)


def block_file(folder: Path) -> Path:
    """The file that holds the blocks of the one model that was served over `folder`."""
    [path] = folder.glob("*/blocks")
    return path


@contextmanager
def redis_server(folder: Path) -> Iterator[str | None]:
    """The URL of a Redis server that keeps nothing; None where there is no such program."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        program,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _await_port(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def _await_port(port: int) -> None:
    deadline = CLOCK.monotonic() + START_SECONDS
    while CLOCK.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise RuntimeError("the Redis server did not start")
