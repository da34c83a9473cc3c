"""Metering: adds up one request from its deltas and tells its meter, once, what it came to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ostinato.cache.report import CacheReport
from ostinato.engine.outputs import FinishReason, OutputDelta, RequestEnd, RequestMeter

_ORDER = tuple(FinishReason)
"""STOP, LENGTH, ABORT, ERROR."""


class Metering:
    """Begun by the caller, then the engine's thread owns it.

    Args:
        meter: whom to tell; None: nobody wants to know, and nothing is added up.
    """

    def __init__(self, meter: RequestMeter | None) -> None:
        self._meter = meter
        self._report: CacheReport | None = None
        self._outputs: dict[int, int] = {}
        self._reason: FinishReason | None = None

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Hand the request over within this; if that fails, it has ended at once."""
        if self._meter is None:
            yield
            return
        self._meter.begin()
        try:
            yield
        except BaseException:
            self.end()
            raise

    def add(self, delta: OutputDelta) -> None:
        """Take note of a delta, whether it will be delivered or not."""
        if self._meter is None:
            return
        self._report = delta.report
        self._outputs[delta.index] = delta.num_output_tokens
        if delta.finish_reason is not None:
            self._note(delta.finish_reason)

    def fail(self, report: CacheReport | None) -> None:
        """Computing the request failed; no more deltas come."""
        self._report = report
        self._note(FinishReason.ERROR)

    def end(self) -> None:
        """Tell the meter. Calling it again does nothing."""
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.end(RequestEnd(self._report, sum(self._outputs.values()), self._reason))

    def _note(self, reason: FinishReason) -> None:
        if self._reason is None or _ORDER.index(reason) > _ORDER.index(self._reason):
            self._reason = reason
