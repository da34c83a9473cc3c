"""Whether a waiting request may start now, and with how much of its prompt already computed.

Admission reserves blocks for *all* tokens that the request has. A prefill that was admitted therefore never
waits for a block, and two prefills never wait for each other. Only decodes grow beyond their reservation;
the watermark keeps some blocks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ostinato.cache.manager import KVCacheManager
from ostinato.cache.prefix_loader import PrefixLoader
from ostinato.cache.prefix_match import PrefixMatch
from ostinato.engine.loading import LoadQueue
from ostinato.engine.order import PrefixGate
from ostinato.engine.request import Request
from ostinato.engine.shared_prefix import SharedMatch, SharedPrefixes


class AdmissionResult(Enum):
    """What became of the attempt."""

    ADMITTED = "admitted"
    LOADING = "loading"
    """It has its blocks; some of its K/V is on the way from a lower tier."""
    HELD = "held"
    """Its prefix is being computed, loaded or prefetched: try the others, come back next step."""
    NO_ROOM = "no room"
    """Not enough blocks: wait until somebody leaves. Nobody overtakes, or large requests would starve."""


class Admission:
    """Gives a waiting request its blocks, or says why not.

    Args:
        manager: of the K/V cache.
        gate: decides who waits for a running prefill.
        watermark: share of the pool that stays available while anything runs.
        loader: of the lower tiers; None if there are none.
        loads: takes the requests for which something is loaded.
        shared: system prompts that are public among some tenants.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        gate: PrefixGate,
        watermark: float,
        loader: PrefixLoader | None,
        loads: LoadQueue,
        shared: SharedPrefixes,
    ) -> None:
        self._manager = manager
        self._gate = gate
        self._loader = loader
        self._loads = loads
        self._shared = shared
        self._keep_free = int(watermark * manager.num_blocks)

    def cached_tokens(self, request: Request) -> int:
        """Leading tokens of `request` that are on the device now.

        What lies below counts for nothing: it does not get lost while the request waits, as this may.
        """
        return self._lookup(request).num_tokens

    def try_admit(self, request: Request, running: Sequence[Request]) -> AdmissionResult:
        """Look the request's tokens up and reserve blocks for all of them.

        On ADMITTED the request has a block table, and `num_computed_tokens` says what was reused; at its
        first admission it also gets its `CacheReport`. On LOADING it has a block table and is in the load
        queue. Otherwise nothing has changed.
        """
        match = self._lookup(request)
        if self._gate.should_wait(request, match.num_tokens, self._loads):
            return AdmissionResult.HELD
        if self._loader is not None:
            return self._try_admit_with_tiers(request, running, self._loader, match)
        public = self._shared.match(request)
        if public is not None and public.num_tokens > match.num_tokens:
            return self._try_admit_public(request, running, match, public)
        if self._gate.should_wait(request, match.num_tokens, running):
            return AdmissionResult.HELD
        if not self._reserve(request, match, running):
            return AdmissionResult.NO_ROOM
        if request.report is None:
            request.report = match.report()
        return AdmissionResult.ADMITTED

    def _try_admit_with_tiers(
        self,
        request: Request,
        running: Sequence[Request],
        loader: PrefixLoader,
        match: PrefixMatch,
    ) -> AdmissionResult:
        plan = loader.plan(match, request.token_ids)
        public = self._shared.match(request)
        if public is not None and public.num_tokens > plan.num_tokens:
            return self._try_admit_public(request, running, match, public)
        if self._gate.should_wait(request, plan.num_tokens, running):
            return AdmissionResult.HELD
        if self._loads.must_wait(request, plan):
            return AdmissionResult.HELD
        load = loader.tiers.pin(plan.runs)
        if not self._reserve(request, plan.match, running):
            loader.tiers.unpin(load)
            return AdmissionResult.NO_ROOM
        loader.tiers.accept(plan.decision)
        self._loads.left(request)
        if plan.runs:
            self._loads.begin(request, plan, load)
            return AdmissionResult.LOADING
        if request.report is None:
            request.report = plan.report(None, self._manager.block_size)
        return AdmissionResult.ADMITTED

    def _try_admit_public(
        self,
        request: Request,
        running: Sequence[Request],
        match: PrefixMatch,
        public: SharedMatch,
    ) -> AdmissionResult:
        """A shared prefix reaches further than what the tenant has of its own."""
        if self._gate.should_wait(request, public.num_tokens, running):
            return AdmissionResult.HELD
        if not self._reserve(request, match, running):
            return AdmissionResult.NO_ROOM
        self._loads.left(request)
        self._shared.fill(request, public)
        if request.report is None:
            request.report = public.report(
                request.num_prompt_tokens, len(match.found.blocks), self._manager.block_size
            )
        return AdmissionResult.ADMITTED

    def _reserve(self, request: Request, match: PrefixMatch, running: Sequence[Request]) -> bool:
        """Give `request` blocks for all its tokens, those of `match` among them."""
        # An idle engine must take whatever fits the pool: no watermark.
        keep_free = self._keep_free if running or len(self._loads) else 0
        table = self._manager.allocate(match, request.num_tokens, keep_free=keep_free)
        if table is None:
            return False
        request.table = table
        request.num_computed_tokens = match.num_tokens
        return True

    def _lookup(self, request: Request) -> PrefixMatch:
        return self._manager.lookup(
            request.namespace, request.token_ids, request.hashes, request.tenant
        )
