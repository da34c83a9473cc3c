"""Engines behind the OpenAI completions API, streamed over loopback."""

from __future__ import annotations

import http.client
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Any, ClassVar
from urllib.parse import urlsplit

from benchmarks.engines import CLOCK
from benchmarks.peers.contract import Completion, EngineError
from benchmarks.peers.process_engine import ProcessEngine
from benchmarks.peers.processes import PeerProcess

_DATA = b"data: "
_DONE = b"[DONE]"
_TIMEOUT = 900.0
_POLL_SECONDS = 0.2


class HttpEngine(ProcessEngine):
    """A server process and a client that costs it little: one plain socket a request.

    Args:
        logs: folder for the server's log.
    """

    extra: ClassVar[Mapping[str, Any]] = {}
    """Fields of the body that only this server knows."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self._url = ""
        self._model = ""

    @abstractmethod
    def launch(self) -> tuple[PeerProcess, str]:
        """Start the process; returns it with its URL once it is ready."""

    def start(self) -> None:
        self._process, self._url = self.launch()
        self._model = self._served_model()

    def complete(self, prompt: Sequence[int], max_tokens: int) -> Completion:
        body = json.dumps(
            {
                "model": self._model,
                "prompt": list(prompt),
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self.extra,
            }
        ).encode()
        connection = self._connection()
        start = CLOCK.monotonic()
        try:
            connection.request(
                "POST", "/v1/completions", body, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != 200:
                raise EngineError(f"{self.title} answered {response.status}: {response.read()!r}")
            return read_stream(response, start)
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"{self.title} broke off: {error}") from error
        finally:
            connection.close()

    def wait_until_ready(self, process: PeerProcess, url: str, path: str, seconds: float) -> None:
        """Poll until `path` answers 200.

        Raises:
            EngineError: the process ended, or time is over.
        """
        deadline = CLOCK.monotonic() + seconds
        while CLOCK.monotonic() < deadline:
            if not process.is_running():
                raise process.failure(f"{self.title} did not start")
            if _answers(url, path):
                return
            sleep(_POLL_SECONDS)
        error = process.failure(f"{self.title} was not ready after {seconds:.0f} s")
        process.stop()
        raise error

    def log(self) -> Path:
        return self._logs / f"{self.name}.log"

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT)

    def _served_model(self) -> str:
        connection = self._connection()
        try:
            connection.request("GET", "/v1/models")
            return str(json.loads(connection.getresponse().read())["data"][0]["id"])
        finally:
            connection.close()


def read_stream(response: Any, start: float) -> Completion:
    """Read server-sent events to their end, noting when each piece arrived.

    Raises:
        EngineError: the stream held an error, or no piece at all.
    """
    times: list[float] = []
    usage: dict[str, Any] = {}
    for line in response:
        now = CLOCK.monotonic() - start
        if not line.startswith(_DATA) or line.startswith(_DATA + _DONE):
            continue
        chunk = json.loads(line[len(_DATA) :])
        if "error" in chunk:
            raise EngineError(str(chunk["error"]))
        usage = chunk.get("usage") or usage
        choices = chunk.get("choices") or ()
        # A last piece may only say why it ended; it carries no token.
        if any(choice.get("text") or not choice.get("finish_reason") for choice in choices):
            times.append(now)
    if not times:
        raise EngineError("the answer was empty")
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        tuple(times), usage.get("completion_tokens") or len(times), details.get("cached_tokens")
    )


def _answers(url: str, path: str) -> bool:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
