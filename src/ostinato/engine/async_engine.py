"""AsyncEngine: many callers, one engine.

    event loop(s)                                  thread "ostinato-engine"
    generate ──► Add ──►┐                          ┌► EngineCore.step
    closed   ──► Abort ─┼─► SimpleQueue (FIFO) ───►┤
    stop     ──► Stop ──┘                          └► deltas, once a step and loop, through
       ▲                                              call_soon_threadsafe into each request's queue
       └─────────────────────────────────────────────────────┘

The thread owns the core from start to end. It takes all commands before each step, so an abort frees its
blocks before anything more is computed; with nothing to do it sleeps in the queue. A transfer from or to a
lower tier that ends wakes it there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ostinato.config import OstinatoConfig
from ostinato.engine.core import EngineCore, RequestFailure
from ostinato.engine.metering import Metering
from ostinato.engine.outputs import OutputDelta, RequestMeter
from ostinato.engine.request import EngineRequest
from ostinato.engine.stats import EngineStats
from ostinato.errors import EngineStoppedError, OstinatoError

_log = logging.getLogger(__name__)

THREAD_NAME = "ostinato-engine"
STALL_SECONDS = 0.05
"""While requests only wait for K/V from lower tiers, a step is tried after this long at the latest."""
REST_SECONDS = 0.02
"""The engine rests once there was nothing to do for so long: who asks one thing after the other asks sooner."""

IDLE_CHECK_SECONDS = 1.0
"""The cache's invariants are checked after this long without work, once until there is work again."""
IDLE_EXPIRE_SECONDS = 5.0
"""What passes a hard deadline while nobody wants anything is erased this much later at most."""

_Event: TypeAlias = OutputDelta | OstinatoError


class _Waiter:
    """Where one request's deltas go: a queue of the caller's event loop. Their sum goes to its meter."""

    def __init__(self, meter: RequestMeter | None) -> None:
        self.metering = Metering(meter)
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[_Event] = asyncio.Queue()


@dataclass(frozen=True, slots=True)
class _Add:
    request: EngineRequest
    waiter: _Waiter


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    waiter: _Waiter


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class _Wake:
    """A transfer has ended: the next step will settle it."""


_Command: TypeAlias = _Add | _Abort | _Wake | _Stop


class AsyncEngine:
    """Serves requests from any event loop of the process.

    Args:
        core: the engine; after `start` only this object's thread touches it.
        config: what it was built from.

    Attributes:
        model: the loaded model.
        limits: what a request may ask for.
        grammars: compiles what answers must match; from any thread, best before `generate`.
    """

    def __init__(self, core: EngineCore, config: OstinatoConfig) -> None:
        self.model = core.model
        self.limits = core.limits
        self.grammars = core.grammars
        self.config = config
        self._core = core
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._waiters: dict[str, _Waiter] = {}
        self._stats = core.stats()
        self._thread: threading.Thread | None = None
        self._gate = threading.Lock()
        self._closed: EngineStoppedError | None = EngineStoppedError("the engine is not started")

    def start(self) -> None:
        """Start the engine's thread; once.

        Raises:
            RuntimeError: if it was started before.
        """
        if self._thread is not None:
            raise RuntimeError("an engine can be started only once")
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._closed = None
        self._core.tiers.on_transfer_end(lambda: self._commands.put(_Wake()))
        self._thread.start()

    def stop(self) -> None:
        """End all requests with ABORT and wait for the thread. Calling it again does nothing."""
        if self._thread is None:
            return
        with self._gate:
            if self._closed is None:
                self._closed = EngineStoppedError("the engine is stopped")
                self._commands.put(_Stop())
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether requests are taken. From any thread."""
        return self._closed is None

    def validate(self, request: EngineRequest) -> None:
        """Refuse early what `generate` would refuse. From any thread.

        Raises:
            RequestError: see `EngineLimits.validate`.
        """
        self.limits.validate(request)

    async def generate(
        self, request: EngineRequest, meter: RequestMeter | None = None
    ) -> AsyncIterator[OutputDelta]:
        """The deltas of all n answers, as they are made, until the last answer has finished.

        Closing the iterator (or cancelling who awaits it) aborts the request.

        Args:
            request: what to generate.
            meter: told when the request begins and, from the engine's thread, what it came to.

        Raises:
            RequestError: the request cannot be served.
            EngineOverloadedError: too many requests wait.
            RequestFailedError: computing it failed.
            EngineStoppedError: the engine is stopped or has died; its cause is attached.
        """
        self.limits.validate(request)
        waiter = _Waiter(meter)
        with waiter.metering.beginning():
            self._submit(_Add(request, waiter))
        unfinished = request.params.n
        try:
            while unfinished > 0:
                event = await waiter.events.get()
                if not isinstance(event, OutputDelta):
                    unfinished = 0
                    raise event
                unfinished -= event.finish_reason is not None
                yield event
        finally:
            if unfinished > 0:
                self._commands.put(_Abort(request.request_id, waiter))

    def stats(self) -> EngineStats:
        """The snapshot after the last step. From any thread."""
        return self._stats

    def _submit(self, command: _Command) -> None:
        """Queue a command unless the thread may no longer read it."""
        with self._gate:
            if self._closed is not None:
                raise EngineStoppedError(str(self._closed)) from self._closed.__cause__
            self._commands.put(command)

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._advance(self._core.step())
            self._advance(self._core.abort_all())
            self._core.close()
        except Exception as error:
            _log.exception("the engine has died")
            self._die(error)

    def _advance(self, deltas: Sequence[OutputDelta]) -> None:
        """Publish what a step brought: statistics first, so that who sees a delta finds it counted."""
        self._stats = self._core.stats()
        failures = self._core.take_failures()
        self._meter(deltas, failures)
        self._send([(delta.request_id, delta) for delta in deltas])
        self._send([(failure.request_id, failure.error) for failure in failures])
        ended = {delta.request_id for delta in deltas if delta.finish_reason is not None}
        for request_id in ended.union(failure.request_id for failure in failures):
            if not self._core.is_unfinished(request_id):
                self._leave(request_id)
        if self._core.has_work:
            self._core.tiers.tend()
        else:
            self._core.tiers.tend_if_due()

    def _meter(
        self, deltas: Iterable[OutputDelta], failures: Iterable[RequestFailure] = ()
    ) -> None:
        for delta in deltas:
            if (waiter := self._waiters.get(delta.request_id)) is not None:
                waiter.metering.add(delta)
        for failure in failures:
            if (waiter := self._waiters.get(failure.request_id)) is not None:
                waiter.metering.fail(failure.report)

    def _leave(self, request_id: str) -> None:
        """Nothing more comes of this request."""
        if (waiter := self._waiters.pop(request_id, None)) is not None:
            waiter.metering.end()

    def _abort(self, request_id: str) -> None:
        """Break off a request for which nobody waits any more."""
        self._meter(self._core.abort(request_id))
        self._leave(request_id)

    def _take_commands(self) -> bool:
        """Obey everything queued; sleep if there is nothing else to do. False when told to stop."""
        try:
            command = self._next_command()
            while not isinstance(command, _Stop):
                self._obey(command)
                command = self._commands.get_nowait()
        except queue.Empty:
            return True
        return False

    def _next_command(self) -> _Command:
        if not self._core.has_work:
            return self._wait()
        if self._core.is_stalled:
            return self._commands.get(timeout=STALL_SECONDS)
        return self._commands.get_nowait()

    def _wait(self) -> _Command:
        """Sleep until somebody wants something; see to the tiers and check the cache if that takes a while, and
        erase in time."""
        with contextlib.suppress(queue.Empty):
            return self._commands.get(timeout=REST_SECONDS)
        self._core.tiers.tend()
        try:
            return self._commands.get(timeout=IDLE_CHECK_SECONDS)
        except queue.Empty:
            self._core.check_integrity()
        while True:
            self._core.expire()
            self._stats = self._core.stats()
            with contextlib.suppress(queue.Empty):
                return self._commands.get(timeout=IDLE_EXPIRE_SECONDS)

    def _obey(self, command: _Add | _Abort | _Wake) -> None:
        if isinstance(command, _Wake):
            return
        if isinstance(command, _Add):
            self._add(command.request, command.waiter)
        elif self._waiters.get(command.request_id) is command.waiter:
            self._abort(command.request_id)

    def _add(self, request: EngineRequest, waiter: _Waiter) -> None:
        try:
            self._core.add_request(request)
        except OstinatoError as error:
            waiter.metering.end()
            _post(waiter.loop, [(waiter, error)])
        else:
            self._waiters[request.request_id] = waiter

    def _send(self, events: Iterable[tuple[str, _Event]]) -> None:
        """Wake each event loop once, whatever number of requests it has."""
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[_Waiter, _Event]]]
        by_loop = defaultdict(list)
        for request_id, event in events:
            if (waiter := self._waiters.get(request_id)) is not None:
                by_loop[waiter.loop].append((waiter, event))
        for loop, mail in by_loop.items():
            if not _post(loop, mail):
                self._forget_loop(loop)

    def _forget_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody listens on a closed loop: abort its requests."""
        lost = [name for name, waiter in self._waiters.items() if waiter.loop is loop]
        for request_id in lost:
            self._abort(request_id)

    def _die(self, cause: Exception) -> None:
        """Tell every waiter, including those whose command was not taken yet."""
        closed = EngineStoppedError(f"the engine has died: {cause}")
        closed.__cause__ = cause
        with self._gate:
            self._closed = closed
        waiters = list(self._waiters.values())
        while not self._commands.empty():
            command = self._commands.get_nowait()
            if isinstance(command, _Add):
                waiters.append(command.waiter)
        for waiter in waiters:
            waiter.metering.end()
            error = EngineStoppedError(str(closed))
            error.__cause__ = cause
            _post(waiter.loop, [(waiter, error)])
        self._waiters.clear()


def _post(loop: asyncio.AbstractEventLoop, mail: list[tuple[_Waiter, _Event]]) -> bool:
    """Put events into their queues from another thread; False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(_put_all, mail)
    except RuntimeError:
        return False
    return True


def _put_all(mail: list[tuple[_Waiter, _Event]]) -> None:
    for waiter, event in mail:
        waiter.events.put_nowait(event)
