"""Guards the record: exactly one for each generating request, however it ends, with what was asked for and what
the engine counted; and not a word of what was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from ostinato.api.app import create_app
from ostinato.api.billing import Billing
from ostinato.api.recorded_routes import dialect_of
from ostinato.api.recording import Recording
from ostinato.cache.report import CacheReport
from ostinato.cache.types import TenantId, Tier
from ostinato.clock import ManualClock
from ostinato.engine.outputs import FinishReason, RequestEnd
from ostinato.errors import EngineOverloadedError, EngineStoppedError, InvalidRequestError
from ostinato.ledger.record import LedgerRecord
from ostinato.ledger.writer import LedgerWriter
from ostinato.product.entries import CacheScope
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import house_rules
from tests.api.fake import CACHED_TOKENS, MODEL, PROMPT_TOKENS, WORDS, FakeBackend

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SECRET = "nobody-may-store-this"
SAID = [{"role": "user", "content": SECRET}]


class ListStore:
    """Keeps records in a list."""

    def __init__(self) -> None:
        self.records: list[LedgerRecord] = []

    def open(self) -> None:
        pass

    def write(self, records: Sequence[LedgerRecord]) -> int:
        self.records += records
        return len(records)

    def prune_before(self, moment: float, at_most: int) -> int:
        return 0

    def close(self) -> None:
        pass


class Recorded:
    """A client whose server's records can be looked at."""

    def __init__(self, backend: FakeBackend) -> None:
        self.clock = ManualClock()
        self._store = ListStore()
        self._writer = LedgerWriter(lambda: self._store, gather_seconds=0.0)
        self.app = create_app(backend, clock=self.clock, ledger=self._writer)
        self.client = TestClient(self.app, raise_server_exceptions=False)

    def post(self, path: str, body: Any, **headers: str) -> Any:
        return self.client.post(path, json=body, headers=headers)

    def records(self) -> list[LedgerRecord]:
        self._writer.start()
        self._writer.close()
        assert SECRET not in repr(self._store.records)
        return self._store.records

    def record(self) -> LedgerRecord:
        [record] = self.records()
        return record


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": SAID, **fields}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_leaves_one_record_of_all_that_is_known(stream: bool) -> None:
    server = Recorded(FakeBackend())
    response = server.post(
        CHAT,
        chat(stream=stream, n=2, prompt_cache_key="k", cache_ttl="5m"),
        **{"x-request-id": "me"},
    )
    assert response.status_code == 200
    record = server.record()
    found = asdict(record)
    assert found.pop("record_id")
    assert found.pop("response_id").startswith("chatcmpl-")
    assert found == {
        "time": 1000.0,
        "request_id": "me",
        "tenant": "default",
        "model": MODEL,
        "dialect": "openai_chat",
        "template_id": None,
        "template_version": None,
        "prompt_cache_key": "k",
        "retention": "5m",
        "house_rules": "local",
        "answer_cache": "none",
        "answers": 2,
        "tokens": {
            "input": PROMPT_TOKENS,
            "cached_by_tier": {Tier.DEVICE: CACHED_TOKENS},
            "read": CACHED_TOKENS,
            "write_short": 0,
            "write_long": 0,
            "output": 2 * len(WORDS),
            "reasoning": None,
        },
        "storage_token_seconds": 0,
        "ttft": 0.0,
        "e2e": 0.0,
        "status": 200,
        "finish_reason": "stop",
        "error": None,
    }


def test_the_record_agrees_with_the_usage_that_the_client_was_told() -> None:
    server = Recorded(FakeBackend())
    usage = server.post(TEXT, {"model": MODEL, "prompt": ["a", "b", "c"]}).json()["usage"]
    tokens = server.record().tokens
    assert tokens is not None
    assert tokens.input == usage["prompt_tokens"] == 3 * PROMPT_TOKENS
    assert tokens.read == usage["prompt_tokens_details"]["cached_tokens"]
    assert tokens.output == usage["completion_tokens"]


def test_a_template_is_named_in_metadata_or_in_headers_which_are_stronger() -> None:
    server = Recorded(FakeBackend())
    metadata = {"prompt_template_id": "greet", "prompt_template_version": 3, "text": SECRET}
    server.post(CHAT, chat(metadata=metadata))
    server.post(CHAT, chat(metadata=metadata), **{"x-prompt-template-id": "other"})
    server.post(CHAT, chat(), **{"x-prompt-template-id": "h", "x-prompt-template-version": "v"})
    server.post(CHAT, chat(metadata={"prompt_template_id": {"not": "a name"}}))
    named = [(record.template_id, record.template_version) for record in server.records()]
    assert named == [("greet", "3"), ("other", "3"), ("h", "v"), (None, None)]


def test_names_that_no_database_takes_are_made_harmless() -> None:
    server = Recorded(FakeBackend())
    server.post(CHAT, chat(prompt_cache_key="a\0b", metadata={"prompt_template_id": SECRET * 50}))
    record = server.record()
    assert record.prompt_cache_key == "a\ufffdb"
    assert record.template_id is not None
    assert record.template_id.startswith("sha256:")


@pytest.mark.parametrize(
    ("body", "status", "error", "model"),
    [
        (chat(model="nope"), 404, "model_not_found", "nope"),
        (chat(temperature=-1), 400, "invalid_value", MODEL),
        (chat(max_tokens="many"), 400, "invalid_type", None),
        ({"model": MODEL}, 400, "missing_required_parameter", None),
        ([1], 400, "invalid_type", None),
    ],
)
def test_a_refused_request_leaves_a_record_without_tokens(
    body: Any, status: int, error: str, model: str | None
) -> None:
    server = Recorded(FakeBackend())
    assert server.post(CHAT, body).status_code == status
    record = server.record()
    assert (record.status, record.error, record.model) == (status, error, model)
    assert record.tokens is not None
    assert record.tokens.total == 0
    assert record.finish_reason is None


def test_a_body_that_is_too_large_or_no_json_leaves_a_record() -> None:
    server = Recorded(FakeBackend())
    server.client.post(CHAT, content=b"{", headers={"content-type": "application/json"})
    server.client.post(CHAT, content=b"{}", headers={"content-length": str(10**9)})
    errors = [(record.status, record.error) for record in server.records()]
    assert errors == [(400, "invalid_json"), (413, "http_413")]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (EngineOverloadedError("full"), "engine_overloaded"),
        (EngineStoppedError("gone"), "engine_unavailable"),
        (InvalidRequestError(SECRET, code="kv_capacity_exceeded"), "kv_capacity_exceeded"),
        (RuntimeError(SECRET), "internal_error"),
    ],
)
def test_what_the_backend_refuses_is_named_and_not_quoted(refusal: Exception, error: str) -> None:
    server = Recorded(FakeBackend(refuse=refusal))
    response = server.post(TEXT, {"model": MODEL, "prompt": "a"})
    record = server.record()
    assert (record.status, record.error) == (response.status_code, error)


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_in_mid_answer_keeps_what_was_generated_until_then(stream: bool) -> None:
    server = Recorded(FakeBackend(failure=RuntimeError(SECRET), fail_after=2))
    server.post(CHAT, chat(stream=stream))
    record = server.record()
    assert record.error == "internal_error"
    assert record.status == (200 if stream else 500)
    assert record.tokens is not None
    assert (record.tokens.input, record.tokens.output) == (PROMPT_TOKENS, 2)


def test_an_answer_that_the_engine_broke_off_says_so() -> None:
    server = Recorded(FakeBackend(finish=FinishReason.ABORT))
    server.post(CHAT, chat())
    record = server.record()
    assert (record.error, record.finish_reason) == ("engine_unavailable", "abort")


@pytest.mark.parametrize(("path", "num_prompts"), [(CHAT, 1), (TEXT, 3)])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hang_after", [0, 2])
def test_a_client_that_goes_leaves_one_record_of_what_was_generated_until_then(
    path: str, num_prompts: int, stream: bool, hang_after: int
) -> None:
    backend = FakeBackend(hang_after=hang_after)
    server = Recorded(backend)
    body = chat(stream=stream) if path == CHAT else {"prompt": ["a", "b", "c"], "stream": stream}
    asyncio.run(leave_while_it_hangs(server, backend, path, {"model": MODEL, **body}))
    record = server.record()
    assert record.error == "client_disconnected"
    assert record.tokens is not None
    reached = num_prompts if hang_after else 0
    assert record.tokens.input == reached * PROMPT_TOKENS
    assert record.tokens.output == reached * hang_after


def test_who_leaves_before_the_first_token_is_billed_under_the_house_rules_too() -> None:
    """No entry was looked up, so nothing is read, however much the engine reused."""
    clock = ManualClock()
    store = ListStore()
    writer = LedgerWriter(lambda: store, gather_seconds=0.0)
    recording = Recording(writer, clock, "anthropic", "anthropic-512", "us", "r", 0.0, 0.0)
    cache = PromptCache(clock, b"s" * 32, house_rules("anthropic-512"))
    planned = cache.plan(CacheScope(TenantId("us"), MODEL), np.arange(1000, dtype=np.int32))
    meter = recording.meter()
    Billing(cache, [planned], [meter])
    meter.begin()
    recording.close(499)
    meter.end(RequestEnd(CacheReport(1000, {Tier.DEVICE: 900}), 1, FinishReason.ABORT))
    writer.start()
    writer.close()
    [record] = store.records
    assert record.tokens is not None
    assert (record.tokens.cached, record.tokens.read) == (900, 0)


async def leave_while_it_hangs(
    server: Recorded, backend: FakeBackend, path: str, body: dict[str, Any]
) -> None:
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    inbox.put_nowait(
        {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
    )

    async def send(message: Message) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    call = asyncio.create_task(server.app(scope, inbox.get, send))
    await backend.hanging.wait()
    while len(backend.requests) < len(body.get("prompt", [1])):
        await asyncio.sleep(0)
    for _ in range(20):  # the other prompts get as far
        await asyncio.sleep(0)
    inbox.put_nowait({"type": "http.disconnect"})
    await call


def test_what_generates_nothing_leaves_no_record() -> None:
    server = Recorded(FakeBackend())
    for path in ("/health", "/metrics", "/v1/models", CHAT, "/"):
        server.client.get(path)
    server.client.post("/v1/nothing", json={})
    assert server.records() == []


def test_a_stranger_leaves_no_record() -> None:
    from ostinato.api.tenants import key_ring

    store = ListStore()
    writer = LedgerWriter(lambda: store, gather_seconds=0.0)
    clock = ManualClock()
    keys = key_ring(None, "alpha=0123456789-0123456789", clock)
    app = create_app(FakeBackend(), clock=clock, keys=keys, ledger=writer)
    client = TestClient(app)
    assert client.post(CHAT, json=chat()).status_code == 401
    headers = {"authorization": "Bearer 0123456789-0123456789"}
    assert client.post(CHAT, json=chat(), headers=headers).status_code == 200
    writer.start()
    writer.close()
    assert [record.tenant for record in store.records] == ["alpha"]


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        (CHAT, "openai_chat"),
        (TEXT, "openai_completions"),
        ("/v1/responses", "openai_responses"),
        ("/v1/responses/input_tokens", None),
        ("/v1/messages", "anthropic"),
        ("/v1/messages/count_tokens", None),
        ("/v1/models/tiny:generateContent", "gemini"),
        ("/v1beta/models/tiny:streamGenerateContent", "gemini"),
        ("/v1beta/models/tiny:countTokens", None),
        ("/v1beta/cachedContents", "gemini_cache"),
    ],
)
def test_the_routes_that_generate_are_known_by_their_dialect(
    path: str, dialect: str | None
) -> None:
    assert dialect_of({"type": "http", "method": "POST", "path": path}) == dialect
    assert dialect_of({"type": "http", "method": "GET", "path": path}) is None


def test_the_scrape_shows_what_became_of_the_records() -> None:
    server = Recorded(FakeBackend())
    server.post(CHAT, chat())
    pending = server.client.get("/metrics").text
    assert f'ostinato:ledger_pending_records{{model_name="{MODEL}"}} 1.0' in pending
    server.records()
    written = server.client.get("/metrics").text
    labels = f'{{model_name="{MODEL}",result="written"}}'
    assert f"ostinato:ledger_records_total{labels} 1.0" in written
