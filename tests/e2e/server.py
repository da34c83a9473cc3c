"""A real server process on a free loopback port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

ENDLESS_CONTEXT = 131_072
ENDLESS: Mapping[str, object] = {"max_tokens": 130_000, "ignore_eos": True}
"""An answer that takes far longer than any test, however fast the kernels are."""

_READY = re.compile(r"ready on (http://\S+)")
_STOP_SECONDS = 30
_SCRAPE_PAUSE_SECONDS = 0.02
_SCRAPE_SECONDS = 120.0


@dataclass(slots=True)
class Server:
    """A running ``ostinato serve``.

    Attributes:
        url: without ``/v1``.
        model: the name it serves.
        log: what it has printed so far.
        process: for signals.
        api_key: of the first tenant of OSTINATO_API_KEYS, if it asks for keys.
    """

    url: str
    model: str
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    api_key: str = "none"

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0)

    def async_client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0)

    def metrics(self) -> Metrics:
        text = httpx2.get(f"{self.url}/metrics").raise_for_status().text
        values = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = {key: v for key, v in sample.labels.items() if key != "model_name"}
                name = sample.name.removeprefix("ostinato:")
                values[name, frozenset(labels.items())] = sample.value
        return Metrics(values)

    def scrape_until(self, condition: Callable[[Metrics], bool]) -> Metrics:
        """Scrape until the condition holds, with pauses in which the server gets on."""
        deadline = time.monotonic() + _SCRAPE_SECONDS
        metrics = self.metrics()
        while not condition(metrics) and time.monotonic() < deadline:
            time.sleep(_SCRAPE_PAUSE_SECONDS)
            metrics = self.metrics()
        if condition(metrics):
            return metrics
        raise AssertionError(f"the condition never held; last: {metrics}")


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape."""

    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]

    @property
    def is_idle(self) -> bool:
        return self("num_requests_running") == 0 and self("num_requests_waiting") == 0

    def assert_no_block_is_lost(self) -> None:
        """To be called when idle."""
        states = ("free", "cached", "in_use", "in_transfer")
        blocks = {state: self("kv_blocks", state=state) for state in states}
        assert blocks["in_use"] == blocks["in_transfer"] == 0
        assert blocks["free"] + blocks["cached"] == self("kv_blocks_capacity")
        assert self("integrity_errors_total") == 0


@contextmanager
def running_server(model: str, data_dir: Path, *flags: str, **environment: str) -> Iterator[Server]:
    """Start ``ostinato serve``, wait until it is ready, stop it in the end."""
    command = [sys.executable, "-m", "ostinato.cli", "serve", "--port", "0"]
    command += ["--model", model, "--data-dir", str(data_dir), *flags]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OSTINATO_")}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**inherited, **environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
    )
    assert process.stdout is not None
    try:
        log: list[str] = []
        url = None
        for line in process.stdout:
            log.append(line)
            if ready := _READY.search(line):
                url = ready[1]
                break
        assert url is not None, "the server did not start:\n" + "".join(log)
        reader = threading.Thread(target=log.extend, args=(process.stdout,), daemon=True)
        reader.start()
        api_key = environment.get("OSTINATO_API_KEYS", "=none").split(",")[0].partition("=")[2]
        headers = {"authorization": f"Bearer {api_key}"}
        [served] = httpx2.get(f"{url}/v1/models", headers=headers).json()["data"]
        yield Server(url, served["id"], process, log, api_key)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
