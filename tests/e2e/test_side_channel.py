"""Guards tenants against each other's clock: how long a prompt takes must not tell whether another tenant has
used its prefix. The attacker of the published attacks measures the time to first token over HTTP, against a
real server, and only that.

Two halves, which are of no use without each other. Across tenants the attacker must not do better than a coin,
although the victim's prefix *is* cached. Within one tenant the same attacker, with the same prompts, on the
same server, must succeed nearly always: else the first half would also pass with a blunt attacker, or with
caching off.

How good an attacker is, is the AUC: the probability that a random unused prefix takes longer than a random used
one (Mann and Whitney's U over n × m). Used and unused are measured in pairs, in random order, so whatever else
the machine does hits both alike. For an attacker who learns nothing, AUC has mean ½ and standard deviation at
most √((2n + 1) / 12n²), which is 0.0167 for n = 600: 0.06 is 3.6 of them, and a false alarm comes once in 3,000
runs. Load that two measurements of a pair share makes the deviation smaller, never larger.

A busy machine blunts an attacker who is content with single measurements of a few milliseconds. This one is
not: it divides each time by that of a prefix which it knows to be new, measured at about the same moment, and
where that is not enough it takes the fastest of several prefixes that the victim has used, or has not. How many
it needs is found out within one tenant, and the same attacker goes across.
"""

from __future__ import annotations

import http.client
import json
import random
import string
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.e2e.server import Server, running_server
from tests.tiny import write_tiny_model

ATTACKER, VICTIM = "attacker-key-0123456789", "victim-key-0123456789"
KEYS = f"attacker={ATTACKER},victim={VICTIM}"
ACROSS_PAIRS = 600
WITHIN_PAIRS = 200
PRIMED_AT_ONCE = 10
CHARACTERS = 480
SHARP = 0.95
TOLERANCE = 0.06


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tiny model that is deep enough for a cold prompt to take a while; one thread, so that neighbours on
    the machine disturb less; a pool in which what was primed is still there when it is probed."""
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", num_layers=6)
    flags = ("--num-blocks", "4096", "--threads", "1", "--log-level", "warning")
    data_dir = tmp_path_factory.mktemp("data")
    with running_server(str(model), data_dir, *flags, OSTINATO_API_KEYS=KEYS) as running:
        yield running


class Client:
    """One tenant on one connection that is kept."""

    def __init__(self, server: Server, key: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._model = server.model

    def close(self) -> None:
        self._connection.close()

    def ttft(self, prompt: str) -> float:
        """Seconds from sending a prompt to the first byte of the answer's stream."""
        start = time.perf_counter()
        response = self._post(prompt, stream=True)
        first = response.read(1)
        seconds = time.perf_counter() - start
        assert first
        response.read()
        return seconds

    def cached_tokens(self, prompts: Sequence[str]) -> int:
        """Of a call with several prompts."""
        usage = json.loads(self._post(prompts).read())["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def _post(self, prompt: str | Sequence[str], **fields: object) -> http.client.HTTPResponse:
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0, **fields}
        self._connection.request("POST", "/v1/completions", json.dumps(body), self._headers)
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        return response


class Prompts:
    """Texts that nobody has sent before, and that differ from their first word on."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def several(self, count: int) -> list[str]:
        return [self._new() for _ in range(count)]

    def _new(self) -> str:
        letters = "".join(self.random.choices(string.ascii_lowercase, k=CHARACTERS))
        return " ".join(letters[at : at + 7] for at in range(0, CHARACTERS, 7))


def auc(unused: Sequence[float], used: Sequence[float]) -> float:
    """Probability that an unused prefix takes longer than a used one; ties count half."""
    slow, fast = np.array(unused)[:, None], np.array(used)[None, :]
    return float(np.mean(slow > fast) + np.mean(slow == fast) / 2)


def attack(attacker: Client, victim: Client, prompts: Prompts, pairs: int, probes: int) -> float:
    """AUC of an attacker who times what the victim has and has not used, each prefix once.

    A sample is the fastest of `probes` prefixes, over the fastest of as many new ones.
    """
    samples: dict[bool, list[float]] = {True: [], False: []}

    def fastest(probed: Sequence[str]) -> float:
        return min(map(attacker.ttft, probed))

    for _ in range(pairs // PRIMED_AT_ONCE):
        used = [prompts.several(probes) for _ in range(PRIMED_AT_ONCE)]
        cached = victim.cached_tokens([prompt for sample in used for prompt in sample])
        assert cached < probes * CHARACTERS / 10  # new, but for first letters by chance
        for sample in used:
            pair = [(True, sample), (False, prompts.several(probes))]
            prompts.random.shuffle(pair)
            control = fastest(prompts.several(probes))
            for was_used, probed in pair:
                samples[was_used].append(fastest(probed) / control)
    return auc(unused=samples[False], used=samples[True])


@pytest.mark.timeout(600)
def test_the_clock_tells_nothing_across_tenants_and_all_within_one(server: Server) -> None:
    prompts = Prompts(seed=20_260_131)
    with closing(Client(server, ATTACKER)) as attacker:
        attacker.ttft(*prompts.several(1))  # whatever is slow only once
        for probes in (1, 2, 4):
            within = attack(attacker, attacker, prompts, WITHIN_PAIRS, probes)
            if within > SHARP:
                break
        # Only now, since the server closes connections that idle for seconds.
        with closing(Client(server, VICTIM)) as victim:
            across = attack(attacker, victim, prompts, ACROSS_PAIRS, probes)
    print(f"AUC {within:.4f} within one tenant, {across:.4f} across two; fastest of {probes}")
    assert within > SHARP, f"the attacker is blunt: AUC {within:.3f} within one tenant"
    assert abs(across - 0.5) <= TOLERANCE, f"AUC {across:.3f} across tenants"
