"""TierCare: what the thread that drives an engine does for the tiers below the K/V pool.

A step settles transfers that have ended. What else is due, the driver does when nobody waits for it: it calls
`tend` once a step's tokens are on their way, and `wait` when every request waits for a transfer.
"""

from __future__ import annotations

from collections.abc import Callable

from ostinato.cache.tiers.hierarchy import HierarchyStats, TierHierarchy


class TierCare:
    """See the module's docstring.

    Args:
        tiers: None if nothing lies below the pool; then all of this does nothing.
    """

    def __init__(self, tiers: TierHierarchy | None) -> None:
        self._tiers = tiers

    def on_transfer_end(self, notify: Callable[[], None]) -> None:
        """Have `notify` called, from another thread, whenever a step could settle a transfer."""
        if self._tiers is not None:
            self._tiers.on_transfer_end(notify)

    def tend(self) -> None:
        """Start stores of what was used again, and keep what the tiers hold of it young."""
        if self._tiers is not None:
            self._tiers.tend()

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
