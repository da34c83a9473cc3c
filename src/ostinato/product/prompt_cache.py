"""PromptCache: one server's house rules, book of entries and secret, behind three calls a request makes.

plan ──► (the engine runs) ──► settle, at the first piece of the answer ──► finish, at its end
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.cache.report import CacheReport
from ostinato.cache.types import TokenArray
from ostinato.clock import Clock
from ostinato.product.diagnosis import FingerprintBook, Fingerprinter
from ostinato.product.entries import CacheScope, EntryBook, PrefixDigests
from ostinato.product.plan import CachePlan, plan_request
from ostinato.product.rules import LOCAL, HouseRules
from ostinato.product.segments import Breakpoint, Segment
from ostinato.product.settle import Split, record, record_output, settle


@dataclass(frozen=True, slots=True)
class CachedRequest:
    """A request that has its plan. Made by `PromptCache.plan`."""

    scope: CacheScope
    plan: CachePlan


class PromptCache:
    """See the module's docstring. Not thread-safe: the event loop owns it.

    Args:
        clock: of lifetimes.
        secret: of the server; keys of entries are made under it.
        rules: of the house. What was written under others is never read: lifetimes and breakpoints differ.
        granularity: tokens a block of the engine's cache.
        book: of entries; None: an empty one, which ends with the process.
    """

    def __init__(
        self,
        clock: Clock,
        secret: bytes,
        rules: HouseRules = LOCAL,
        granularity: int = 1,
        book: EntryBook | None = None,
    ) -> None:
        self.rules = rules
        self.book = EntryBook(clock) if book is None else book
        self.fingerprinter = Fingerprinter(secret)
        self.fingerprints = FingerprintBook(clock)
        self._clock = clock
        self._entry_secret = hmac.digest(secret, b"entries " + rules.name.encode(), hashlib.sha256)
        self._granularity = granularity

    def plan(
        self,
        scope: CacheScope,
        token_ids: TokenArray,
        segments: Sequence[Segment] = (),
        boundaries: Sequence[int | None] = (),
        implicit: Breakpoint | None = None,
    ) -> CachedRequest:
        """What a request that begins now may read and will write; see `plan.plan_request`."""
        plan = plan_request(
            self.rules,
            segments,
            boundaries,
            len(token_ids),
            book=self.book,
            digests=PrefixDigests(self._entry_secret, scope, token_ids),
            started=self._clock.time(),
            implicit=implicit,
        )
        return CachedRequest(scope, plan)

    def split(self, request: CachedRequest, report: CacheReport) -> Split:
        """How a request is billed. Changes nothing; from any thread."""
        return settle(request.plan, report, self._granularity)

    def settle(self, request: CachedRequest, report: CacheReport) -> Split:
        """The first piece of the answer is there: bill it, and let others find its entries. Once a request."""
        split = self.split(request, report)
        record(request.plan, report, self.book, request.scope.tenant, self._granularity)
        return split

    def finish(self, request: CachedRequest, output_token_ids: TokenArray) -> None:
        """The answer has ended. Only rules that store answers do anything."""
        record_output(request.plan, output_token_ids, self.book, request.scope.tenant)
