"""What all engines that run in a process of their own have in common: ending it, and letting it rest."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.contract import Engine
from benchmarks.peers.processes import PeerProcess


class ProcessEngine(Engine):
    """An engine with one process, which `start` puts into `_process`.

    Args:
        logs: folder for the process's log.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._process: PeerProcess | None = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def pause(self) -> None:
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        if self._process is not None:
            self._process.resume()
