"""Recording: one ledger record for each generating request, in every dialect, however it ends.

    recording_middleware ─► Recording ──► Meter, one a prompt ──► the engine
       arrival, end,         what was        tokens, exactly        │
       status                asked for  ◄────────────────────────── end, from any thread

A record is complete when HTTP is done with the request *and* the engine is: after a client has gone, the engine
still counts what the running step samples. Whatever passes the API keys is recorded: answers, refused bodies,
errors of ours, clients that left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.types import Scope

from ostinato.cache.report import CacheReport
from ostinato.clock import Clock
from ostinato.engine.outputs import FinishReason, RequestEnd
from ostinato.errors import EngineOverloadedError, EngineStoppedError, RequestError
from ostinato.insight.metrics import RequestTimer
from ostinato.ledger.record import LedgerRecord, TokenRecord, label
from ostinato.product.settle import Split

TEMPLATE_ID_FIELD = "prompt_template_id"
"""Of a body's ``metadata``; the header is stronger."""
TEMPLATE_VERSION_FIELD = "prompt_template_version"

_REASONS = tuple(reason.value for reason in FinishReason)
"""Of several, the last is the request's."""


class Ledger(Protocol):
    """Where records go: `ledger.writer.LedgerWriter`."""

    def put(self, record: LedgerRecord) -> None:
        """From any thread; returns at once and never fails."""
        ...


class NoLedger:
    """Keeps nothing: where there is to be no ledger."""

    def put(self, record: LedgerRecord) -> None:
        """Forget it."""


@dataclass(slots=True)
class Asked:
    """What a request asked for, filled in as it becomes known. Texts as the client sent them."""

    model: str | None = None
    response_id: str | None = None
    template_id: str | None = None
    template_version: str | None = None
    prompt_cache_key: str | None = None
    retention: str | None = None
    answers: int = 1
    storage_token_seconds: int = 0

    def take_body(self, body: object) -> None:
        """Take model, template and cache key from a parsed body, by the names that the dialects share."""
        self.model = self.model or _text(_field(body, "model"))
        metadata = _field(body, "metadata")
        if isinstance(metadata, Mapping):
            self.template_id = self.template_id or _text(metadata.get(TEMPLATE_ID_FIELD))
            self.template_version = self.template_version or _text(
                metadata.get(TEMPLATE_VERSION_FIELD)
            )
        self.prompt_cache_key = _text(_field(body, "prompt_cache_key"))
        options = _field(body, "prompt_cache_options")
        self.retention = (
            _text(_field(body, "prompt_cache_retention"))
            or _text(_field(options, "ttl"))
            or _text(_field(body, "cache_ttl"))
        )


class Meter:
    """Counts one prompt of a call; a `RequestMeter` of the engine."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.reasoning: int | None = None
        self.ended: RequestEnd | None = None
        self._split: Split | None = None
        self._rule: Callable[[CacheReport], Split] | None = None

    def begin(self) -> None:
        self._recording.begun(self)

    def end(self, end: RequestEnd) -> None:
        self.ended = end
        self._recording.ended()

    def bill_by(self, rule: Callable[[CacheReport], Split]) -> None:
        """How the prompt is billed if the client leaves before it is told; a pure function, called from any
        thread. Without one reads are what the engine reused."""
        self._rule = rule

    def bill(self, split: Split) -> None:
        """How the prompt is billed, as the client is told."""
        self._split = split

    def split_of(self, report: CacheReport) -> Split:
        """How the prompt is billed, whether or not the client was told."""
        if self._split is not None:
            return self._split
        if self._rule is not None:
            return self._rule(report)
        return Split(report.cached_tokens, 0, 0, report.computed_tokens)

    def count_reasoning(self, tokens: int) -> None:
        """How many of the generated tokens were thoughts. Without it that is not known."""
        self.reasoning = tokens


@dataclass(slots=True)
class Recording:
    """One request on its way to the ledger.

    Attributes:
        asked: to be filled in by whoever understands the request.
        timer: knows when the first token came; None before there is a call.
        error: a word for what went wrong first.
    """

    ledger: Ledger
    clock: Clock
    dialect: str
    house_rules: str
    tenant: str
    request_id: str
    time: float
    started: float
    asked: Asked = field(default_factory=Asked)
    timer: RequestTimer | None = None
    error: str | None = None
    _meters: list[Meter] = field(default_factory=list)
    _running: int = 0
    _closed: tuple[int | None, float] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def meter(self) -> Meter:
        """For one more prompt of the call."""
        return Meter(self)

    def begun(self, meter: Meter) -> None:
        with self._lock:
            self._meters.append(meter)
            self._running += 1

    def ended(self) -> None:
        with self._lock:
            self._running -= 1
            is_complete = self._running == 0 and self._closed is not None
        if is_complete:
            self.ledger.put(self._record())

    def note(self, error: str) -> None:
        """Say what went wrong; the first word counts."""
        self.error = self.error or error

    def close(self, status: int | None) -> None:
        """HTTP is done with the request: nothing begins any more."""
        with self._lock:
            self._closed = status, self.clock.monotonic() - self.started
            is_complete = self._running == 0
        if is_complete:
            self.ledger.put(self._record())

    def _record(self) -> LedgerRecord:
        assert self._closed is not None
        status, e2e = self._closed
        asked = self.asked
        first = None if self.timer is None else self.timer.first_token_at
        return LedgerRecord(
            time=self.time,
            request_id=self.request_id,
            response_id=asked.response_id,
            tenant=self.tenant,
            model=label(asked.model),
            dialect=self.dialect,
            template_id=label(asked.template_id),
            template_version=label(asked.template_version),
            prompt_cache_key=label(asked.prompt_cache_key),
            retention=label(asked.retention),
            house_rules=self.house_rules,
            answers=asked.answers,
            tokens=self._tokens(),
            storage_token_seconds=asked.storage_token_seconds,
            ttft=None if first is None else first - self.started,
            e2e=e2e,
            status=status,
            finish_reason=self._finish_reason(),
            error=self.error,
        )

    def _finish_reason(self) -> str | None:
        found = {m.ended.finish_reason for m in self._meters if m.ended and m.ended.finish_reason}
        return max((reason.value for reason in found), key=_REASONS.index, default=None)

    def _tokens(self) -> TokenRecord:
        by_tier: dict[Any, int] = {}
        prompt = read = short = long = output = 0
        for meter in self._meters:
            assert meter.ended is not None
            output += meter.ended.num_output_tokens
            report = meter.ended.report
            if report is None:
                continue
            prompt += report.prompt_tokens
            for tier, tokens in report.read_by_tier.items():
                by_tier[tier] = by_tier.get(tier, 0) + tokens
            split = meter.split_of(report)
            read, short, long = (
                read + split.read,
                short + split.write_short,
                long + split.write_long,
            )
        thoughts = [meter.reasoning for meter in self._meters if meter.reasoning is not None]
        is_known = bool(thoughts) and len(thoughts) == len(self._meters)
        reasoning = sum(thoughts) if is_known else None
        return TokenRecord(prompt, by_tier, read, short, long, output, reasoning)


def recording_of(scope: Scope) -> Recording:
    """The recording of this request. Its path must be in `recorded_routes`."""
    recording: Recording | None = scope["state"].get("recording")
    if recording is None:
        raise RuntimeError(f"{scope['path']} generates, but is not in api/recorded_routes.py")
    return recording


def note_error(scope: Scope, error: Exception) -> None:
    """Tell the recording of this request, if it has one, what went wrong."""
    recording: Recording | None = scope["state"].get("recording")
    if recording is not None:
        recording.note(word_of(error))


def word_of(error: BaseException) -> str:
    """A word for an error. Never its message: that may quote what the client sent."""
    if isinstance(error, RequestError):
        return error.code
    if isinstance(error, EngineOverloadedError):
        return "engine_overloaded"
    if isinstance(error, EngineStoppedError):
        return "engine_unavailable"
    return "internal_error"


def _field(body: object, name: str) -> object:
    if isinstance(body, Mapping):
        return body.get(name)
    extra = getattr(body, "model_extra", None) or {}
    return getattr(body, name, extra.get(name))


def _text(value: object) -> str | None:
    """A client's name for something: a text, or a number written as one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value) or None
