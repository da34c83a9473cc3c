"""Scheduler: who computes how many tokens in the next step. The only owner of requests and their blocks.

A step hands out a budget of tokens, first to running requests in the order in which they were admitted, then
to waiting ones. Prefill, chunked prefill, decode and resumption are one rule: a request gets what it is
missing, as far as the budget reaches. Every running request gets at least one token in each step. A prefill
gets at most `long_prefill_tokens`, so that a short request need not wait for the end of a long one; what
nobody else wants then goes to the prefills after all.

A request whose K/V lies in a lower tier reserves its blocks, loads, and only then runs; see `loading.py`.

When no block is left for a running request, the newest running one is preempted: its blocks are given back
but stay findable, and it waits at the front. The oldest is never preempted while it has company, and alone
it fits (`EngineLimits.validate`), so the oldest always progresses and everything ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Literal

from ostinato.cache.block_table import BlockTable
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.prefix_loader import PrefixLoader
from ostinato.cache.types import NamespaceKey, TenantId, TokenArray
from ostinato.clock import Clock
from ostinato.config_sections import SchedulerConfig
from ostinato.engine.admission import Admission, AdmissionResult
from ostinato.engine.fair_share import TenantService
from ostinato.engine.loading import LoadQueue
from ostinato.engine.order import PrefixGate, QueueView, WaitingOrder
from ostinato.engine.request import Request, RequestStatus
from ostinato.engine.shared_prefix import SharedPrefixes
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
        return self._is_complete and not self.request.ends_with_prompt

    @property
    def is_prewarmed(self) -> bool:
        """The prompt is computed in this step, and that is all that was wanted."""
        return self._is_complete and self.request.ends_with_prompt

    @property
    def _is_complete(self) -> bool:
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
        service: what each tenant has had; by default all weigh the same.
        loader: of the lower tiers; None if there are none.
        expire: what becomes of promised K/V after its time.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        config: SchedulerConfig,
        clock: Clock,
        order: WaitingOrder,
        gate: PrefixGate,
        service: TenantService | None = None,
        loader: PrefixLoader | None = None,
        expire: Literal["soft", "hard"] = "soft",
    ) -> None:
        self._manager = manager
        self._config = config
        self._long_prefill = config.long_prefill_tokens or max(
            config.max_num_batched_tokens // 2, 1
        )
        self._clock = clock
        self._order = order
        self._service = service or TenantService()
        self._expire = expire
        self._loads = LoadQueue(manager, loader, clock)
        self._shared = SharedPrefixes(manager)
        self._admission = Admission(
            manager, gate, config.watermark, loader, self._loads, self._shared
        )
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
    def num_loading(self) -> int:
        """Requests that hold blocks and wait for their K/V."""
        return len(self._loads)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._loads)

    @property
    def num_free_seqs(self) -> int:
        """Sequences that may run besides those that do."""
        running = sum(request.num_seqs for request in self._running)
        return self._config.max_num_seqs - running - self._loads.num_seqs

    @property
    def tables(self) -> list[BlockTable]:
        """All block tables that hold blocks, for `KVCacheManager.check_integrity`."""
        held = [request.block_table for request in (*self._running, *self._loads)]
        return held + self._shared.tables

    def share(self, namespace: NamespaceKey, token_ids: TokenArray, readers: Set[TenantId]) -> int:
        """Hold a computed prefix for `readers` to copy; returns the blocks that it takes for good."""
        return self._shared.hold(namespace, token_ids, readers).num_blocks

    def add(self, request: Request) -> None:
        """Let `request` wait."""
        if all(other.tenant != request.tenant for other in self._waiting):
            self._service.enter(request.tenant, {other.tenant for other in self._waiting})
        self._waiting.append(request)
        self._loads.enqueued(request)
        self._blocked_on_memory = False

    def schedule(self) -> StepPlan:
        """Decide on the next step; may preempt and admit."""
        if self._loads.poll():
            self._blocked_on_memory = False
        self.expire()
        for arrival in self._loads.take_arrived():
            self._start(arrival.request, resumes=arrival.resumes)
        plan = StepPlan(self._config.max_num_batched_tokens)
        self._serve_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        plan.spend_rest()
        self._loads.prefetch()
        return plan

    def expire(self) -> None:
        """Erase what has passed a hard deadline, on the device and below it."""
        if self._manager.expire():
            self._blocked_on_memory = False

    def took(self, plan: StepPlan, seconds: float) -> None:
        """Computing `plan` took so long."""
        self._loads.observe_step([part.num_tokens for part in plan.scheduled], seconds)

    def advance(self, plan: StepPlan) -> None:
        """The step was computed: count its tokens and publish the blocks that it filled."""
        for part in plan.scheduled:
            request = part.request
            request.num_computed_tokens = part.end
            self.counters.computed_tokens += part.num_tokens
            block_size = self._manager.block_size
            if part.end // block_size > part.start // block_size:
                self._manager.publish(request.block_table, request.token_ids, part.end)
            if part.start < request.num_prompt_tokens <= part.end:
                self._promise(request)
        self.counters.steps += 1 if plan.scheduled else 0

    def _promise(self, request: Request) -> None:
        """The prompt of `request` has been computed: keep its K/V as long as it was promised."""
        for num_tokens, seconds in request.retain:
            self._manager.retain(request.block_table, num_tokens, seconds, self._expire)

    def append(self, request: Request, token_id: int) -> None:
        """Take a sampled token."""
        request.append(token_id)
        self._service.charge_output(request.tenant)
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
        if request.status is RequestStatus.WAITING_FOR_LOAD:
            self._loads.abandon(request)
        if request.table is not None:
            self._give_back(request)
        self._forget(request)

    def discard(self, request: Request) -> None:
        """`finish` for a request whose computation failed: its K/V is not to be found any more."""
        if request.status is RequestStatus.RUNNING:
            self._manager.discard(request.block_table)
            request.table = None
            self._blocked_on_memory = False
        elif request.status is RequestStatus.WAITING_FOR_LOAD:
            self._loads.abandon(request)
            self._give_back(request)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
        elif request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            self._waiting.remove(request)
            self._loads.left(request)
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
            if self._loads.wait_for_stores():
                continue
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
            if result is AdmissionResult.LOADING:
                self._waiting.remove(request)
                request.status = RequestStatus.WAITING_FOR_LOAD
            if result is AdmissionResult.ADMITTED:
                self._waiting.remove(request)
                self._start(request, resumes=request.status is RequestStatus.PREEMPTED)
                plan.schedule(request, self._share(request, plan.budget))

    def _candidates(self, plan: StepPlan) -> list[Request]:
        """Waiting requests in the order in which to try them; none if trying is pointless."""
        if self._blocked_on_memory or plan.budget == 0 or self.num_free_seqs < 1:
            return []
        if len(self._waiting) < 2:
            return list(self._waiting)
        return self._order.arrange(
            QueueView(
                waiting=self._waiting,
                now=self._clock.monotonic(),
                cached_tokens=self._admission.cached_tokens,
                service=self._service,
                in_service=self._tokens_in_service(),
            )
        )

    def _tokens_in_service(self) -> Counter[TenantId]:
        tokens: Counter[TenantId] = Counter()
        for request in (*self._running, *self._loads):
            tokens[request.tenant] += request.num_tokens
        return tokens

    def _start(self, request: Request, *, resumes: bool) -> None:
        if resumes:
            self.counters.resumed_tokens += request.num_computed_tokens
        else:
            self.counters.prompt_tokens += request.num_prompt_tokens
            self.counters.cached_tokens += request.num_computed_tokens
            computed = request.num_prompt_tokens - request.num_computed_tokens
            self._service.charge_prompt(request.tenant, computed)
        request.status = RequestStatus.RUNNING
        self._running.append(request)

    def _block_on_memory(self, request: Request) -> None:
        """Do not try again before a request arrives or leaves, or a transfer ends: until then there is no more
        room."""
        if not self._running and not self._loads.num_transfers:
            raise CacheIntegrityError(
                f"{request!r} does not fit though nothing runs "
                f"({self._manager.num_available_blocks} of {self._manager.num_blocks} blocks available)"
            )
        self._blocked_on_memory = True
