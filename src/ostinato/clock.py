"""Time as a dependency. Nobody else in the package calls ``time.*``."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that depends on time is handed."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back. For intervals and ages."""
        ...

    def time(self) -> float:
        """Seconds since the Unix epoch. For timestamps that leave the process."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.perf_counter()

    def time(self) -> float:
        return time.time()


class ManualClock:
    """A clock that moves only when told to; tests never sleep."""

    def __init__(self, start: float = 1_000.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        return self._now

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward.

        Raises:
            ValueError: if `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds}")
        self._now += seconds
