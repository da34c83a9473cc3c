"""Whether a waiting request may start now, and with how much of its prompt already computed.

Admission reserves blocks for *all* tokens that the request has. A prefill that was admitted therefore never
waits for a block, and two prefills never wait for each other. Only decodes grow beyond their reservation;
the watermark keeps some blocks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ostinato.cache.manager import KVCacheManager, PrefixMatch
from ostinato.engine.order import PrefixGate
from ostinato.engine.request import Request


class AdmissionResult(Enum):
    """What became of the attempt."""

    ADMITTED = "admitted"
    HELD = "held"
    """A running request is computing its prefix: try the others, come back next step."""
    NO_ROOM = "no room"
    """Not enough blocks: wait until somebody leaves. Nobody overtakes, or large requests would starve."""


class Admission:
    """Gives a waiting request its blocks, or says why not.

    Args:
        manager: of the K/V cache.
        gate: decides who waits for a running prefill.
        watermark: share of the pool that stays available while anything runs.
    """

    def __init__(self, manager: KVCacheManager, gate: PrefixGate, watermark: float) -> None:
        self._manager = manager
        self._gate = gate
        self._keep_free = int(watermark * manager.num_blocks)

    def cached_tokens(self, request: Request) -> int:
        """Leading tokens of `request` that are in the cache now."""
        return self._lookup(request).num_tokens

    def try_admit(self, request: Request, running: Sequence[Request]) -> AdmissionResult:
        """Look the request's tokens up and reserve blocks for all of them.

        On ADMITTED the request has a block table, and `num_computed_tokens` says what was reused; at its
        first admission it also gets its `CacheReport`. Otherwise nothing has changed.
        """
        match = self._lookup(request)
        if self._gate.should_wait(request, match.num_tokens, running):
            return AdmissionResult.HELD
        # An idle engine must take whatever fits the pool: no watermark.
        keep_free = self._keep_free if running else 0
        table = self._manager.allocate(match, request.num_tokens, keep_free=keep_free)
        if table is None:
            return AdmissionResult.NO_ROOM
        request.table = table
        request.num_computed_tokens = match.num_tokens
        if request.report is None:
            request.report = match.report()
        return AdmissionResult.ADMITTED

    def _lookup(self, request: Request) -> PrefixMatch:
        return self._manager.lookup(request.namespace, request.token_ids, request.hashes)
