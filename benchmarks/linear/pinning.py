"""One thread a CPU: in a busy machine the system leaves two threads of a pool on one CPU for seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TASKS = Path("/proc/self/task")
PINS = _TASKS.is_dir() and hasattr(os, "sched_setaffinity")
"""Elsewhere than on Linux nothing is pinned."""


def available_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if PINS else []


@contextmanager
def caller_pinned(cpus: list[int]) -> Iterator[None]:
    """The calling thread runs on the first of `cpus`, and afterwards where it might before."""
    if not PINS:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def workers_pinned(cpus: list[int]) -> Iterator[None]:
    """Threads that are started inside run on the second of `cpus`, the third …, then on the first again."""
    before = _threads()
    yield
    for index, thread in enumerate(sorted(_threads() - before), start=1):
        os.sched_setaffinity(thread, {cpus[index % len(cpus)]})


def _threads() -> set[int]:
    return {int(task.name) for task in _TASKS.iterdir()} if PINS else set()
