"""Counts what goes wrong with a tier's bytes. Each reason is logged once: a full disk must not fill the log."""

from __future__ import annotations

import errno
import logging
import threading
from collections import Counter
from collections.abc import Mapping

from ostinato.cache.tiers.base import TierFailure
from ostinato.cache.types import Tier

_log = logging.getLogger(__name__)

_BY_ERRNO = {
    errno.ENOSPC: TierFailure.NO_SPACE,
    errno.EDQUOT: TierFailure.NO_SPACE,
    errno.EFBIG: TierFailure.NO_SPACE,
    errno.EROFS: TierFailure.READ_ONLY,
    errno.EACCES: TierFailure.READ_ONLY,
    errno.EPERM: TierFailure.READ_ONLY,
    errno.ENOENT: TierFailure.VANISHED,
    errno.ESTALE: TierFailure.VANISHED,
}


def failure_of(error: OSError) -> TierFailure:
    """The reason that an error of the operating system stands for."""
    return _BY_ERRNO.get(error.errno or 0, TierFailure.IO_ERROR)


class TierFailures:
    """Failures by reason, counted from any thread.

    Args:
        tier: named in the log.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._lock = threading.Lock()
        self._counts: Counter[TierFailure] = Counter()
        self._logged: set[TierFailure] = set()

    def count(self, reason: TierFailure, detail: object, num_blocks: int = 1) -> None:
        """`num_blocks`, perhaps none, were lost for `reason`. The first time, `detail` is logged."""
        with self._lock:
            first = reason not in self._logged
            self._logged.add(reason)
            self._counts[reason] += num_blocks
        if first:
            _log.warning(
                "%s tier: %s: %s. What is affected is computed again; further failures of this kind "
                "are counted and not logged.",
                self._tier,
                reason.value.replace("_", " "),
                detail,
            )

    def count_error(self, error: OSError) -> None:
        """One block was lost to `error`."""
        self.count(failure_of(error), error)

    def counts(self) -> Mapping[TierFailure, int]:
        """A snapshot; only reasons that occurred."""
        with self._lock:
            return {reason: count for reason, count in self._counts.items() if count}
