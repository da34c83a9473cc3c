"""TierCare: what the thread that drives an engine does for the tiers below the K/V pool.

A step settles transfers that have ended. What else is due, the driver does when nobody waits for it: it calls
`tend` once a step's tokens are on their way, `tend_if_due` where the next request may be, which would have to
wait for it, and `wait` when every request waits for a transfer.
"""

from __future__ import annotations

from collections.abc import Callable

from ostinato.cache.tiers.hierarchy import HierarchyStats, TierHierarchy
from ostinato.clock import Clock

MOST_SECONDS_UNTENDED = 0.5
"""Within a second a hit's renewal of a promise is to be on disk, however fast requests follow each other."""


class TierCare:
    """See the module's docstring.

    Args:
        tiers: None if nothing lies below the pool; then all of this does nothing.
        clock: tells when they were tended last.
    """

    def __init__(self, tiers: TierHierarchy | None, clock: Clock) -> None:
        self._tiers = tiers
        self._clock = clock
        self._tended_at = clock.monotonic()

    def on_transfer_end(self, notify: Callable[[], None]) -> None:
        """Have `notify` called, from another thread, whenever a step could settle a transfer."""
        if self._tiers is not None:
            self._tiers.on_transfer_end(notify)

    def tend(self) -> None:
        """Start stores of what was used again, and keep what the tiers hold of it young."""
        self._tended_at = self._clock.monotonic()
        if self._tiers is not None:
            self._tiers.tend()

    def tend_if_due(self) -> None:
        """`tend` unless that was done less than `MOST_SECONDS_UNTENDED` ago."""
        if self._clock.monotonic() - self._tended_at >= MOST_SECONDS_UNTENDED:
            self.tend()

    def wait(self, timeout: float) -> None:
        """Sleep until a transfer ends, at most `timeout` seconds. For a caller with nothing else to do."""
        if self._tiers is not None:
            self._tiers.wait(timeout)

    def stats(self) -> HierarchyStats | None:
        """A snapshot."""
        return None if self._tiers is None else self._tiers.stats()

    def close(self) -> None:
        """Write what has no copy in a lasting tier. Idempotent."""
        if self._tiers is not None:
            self._tiers.close()
