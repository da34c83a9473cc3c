"""Sends mutants over connections that stay open, several at once, and judges what comes back."""

from __future__ import annotations

import http.client
import random
import threading
import urllib.parse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.e2e.fuzz.answers import Answer, check_answer
from tests.e2e.fuzz.mutations import Mutant, mutate
from tests.e2e.fuzz.seeds import seeds_of
from tests.e2e.server import Server

CONNECTIONS = 4
TIMEOUT_SECONDS = 60.0
_SHOWN = 10


@dataclass(slots=True)
class Outcome:
    """What came of many mutants.

    Attributes:
        statuses: how often each came.
        failures: what should not have happened, with the number of the mutant.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def assert_sound(self) -> None:
        """Show the first failures."""
        shown = "\n\n".join(sorted(self.failures)[:_SHOWN])
        assert not self.failures, f"{len(self.failures)} failures\n{shown}"


def fuzz(server: Server, dialect: str, count: int, seed: str = "ostinato") -> Outcome:
    """Mutants 0 to `count` of a dialect. Each is a function of its number and of `seed`, whoever sends it."""
    outcome, lock = Outcome(), threading.Lock()
    seeds = seeds_of(dialect, server.model)

    def work(first: int) -> None:
        connection = _Connection(server.url)
        try:
            for number in range(first, count, CONNECTIONS):
                rng = random.Random(f"{seed}/{dialect}/{number}")
                mutant = mutate(rng.choice(seeds), rng)
                problem = _try(connection, dialect, mutant, outcome, lock)
                if problem is not None:
                    with lock:
                        outcome.failures.append(f"{number:05}: {problem}\n{_shown(mutant)}")
        finally:
            connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(work, range(CONNECTIONS)))
    return outcome


def _try(
    connection: _Connection,
    dialect: str,
    mutant: Mutant,
    outcome: Outcome,
    lock: threading.Lock,
) -> str | None:
    """What is wrong with the answer to a mutant, if anything is."""
    try:
        answer = connection.send(mutant)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return f"no answer: {error!r}"
    with lock:
        outcome.statuses[answer.status] += 1
    try:
        check_answer(dialect, answer)
    except (AssertionError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{error!r} in {answer.status} {answer.body[:600]!r}"
    return None


def _shown(mutant: Mutant) -> str:
    return f"{mutant.method} {mutant.path[:200]} {dict(mutant.headers)} {mutant.body[:1500]!r}"


class _Connection:
    """One connection that the server must not close unless it says so."""

    def __init__(self, url: str) -> None:
        address = urllib.parse.urlsplit(url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(
            address.hostname, address.port, timeout=TIMEOUT_SECONDS
        )

    def send(self, mutant: Mutant) -> Answer:
        """Send it and read the whole answer."""
        self._connection.putrequest(mutant.method, mutant.path)
        for name, value in mutant.headers.items():
            self._connection.putheader(name, value)
        self._connection.putheader("content-length", str(len(mutant.body)))
        self._connection.endheaders(mutant.body)
        response = self._connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, response.read())

    def close(self) -> None:
        self._connection.close()
