"""Engines that are libraries: a worker in the peer's own environment, spoken to in lines of JSON.

to the worker     {"max_tokens": 64, "prompts": [[1, 2, …], …]}
from the worker   {"ready": true}, then for each job
                  {"i": 0, "tokens": 1} for every prompt and step, and {"done": true} at its end
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any, ClassVar

from benchmarks.engines import CLOCK
from benchmarks.peers.contract import Completion, EngineError
from benchmarks.peers.process_engine import ProcessEngine
from benchmarks.peers.processes import PeerProcess, usable_cores

_TIMEOUT = 900.0
"""Seconds for one job; then the worker is ended, and fails this and later jobs by name."""
WORKERS = Path(__file__).parent / "workers"


class WorkerEngine(ProcessEngine):
    """A worker process; times are taken here when its lines arrive, as for a server.

    Args:
        venv: the peer's virtual environment.
        model: the GGUF file.
        logs: folder for the worker's log.
    """

    script: ClassVar[str]

    def __init__(self, venv: Path, model: Path, logs: Path) -> None:
        super().__init__(logs)
        self._venv = venv
        self._model = model

    def missing(self) -> str | None:
        if (self._venv / "bin" / "python").exists():
            return None
        return f"not installed: python -m benchmarks.peers install {self.name}"

    def start(self) -> None:
        python = str(self._venv / "bin" / "python")
        cores = str(usable_cores())
        self._process = PeerProcess(
            [python, str(WORKERS / self.script), str(self._model), cores],
            self._logs / f"{self.name}.log",
            {"OMP_NUM_THREADS": cores, "PYTHONUNBUFFERED": "1"},
        )
        if not self._read().get("ready"):
            raise EngineError(f"{self.title} sent something else than ready")

    def complete(self, prompt: Sequence[int], max_tokens: int) -> Completion:
        return self.complete_together([prompt], max_tokens)[0]

    def complete_together(
        self, prompts: Sequence[Sequence[int]], max_tokens: int
    ) -> list[Completion]:
        assert self._process is not None
        job = json.dumps({"max_tokens": max_tokens, "prompts": [list(p) for p in prompts]})
        times: list[list[float]] = [[] for _ in prompts]
        counts = [0] * len(prompts)
        start = CLOCK.monotonic()
        try:
            self._process.stdin.write(job + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._process.failure(f"{self.title} has ended") from error
        watchdog = Timer(_TIMEOUT, self._process.kill)
        watchdog.start()
        try:
            while not (line := self._read()).get("done"):
                times[line["i"]].append(CLOCK.monotonic() - start)
                counts[line["i"]] += line["tokens"]
        finally:
            watchdog.cancel()
        if not all(times):
            raise EngineError(f"{self.title} left a prompt without an answer")
        return [Completion(tuple(t), n) for t, n in zip(times, counts, strict=True)]

    def _read(self) -> Mapping[str, Any]:
        """The next line of JSON; libraries that print to standard output are passed over."""
        assert self._process is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                message: Mapping[str, Any] = json.loads(line)
                if "error" in message:
                    raise EngineError(f"{self.title}: {message['error']}")
                return message
        raise self._process.failure(f"{self.title} ended")
