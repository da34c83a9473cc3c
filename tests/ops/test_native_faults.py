"""Guards the process: memory or threads that cannot be had, two callers at once and rows of which nothing can
be drawn end in an error or in the right result, never in a crash.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

from ostinato.errors import ConfigError
from tests.ops.backends import ISAS, THREADS, needs_native

pytestmark = needs_native

PREAMBLE = """
import resource
from pathlib import Path
import numpy as np
from ostinato import _native

def leave(mebibytes):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (mebibytes << 20),) * 2)
"""

only_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits memory through /proc")


def run(code: str) -> str:
    """What a process of its own prints: a crash must not end the tests."""
    program = PREAMBLE + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@only_linux
def test_a_runtime_still_works_after_memory_ran_out() -> None:
    assert (
        run("""
        runtime, matrix = _native.Runtime(1, exact=True), _native.PackedMatrix("fp32", 16, 64)
        matrix.put("F32", np.ones((16, 64), np.float32).view(np.uint8), np.arange(16, dtype=np.int32))
        few, few_out = np.ones((4, 64), np.float32), np.zeros((4, 16), np.float32)
        many, many_out = np.ones((1 << 20, 64), np.float32), np.zeros((1 << 20, 16), np.float32)
        runtime.linear(matrix, few, few_out)
        leave(32)
        try:
            runtime.linear(matrix, many, many_out)
        except MemoryError:
            print("refused")
        few_out[...] = 0
        runtime.linear(matrix, few, few_out)
        print(few_out.min(), few_out.max())
        """)
        == "refused\n64.0 64.0"
    )


@only_linux
def test_memory_that_runs_out_on_a_worker_is_the_callers_error() -> None:
    assert run("""
        runtime, rows = _native.Runtime(2), 8
        logits, ids = np.zeros((rows, 1 << 20), np.float32), np.zeros(rows, np.int32)
        leave(16)
        one = np.ones(rows, np.float32)
        draw = (logits, np.arange(rows, dtype=np.int32), one, 0 * ids, 0 * one)
        try:
            runtime.draw(*draw, np.full(rows, 0.99), np.full(rows, 0.5), ids)
        except MemoryError:
            print("refused")
        runtime.draw(*draw, np.ones(rows), np.full(rows, 0.5), ids)
        print(*ids)
        """) == "refused\n" + " ".join(["524288"] * 8)


def test_more_threads_than_a_machine_has_are_refused() -> None:
    from ostinato.ops.cpu import CpuBackend

    for threads in (-1, 1025, 10_000_000):
        with pytest.raises(ConfigError, match="between 0, for all CPUs, and 1024"):
            CpuBackend(threads)


@only_linux
def test_threads_that_the_system_does_not_give_are_an_error() -> None:
    assert (
        run("""
        from ostinato.errors import ConfigError
        from ostinato.ops.cpu import CpuBackend
        leave(64)
        try:
            CpuBackend(1000)
        except ConfigError as error:
            print(str(error).split(":")[0])
        print(CpuBackend(1).info.facts["threads"])
        """)
        == "The native kernels cannot run here\n1"
    )


def test_two_threads_that_share_a_runtime_take_turns() -> None:
    from ostinato import _native

    runtime, matrix = _native.Runtime(THREADS, ISAS[-1], True), _native.PackedMatrix("fp32", 96, 64)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((96, 64)).astype(np.float32)
    matrix.put("F32", weights.view(np.uint8), np.arange(96, dtype=np.int32))
    wrong: list[int] = []

    def multiply(tokens: int) -> None:
        x = np.full((tokens, 64), tokens, np.float32)
        expected, out = x @ weights.T, np.zeros((tokens, 96), np.float32)
        for _ in range(200):
            runtime.linear(matrix, x, out)
            if not np.allclose(out, expected, rtol=1e-3, atol=1e-2):
                wrong.append(tokens)

    threads = [threading.Thread(target=multiply, args=(tokens,)) for tokens in (33, 70, 150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_p": 0.5},
        {"min_p": 0.5},
        {"min_p": 2.0, "top_p": 0.5},
        {"top_k": 3},
        {"top_k": 500},
    ],
)
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_a_row_of_which_nothing_can_be_drawn_is_a_value_error(
    value: float, filters: dict[str, Any]
) -> None:
    from ostinato import _native

    def one(name: str, default: float, dtype: Any) -> np.ndarray:
        return np.array([filters.get(name, default)], dtype)

    arguments = (
        np.zeros(1, np.int32),
        one("temperature", 1.0, np.float32),
        one("top_k", 0, np.int32),
        one("min_p", 0.0, np.float32),
        one("top_p", 1.0, np.float64),
        np.array([0.5]),
        np.zeros(1, np.int32),
    )
    with pytest.raises(ValueError, match="no token can be drawn"):
        _native.Runtime(1).draw(np.full((1, 1000), value, np.float32), *arguments)


def test_more_query_heads_of_one_head_than_an_item_holds_are_refused() -> None:
    from ostinato import _native

    _native.DecoderShape(16, 192, 1, 16, 1e-5, 1.0)
    with pytest.raises(ValueError, match="share a K/V head"):
        _native.DecoderShape(16, 193, 1, 16, 1e-5, 1.0)
