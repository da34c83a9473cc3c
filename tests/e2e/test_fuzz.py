"""Guards every dialect against malformed requests, sent to a real server by the thousand: each is answered, or
refused with a 4xx in the dialect's own shape; never with a 5xx, a broken connection or silence. Afterwards the
server serves as before, holds nothing, and its log has no traceback."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.e2e.fuzz.run import CONNECTIONS, fuzz
from tests.e2e.fuzz.seeds import DIALECTS, seeds_of
from tests.e2e.server import Server, running_server
from tests.tool_template import write_tool_model

FEW = 300
MANY = 10_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that calls tools. Its context is short, so that no answer is long, whatever is asked for."""
    model = write_tool_model(tmp_path_factory.mktemp("models") / "tiny-tools")
    flags = ("--num-blocks", "512", "--max-model-len", "2048", "--disk-tier", "off")
    with running_server(str(model), tmp_path_factory.mktemp("data"), *flags) as running:
        yield running


def assert_unharmed(server: Server) -> None:
    """The server serves, holds nothing of what is gone, and had no failure of its own."""
    with server.client() as client:
        messages = [{"role": "user", "content": "still there?"}]
        answer = client.chat.completions.create(
            model=server.model, messages=messages, max_tokens=2, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
    server.scrape_until(lambda metrics: metrics.is_idle).assert_no_block_is_lost()
    log = "".join(server.log)
    assert "Traceback" not in log, log[-4000:]
    assert "ERROR" not in log, log[-4000:]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_requests_that_mutations_begin_with_are_sound(server: Server, dialect: str) -> None:
    refused = []
    for seed in seeds_of(dialect, server.model):
        answer = httpx2.request(
            seed.method, server.url + seed.path, json=seed.body, headers=seed.headers
        )
        if answer.status_code != 200:
            refused.append(f"{seed.path} {seed.body}: {answer.text}")
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_some_malformed_requests_are_answered_or_refused(server: Server, dialect: str) -> None:
    fuzz(server, dialect, FEW).assert_sound()
    assert_unharmed(server)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_ten_thousand_malformed_requests_are_answered_or_refused(
    server: Server, dialect: str
) -> None:
    outcome = fuzz(server, dialect, MANY)
    counts = ", ".join(f"{status}: {n}" for status, n in sorted(outcome.statuses.items()))
    print(f"\n{dialect}: {counts}; {CONNECTIONS} connections")
    outcome.assert_sound()
    assert_unharmed(server)
