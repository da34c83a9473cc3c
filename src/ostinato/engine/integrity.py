"""What happens when an invariant of the cache turns out broken: tests raise, production counts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ostinato.errors import CacheIntegrityError

_log = logging.getLogger(__name__)


class IntegrityPolicy(Protocol):
    """Runs a check and decides what a violation means.

    Attributes:
        errors_total: violations seen so far.
    """

    errors_total: int

    def run(self, check: Callable[[], None]) -> None: ...


class RaiseViolations:
    """Stop at once."""

    def __init__(self) -> None:
        self.errors_total = 0

    def run(self, check: Callable[[], None]) -> None:
        """Run `check`.

        Raises:
            CacheIntegrityError: if an invariant is broken.
        """
        try:
            check()
        except CacheIntegrityError:
            self.errors_total += 1
            raise


class CountViolations:
    """Log, count and go on: the number is exported as a metric."""

    def __init__(self) -> None:
        self.errors_total = 0

    def run(self, check: Callable[[], None]) -> None:
        """Run `check`; never raises `CacheIntegrityError`."""
        try:
            check()
        except CacheIntegrityError:
            self.errors_total += 1
            _log.exception("an invariant of the cache is broken")
