"""EngineCore: the synchronous engine. One thread owns it; see `async_engine.py` for many callers.

    add_request ─► schedule ─► run the model ─► sample ─► advance ─► append, stop?, delta ─► caller
                      ▲                                                   │
                      └───────────────── until finished ──────────────────┘

Whatever ends a request, its blocks are given back in the same call. If a step fails, its requests are computed
one at a time, and only those that fail again are dropped, with all K/V that they have left.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from ostinato.cache.manager import KVCacheManager
from ostinato.cache.report import CacheReport
from ostinato.cache.types import NamespaceKey, TenantId
from ostinato.clock import Clock
from ostinato.engine.answer import Answer, make_answers
from ostinato.engine.answer_group import AnswerGroup
from ostinato.engine.fair_share import is_below_share
from ostinato.engine.grammar.compiler import GrammarCompiler
from ostinato.engine.grammar.vocabulary import GrammarVocabulary
from ostinato.engine.integrity import IntegrityPolicy
from ostinato.engine.limits import EngineLimits
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.request import EngineRequest, Request
from ostinato.engine.sampler import SampledToken, sample
from ostinato.engine.scheduler import ScheduledRequest, Scheduler, StepPlan
from ostinato.engine.stats import EngineStats
from ostinato.engine.tier_care import TierCare
from ostinato.errors import (
    EngineOverloadedError,
    GrammarError,
    GrammarFailedError,
    InvalidRequestError,
    RequestFailedError,
)
from ostinato.ops.base import Float32Array
from ostinato.ops.sampling import SamplingKernels

if TYPE_CHECKING:
    from ostinato.models.loader import LoadedModel

_log = logging.getLogger(__name__)

NamespaceOf: TypeAlias = Callable[[EngineRequest], NamespaceKey]
"""Where in the cache a request may read and publish."""


class Runner(Protocol):
    """What the core needs of `runner.ModelRunner`."""

    def run(self, scheduled: Sequence[ScheduledRequest]) -> Float32Array:
        """``(L, vocab)``: a row of logits for each request that `wants_logits`, in order."""
        ...


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request that ended without an answer; its prompt was admitted, as `report` says."""

    request_id: str
    error: RequestFailedError
    report: CacheReport | None


@dataclass(frozen=True, slots=True)
class _Row:
    """One token to sample: an answer, and the sequence whose logits it uses."""

    request: Request
    logits_row: int
    index: int
    answer: Answer


class EngineCore:
    """Runs requests to their end, one step a call.

    Args:
        model: loaded; its tokenizer makes the text.
        manager: of the K/V cache, for statistics and checks.
        scheduler: the only one that changes requests and blocks.
        runner: computes logits.
        limits: what a request may ask for.
        namespace_of: scope of a request's cache.
        max_waiting: most requests waiting, besides one for each sequence that is free.
        clock: for arrival times.
        integrity: what to do about a broken invariant.
        sampling: the backend's kernels for choosing tokens; None leaves it to NumPy.
    """

    def __init__(
        self,
        *,
        model: LoadedModel,
        manager: KVCacheManager,
        scheduler: Scheduler,
        runner: Runner,
        limits: EngineLimits,
        namespace_of: NamespaceOf,
        max_waiting: int,
        clock: Clock,
        integrity: IntegrityPolicy,
        sampling: SamplingKernels | None = None,
    ) -> None:
        self.model = model
        self.limits = limits
        self.grammars = GrammarCompiler(GrammarVocabulary(model.tokenizer))
        self._manager = manager
        self._scheduler = scheduler
        self._runner = runner
        self._namespace_of = namespace_of
        self._max_waiting = max_waiting
        self._clock = clock
        self._integrity = integrity
        self._sampling = sampling
        self.tiers = TierCare(manager.tiers, clock)
        self._groups: dict[str, AnswerGroup] = {}
        self._failures: list[RequestFailure] = []
        self._finished: Counter[FinishReason] = Counter()
        self._is_stalled = False

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def is_stalled(self) -> bool:
        """There is work, but the last step could do none of it: K/V is on its way from a lower tier."""
        return self._is_stalled and self.has_work

    @property
    def can_queue(self) -> bool:
        """Whether one more request may wait, besides those that can run in the next step."""
        return len(self._scheduler.waiting) < self._num_places

    def is_unfinished(self, request_id: str) -> bool:
        """Whether any answer of this request is still to be finished."""
        return request_id in self._groups

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            RequestError: see `EngineLimits.validate`; also if the id is in use.
            EngineOverloadedError: too many requests wait already.
        """
        self.limits.validate(request)
        if request.request_id in self._groups:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use by an unfinished request",
                param="request_id",
            )
        if not self.can_queue and not self._is_below_share(request.tenant):
            raise EngineOverloadedError(
                f"{self._max_waiting} requests are waiting already (max_waiting); try again later"
            )
        max_tokens = self.limits.max_tokens_for(request)
        leader = Request(request, self._namespace_of(request), max_tokens, self._clock.monotonic())
        answers = make_answers(request, max_tokens, self.model.tokenizer, self.grammars)
        self._groups[request.request_id] = AnswerGroup(answers, {0: leader})
        self._scheduler.add(leader)
        self._is_stalled = False

    @property
    def _num_places(self) -> int:
        return self._max_waiting + self._scheduler.num_free_seqs

    def _is_below_share(self, tenant: TenantId) -> bool:
        waiting = [request.tenant for request in self._scheduler.waiting]
        return is_below_share(tenant, waiting, self._num_places)

    def share(self, request: EngineRequest, readers: Set[TenantId]) -> None:
        """Keep the prompt of a finished request for `readers` to copy. Before anything else is served.

        What it takes of the pool is no longer there for requests, so the limits shrink.
        """
        namespace = self._namespace_of(request)
        held = self._scheduler.share(namespace, request.prompt_token_ids, readers)
        self.limits = replace(self.limits, num_blocks=self.limits.num_blocks - held)

    def abort(self, request_id: str) -> list[OutputDelta]:
        """Break a request off and free its blocks; the last delta of each unfinished answer.

        An id that is unknown or finished already does nothing.
        """
        group = self._groups.get(request_id)
        if group is None:
            return []
        report = next(iter(group.sequences.values())).report
        deltas = [answer.abort(report) for answer in group.answers.values()]
        self._finished[FinishReason.ABORT] += len(deltas)
        self._is_stalled = False
        self._drop(request_id, self._scheduler.finish)
        return deltas

    def abort_all(self) -> list[OutputDelta]:
        """Break everything off."""
        return [delta for request_id in list(self._groups) for delta in self.abort(request_id)]

    def step(self) -> list[OutputDelta]:
        """Compute one step; returns a delta for each answer that got a token.

        A request whose computation fails is dropped alone; see `take_failures`.
        """
        plan = self._scheduler.schedule()
        self._is_stalled = not plan.scheduled and not plan.preempted
        if not plan.scheduled:
            return []
        tokens = self._compute(plan)
        self._scheduler.advance(plan)
        self._fork(plan)
        prewarmed = [self._end_prewarm(p.request) for p in plan.scheduled if p.is_prewarmed]
        return prewarmed + [self._take(row, token) for row, token in tokens]

    def expire(self) -> None:
        """Erase what has passed a hard deadline, as each step does. For a caller with nothing else to do."""
        self._scheduler.expire()

    def close(self) -> None:
        """Break everything off, write what has no copy in a lasting tier, give everything back. Idempotent."""
        self.abort_all()
        self.tiers.close()

    def take_failures(self) -> list[RequestFailure]:
        """Requests that failed since the last call."""
        failures, self._failures = self._failures, []
        return failures

    def check_integrity(self) -> None:
        """Verify the cache's invariants. O(blocks): call it when idle.

        Raises:
            CacheIntegrityError: if one is broken and the engine was built to raise.
        """
        tables = self._scheduler.tables
        self._integrity.run(lambda: self._manager.check_integrity(tables))

    def stats(self) -> EngineStats:
        """A snapshot. Call it from the owning thread."""
        counters = self._scheduler.counters
        running = self._scheduler.running
        return EngineStats(
            running=len(running),
            waiting=len(self._scheduler.waiting),
            blocks=self._manager.stats(),
            prompt_tokens_total=counters.prompt_tokens,
            cached_tokens_total=counters.cached_tokens,
            computed_tokens_total=counters.computed_tokens,
            resumed_tokens_total=counters.resumed_tokens,
            generated_tokens_total=counters.generated_tokens,
            preemptions_total=counters.preemptions,
            requests_finished_total={reason: self._finished[reason] for reason in FinishReason},
            steps_total=counters.steps,
            allocated_slots=self.limits.block_size
            * sum(request.block_table.num_blocks for request in running),
            used_slots=sum(request.num_computed_tokens for request in running),
            integrity_errors_total=self._integrity.errors_total,
            loading=self._scheduler.num_loading,
            tiers=self.tiers.stats(),
        )

    def _compute(self, plan: StepPlan) -> list[tuple[_Row, SampledToken]]:
        """Run the model and sample. What fails is dropped from `plan`."""
        started = self._clock.monotonic()
        try:
            logits = self._runner.run(plan.scheduled)
            self._scheduler.took(plan, self._clock.monotonic() - started)
        except Exception as error:
            _log.exception("a step over %d requests failed", len(plan.scheduled))
            if len(plan.scheduled) == 1:
                self._fail(plan, [plan.scheduled[0].request], error)
                return []
            logits = self._run_one_by_one(plan)
        return self._sample(plan, logits)

    def _run_one_by_one(self, plan: StepPlan) -> Float32Array:
        """Compute a step that failed again, each request by itself, so that only the culprit fails.

        Nothing was advanced or published, and a step writes to blocks of its own requests only, so what
        the failed attempt left there is simply overwritten.
        """
        logits: dict[Request, Float32Array] = {}
        for part in list(plan.scheduled):
            if not self.is_unfinished(part.request.request_id):
                continue  # another of its n answers has failed
            try:
                logits[part.request] = self._runner.run([part])
            except Exception as error:
                _log.exception("%r failed", part.request)
                self._fail(plan, [part.request], error)
        rows = [logits[request] for request in plan.sampling]
        return np.concatenate(rows) if rows else np.empty((0, self.limits.vocab_size), np.float32)

    def _sample(self, plan: StepPlan, logits: Float32Array) -> list[tuple[_Row, SampledToken]]:
        rows = [
            _Row(request, logits_row, index, answer)
            for logits_row, request in enumerate(plan.sampling)
            for index, answer in self._answers_of(request)
        ]
        try:
            return self._sample_rows(rows, logits)
        except GrammarError as error:
            _log.warning("one of %d sequences has to end: %s", len(rows), error)
        except Exception:
            _log.exception("some of %d sequences cannot be sampled", len(rows))
        tokens = []
        for row in rows:
            if not self.is_unfinished(row.request.request_id):
                continue  # another of its n answers has failed
            try:
                tokens += self._sample_rows([row], logits)
            except Exception as error:
                self._fail(plan, [row.request], error)
        return [(row, token) for row, token in tokens if self.is_unfinished(row.request.request_id)]

    def _sample_rows(
        self, rows: Sequence[_Row], logits: Float32Array
    ) -> list[tuple[_Row, SampledToken]]:
        """Sampling again what was sampled, but not taken, gives the same tokens."""
        wanted = [row.logits_row for row in rows]
        chosen = logits if wanted == list(range(len(logits))) else logits[wanted]
        states = [row.answer.sampler for row in rows]
        return list(zip(rows, sample(chosen, states, self._sampling), strict=True))

    def _answers_of(self, request: Request) -> Iterable[tuple[int, Answer]]:
        """The answers that `request` runs for: all n until it is forked, then its own."""
        answers = self._groups[request.request_id].answers
        if request.num_seqs > 1:
            return answers.items()
        return ((request.index, answers[request.index]),)

    def _fork(self, plan: StepPlan) -> None:
        """Split the requests for several answers whose prompt has just been computed."""
        for request in list(plan.sampling):
            if request.num_seqs > 1:
                sequences = self._groups[request.request_id].sequences
                sequences.update({child.index: child for child in self._scheduler.fork(request)})

    def _take(self, row: _Row, token: SampledToken) -> OutputDelta:
        """Append a token to its sequence and end the sequence if it was the last."""
        request_id = row.request.request_id
        sequence = self._groups[request_id].sequences[row.index]
        self._scheduler.append(sequence, token.token_id)
        delta = row.answer.accept(token, sequence.report)
        if delta.finish_reason is not None:
            self._finished[delta.finish_reason] += 1
            self._end(request_id, row.index)
        return delta

    def _end_prewarm(self, request: Request) -> OutputDelta:
        """The prompt of a request that wants nothing else is computed; all of it stays findable."""
        [answer] = self._groups[request.request_id].answers.values()
        self._finished[FinishReason.LENGTH] += 1
        self._end(request.request_id, request.index)
        return answer.without_output(request.report)

    def _end(self, request_id: str, index: int) -> None:
        group = self._groups[request_id]
        self._scheduler.finish(group.sequences.pop(index))
        del group.answers[index]
        if not group.answers:
            del self._groups[request_id]

    def _drop(self, request_id: str, leave: Callable[[Request], None]) -> None:
        for sequence in self._groups.pop(request_id).sequences.values():
            leave(sequence)

    def _fail(self, plan: StepPlan, requests: Iterable[Request], cause: Exception) -> None:
        """Drop the whole request of each of `requests`, and its part in the step."""
        failed = {request.request_id for request in requests}
        kind = GrammarFailedError if isinstance(cause, GrammarError) else RequestFailedError
        plan.scheduled = [p for p in plan.scheduled if p.request.request_id not in failed]
        for request_id in sorted(failed):
            error = kind(f"request {request_id!r} failed while it was computed: {cause}")
            error.__cause__ = cause
            group = self._groups[request_id]
            report = next(iter(group.sequences.values())).report
            self._failures.append(RequestFailure(request_id, error, report))
            self._finished[FinishReason.ERROR] += len(group.answers)
            self._drop(request_id, self._scheduler.discard)
