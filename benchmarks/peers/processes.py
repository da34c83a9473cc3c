"""A peer's process: its group, its log, its first sign of life."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.contract import EngineError

_STOP_SECONDS = 20
_LOG_TAIL = 300


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class PeerProcess:
    """A program in a process group of its own, so that it can be stopped, or paused, as a whole.

    Args:
        command: program and arguments.
        log: where standard error goes; kept after the run.
        environment: added to this process's own.
        merge_output: send standard output to the log too (then `stdout` is None).
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        merge_output: bool = False,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=errors if merge_output else subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                text=True,
                bufsize=1,
            )

    @property
    def stdin(self):  # type: ignore[no-untyped-def]
        return self._process.stdin

    @property
    def stdout(self):  # type: ignore[no-untyped-def]
        return self._process.stdout

    def is_running(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the whole group at once; `stop` is still to be called."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """Politely, then not; the whole group."""
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def failure(self, what: str) -> EngineError:
        """An error that ends with what the program said last; all of it stays in the log."""
        lines = self._log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        return EngineError(f"{what}: {lines[-1][-_LOG_TAIL:]} ({self._log.name})")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
