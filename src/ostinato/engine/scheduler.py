"""Scheduler: who computes how many tokens in the next step. The only owner of requests and their blocks.

A step hands out a budget of tokens, first to running requests in the order in which they were admitted, then
to waiting ones. Prefill, chunked prefill, decode and resumption are one rule: a request gets what it is
missing, as far as the budget reaches. Every running request gets at least one token in each step. A prefill
gets at most `long_prefill_tokens`, so that a short request need not wait for the end of a long one; what
nobody else wants then goes to the prefills after all.

When no block is left for a running request, the newest running one is preempted: its blocks are given back
but stay findable, and it waits at the front. The oldest is never preempted while it has company, and alone
it fits (`EngineLimits.validate`), so the oldest always progresses and everything ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ostinato.cache.block_table import BlockTable
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.types import TenantId
from ostinato.clock import Clock
from ostinato.config import SchedulerConfig
from ostinato.engine.admission import Admission, AdmissionResult
from ostinato.engine.order import (
    MAX_LOOKUPS,
    Candidate,
    PrefixGate,
    SortKey,
    WaitingOrder,
    by_turns,
)
from ostinato.engine.request import Request, RequestStatus
from ostinato.errors import CacheIntegrityError


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request's part in a step: its tokens ``[start, end)``."""

    request: Request
    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.start

    @property
    def wants_logits(self) -> bool:
        """The last token is computed in this step, so the next one can be sampled."""
        return self.end == self.request.num_tokens


@dataclass(slots=True)
class StepPlan:
    """One step under construction.

    Attributes:
        budget: tokens that may still be handed out.
        scheduled: who computes what; each request at most once.
        preempted: who gave its blocks up to make this step possible.
    """

    budget: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def schedule(self, request: Request, num_tokens: int) -> None:
        """Hand `num_tokens` of the budget to `request`."""
        start = request.num_computed_tokens
        self.scheduled.append(ScheduledRequest(request, start, start + num_tokens))
        self.budget -= num_tokens

    def spend_rest(self) -> None:
        """Hand what is left of the budget to those who miss more, in the order of `scheduled`.

        They are prefills, and a prefill's blocks are reserved since its admission.
        """
        for place, part in enumerate(self.scheduled):
            more = min(part.request.num_tokens - part.end, self.budget)
            if more:
                self.scheduled[place] = replace(part, end=part.end + more)
                self.budget -= more

    @property
    def sampling(self) -> Iterator[Request]:
        """Requests that get a token after this step, in the order of their logits rows."""
        return (part.request for part in self.scheduled if part.wants_logits)


@dataclass(slots=True)
class SchedulerCounters:
    """Totals since the start, in tokens unless the name says otherwise; see `EngineStats`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    resumed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0


class Scheduler:
    """See the module's docstring.

    Args:
        manager: of the K/V cache; nobody else calls it.
        config: budget, most sequences, watermark.
        clock: for the age of waiting requests.
        order: which waiting request is tried first.
        gate: which waiting request lets a running one compute their common prefix.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        config: SchedulerConfig,
        clock: Clock,
        order: WaitingOrder,
        gate: PrefixGate,
    ) -> None:
        self._manager = manager
        self._config = config
        self._long_prefill = config.long_prefill_tokens or max(
            config.max_num_batched_tokens // 2, 1
        )
        self._clock = clock
        self._order = order
        self._admission = Admission(manager, gate, config.watermark)
        self._running: list[Request] = []
        self._waiting: list[Request] = []
        self._blocked_on_memory = False
        self.counters = SchedulerCounters()

    @property
    def running(self) -> Sequence[Request]:
        """Oldest admission first."""
        return self._running

    @property
    def waiting(self) -> Sequence[Request]:
        """Not admitted yet, or preempted; in no particular order."""
        return self._waiting

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def num_free_seqs(self) -> int:
        """Sequences that may run besides those that do."""
        return self._config.max_num_seqs - sum(request.num_seqs for request in self._running)

    @property
    def tables(self) -> list[BlockTable]:
        """Block tables of all running requests, for `KVCacheManager.check_integrity`."""
        return [request.block_table for request in self._running]

    def add(self, request: Request) -> None:
        """Let `request` wait."""
        self._waiting.append(request)
        self._blocked_on_memory = False

    def schedule(self) -> StepPlan:
        """Decide on the next step; may preempt and admit."""
        plan = StepPlan(self._config.max_num_batched_tokens)
        self._serve_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        plan.spend_rest()
        return plan

    def advance(self, plan: StepPlan) -> None:
        """The step was computed: count its tokens and publish the blocks that it filled."""
        for part in plan.scheduled:
            request = part.request
            request.num_computed_tokens = part.end
            self.counters.computed_tokens += part.num_tokens
            block_size = self._manager.block_size
            if part.end // block_size > part.start // block_size:
                self._manager.publish(request.block_table, request.token_ids, part.end)
        self.counters.steps += 1 if plan.scheduled else 0

    def append(self, request: Request, token_id: int) -> None:
        """Take a sampled token."""
        request.append(token_id)
        self.counters.generated_tokens += 1

    def fork(self, leader: Request) -> list[Request]:
        """Split a running request for n answers into n; returns the n − 1 new ones.

        All share the prompt's blocks. The last, partial one is copied when somebody writes to it.
        """
        children = [
            leader.fork(index, self._manager.fork(leader.block_table))
            for index in range(1, leader.num_seqs)
        ]
        leader.num_seqs = 1
        place = self._running.index(leader) + 1
        self._running[place:place] = children
        return children

    def finish(self, request: Request) -> None:
        """Forget `request`, from whatever state, and give its blocks back at once."""
        if request.status is RequestStatus.RUNNING:
            self._give_back(request)
        self._forget(request)

    def discard(self, request: Request) -> None:
        """`finish` for a request whose computation failed: its K/V is not to be found any more."""
        if request.status is RequestStatus.RUNNING:
            self._manager.discard(request.block_table)
            request.table = None
            self._blocked_on_memory = False
        self._forget(request)

    def _forget(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
        elif request.status is not RequestStatus.FINISHED:
            self._waiting.remove(request)
        request.status = RequestStatus.FINISHED

    def _serve_running(self, plan: StepPlan) -> None:
        place = 0
        while place < len(self._running):
            request = self._running[place]
            # One token for each of those behind; the budget is at least `max_num_seqs`.
            for_others = len(self._running) - place - 1
            num_tokens = self._share(request, plan.budget - for_others)
            if self._make_room(request, num_tokens, plan):
                plan.schedule(request, num_tokens)
            place += 1

    def _share(self, request: Request, budget: int) -> int:
        """Tokens for `request` as long as others may want some."""
        return min(request.num_missing_tokens, budget, self._long_prefill)

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Preempt from the tail until `request` has its slots; False if it was itself the tail.

        Whoever is part of the plan already stands before `request`, so no victim is.
        """
        start = request.num_computed_tokens
        while not self._manager.extend(request.block_table, start, start + num_tokens):
            victim = self._running.pop()
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, victim: Request) -> None:
        self._give_back(victim)
        victim.num_computed_tokens = 0
        victim.status = RequestStatus.PREEMPTED
        self._waiting.append(victim)
        self.counters.preemptions += 1

    def _give_back(self, request: Request) -> None:
        self._manager.release(request.block_table, request.token_ids, request.num_computed_tokens)
        request.table = None
        self._blocked_on_memory = False

    def _admit_waiting(self, plan: StepPlan) -> None:
        for request in self._candidates(plan):
            if plan.budget == 0 or request.num_seqs > self.num_free_seqs:
                return
            result = self._admission.try_admit(request, self._running)
            if result is AdmissionResult.NO_ROOM:
                self._block_on_memory(request)
                return
            if result is AdmissionResult.ADMITTED:
                self._start(request)
                plan.schedule(request, self._share(request, plan.budget))

    def _candidates(self, plan: StepPlan) -> list[Request]:
        """Waiting requests in the order in which to try them; none if trying is pointless."""
        if self._blocked_on_memory or plan.budget == 0 or self.num_free_seqs < 1:
            return []
        if len(self._waiting) < 2:
            return list(self._waiting)
        now = self._clock.monotonic()
        in_service = self._tokens_in_service()

        def key(request: Request, cached_tokens: int = 0) -> SortKey:
            waited = now - request.arrival_time
            tenant_tokens = in_service[request.tenant]
            return self._order.sort_key(Candidate(request, cached_tokens, waited, tenant_tokens))

        chosen = self._waiting
        if len(chosen) > MAX_LOOKUPS:
            chosen = by_turns(chosen, key, MAX_LOOKUPS)
        return sorted(chosen, key=lambda one: key(one, self._admission.cached_tokens(one)))

    def _tokens_in_service(self) -> Counter[TenantId]:
        tokens: Counter[TenantId] = Counter()
        for request in self._running:
            tokens[request.tenant] += request.num_tokens
        return tokens

    def _start(self, request: Request) -> None:
        if request.status is RequestStatus.PREEMPTED:
            self.counters.resumed_tokens += request.num_computed_tokens
        else:
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.cached_tokens += request.num_computed_tokens
        request.status = RequestStatus.RUNNING
        self._waiting.remove(request)
        self._running.append(request)

    def _block_on_memory(self, request: Request) -> None:
        """Do not try again before a request arrives or leaves: until then there is no more room."""
        if not self._running:
            raise CacheIntegrityError(
                f"{request!r} does not fit though nothing runs "
                f"({self._manager.num_available_blocks} of {self._manager.num_blocks} blocks available)"
            )
        self._blocked_on_memory = True
