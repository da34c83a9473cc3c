"""Guards the door: who has no key gets nothing, each key stands for one tenant and one role, and a change of
the keys takes effect without a restart. A key must not be readable from anything stored, said or logged."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from ostinato.api.app import create_app
from ostinato.api.key_file import KEY_PREFIX, KeyRole, add_key, read_keys, revoke_key
from ostinato.api.tenants import RELOAD_SECONDS, KeyRing, api_key_of, key_ring
from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.errors import ConfigError
from tests.api.fake import MODEL, FakeBackend
from tests.api.http import CHAT, refused

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "api-keys.jsonl"


@pytest.fixture
def acme(file: Path, clock: ManualClock) -> str:
    return add_key(file, ACME, KeyRole.TENANT, clock)[1]


@pytest.fixture
def globex(file: Path, clock: ManualClock) -> str:
    return add_key(file, GLOBEX, KeyRole.TENANT, clock)[1]


@pytest.fixture
def monitor(file: Path, clock: ManualClock) -> str:
    return add_key(file, TenantId("prometheus"), KeyRole.MONITOR, clock)[1]


@pytest.fixture
def keys(file: Path, acme: str, globex: str, monitor: str, clock: ManualClock) -> KeyRing:
    ring = key_ring(file, None, clock)
    assert ring is not None
    return ring


@pytest.fixture
def locked(backend: FakeBackend, keys: KeyRing, clock: ManualClock) -> Iterator[TestClient]:
    app = create_app(backend, clock=clock, keys=keys)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_decides_whose_request_it_is(
    locked: TestClient, backend: FakeBackend, acme: str, globex: str
) -> None:
    for key in (acme, globex, acme):
        assert locked.post(CHAT, json=BODY, headers=bearer(key)).status_code == 200
    assert [request.tenant for request in backend.requests] == [ACME, GLOBEX, ACME]


def test_nothing_that_a_client_writes_into_a_body_changes_its_tenant(
    locked: TestClient, backend: FakeBackend, acme: str
) -> None:
    body = {**BODY, "tenant": "globex", "user": "globex", "cache_salt": "globex"}
    assert locked.post(CHAT, json=body, headers=bearer(acme)).status_code == 200
    assert backend.requests[0].tenant == ACME
    assert backend.requests[0].cache_salt == "globex"


@pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
def test_the_scheme_is_not_case_sensitive(locked: TestClient, acme: str, scheme: str) -> None:
    headers = {"Authorization": f"{scheme} {acme}"}
    assert locked.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YWNtZTphY21l",
        "Bearer wrong",
        "Bearer sk-ost-" + "A" * 43,
        "Bearer \xff\xfe",
    ],
)
@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/v1/nothing", "/v1/models/tiny"])
def test_without_a_valid_key_there_is_nothing_but_a_401(
    locked: TestClient, header: str | None, path: str
) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    error = refused(locked.get(path, headers=headers), 401)
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_api_key"


def test_a_401_says_how_to_send_a_key_and_never_repeats_one(
    locked: TestClient, acme: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    response = locked.get("/v1/models")
    assert "Authorization: Bearer" in refused(response, 401)["message"]
    assert response.headers["www-authenticate"] == "Bearer"
    wrong = acme[:-1] + ("A" if acme[-1] != "A" else "B")
    assert wrong not in locked.get("/v1/models", headers=bearer(wrong)).text + caplog.text


def test_two_different_keys_in_one_request_are_none(
    locked: TestClient, acme: str, globex: str
) -> None:
    both = [("Authorization", f"Bearer {acme}"), ("Authorization", f"Bearer {globex}")]
    assert locked.get("/v1/models", headers=both).status_code == 401
    same = [("Authorization", f"Bearer {acme}")] * 2
    assert api_key_of(Headers(raw=[(b"authorization", v.encode()) for _, v in same])) == acme


def test_no_byte_of_a_stranger_s_body_is_read(locked: TestClient) -> None:
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was asked for")

    async def send(message: Any) -> None:
        statuses.append(message.get("status", 0))

    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [(b"content-length", b"1000000000")],
    }
    asyncio.run(locked.app(scope, receive, send))
    assert statuses == [401, 0]


def test_health_tells_a_stranger_whether_it_is_alive_and_no_more(
    locked: TestClient, backend: FakeBackend, acme: str, monitor: str
) -> None:
    assert locked.get("/health").json() == {"status": "ok"}
    assert locked.get("/health", headers=bearer("wrong")).json() == {"status": "ok"}
    for key in (acme, monitor):
        assert locked.get("/health", headers=bearer(key)).json()["limits"]["max_model_len"] == 2048
    backend.alive = False
    assert locked.get("/health").status_code == 503


def test_only_a_monitor_reads_metrics_and_it_reads_nothing_else(
    locked: TestClient, acme: str, monitor: str
) -> None:
    metrics = locked.get("/metrics", headers=bearer(monitor))
    assert metrics.status_code == 200
    for name in (ACME, GLOBEX, "prometheus"):
        assert name not in metrics.text
    assert refused(locked.get("/metrics", headers=bearer(acme)), 403)["code"] == (
        "insufficient_permissions"
    )
    assert refused(locked.get("/v1/models", headers=bearer(monitor)), 403)
    assert refused(locked.post(CHAT, json=BODY, headers=bearer(monitor)), 403)


def test_the_manual_is_open(locked: TestClient) -> None:
    assert locked.get("/docs").status_code == 200
    assert locked.get("/openapi.json").status_code == 200


def test_without_keys_any_key_will_do_and_everybody_is_one_tenant(
    client: TestClient, backend: FakeBackend
) -> None:
    for headers in ({}, bearer("none"), bearer("any")):
        assert client.post(CHAT, json=BODY, headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200
        assert "limits" in client.get("/health", headers=headers).json()
    assert {request.tenant for request in backend.requests} == {"default"}


def test_a_revoked_key_is_refused_and_a_new_one_taken_within_a_second(
    locked: TestClient, file: Path, clock: ManualClock, acme: str, globex: str
) -> None:
    assert locked.get("/v1/models", headers=bearer(acme)).status_code == 200
    revoke_key(file, read_keys(file).records[0].key_id)
    _, new = add_key(file, TenantId("initech"), KeyRole.TENANT, clock)
    assert locked.get("/v1/models", headers=bearer(acme)).status_code == 200
    clock.advance(RELOAD_SECONDS)
    assert locked.get("/v1/models", headers=bearer(acme)).status_code == 401
    assert locked.get("/v1/models", headers=bearer(new)).status_code == 200
    assert locked.get("/v1/models", headers=bearer(globex)).status_code == 200


def test_a_reload_on_demand_does_not_wait(
    keys: KeyRing, file: Path, clock: ManualClock, acme: str
) -> None:
    revoke_key(file, read_keys(file).records[0].key_id)
    keys.reload()
    assert keys.authenticate(acme) is None


@pytest.mark.parametrize("damage", ["not json\n", '{"format": "other"}\n', None])
def test_a_file_that_is_damaged_or_gone_leaves_the_keys_as_they_were(
    keys: KeyRing,
    file: Path,
    clock: ManualClock,
    acme: str,
    damage: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = file.read_text()
    file.unlink() if damage is None else file.write_text(damage)
    for _ in range(3):
        clock.advance(RELOAD_SECONDS)
        caller = keys.authenticate(acme)
        assert caller is not None
        assert caller.tenant == ACME
    assert caplog.text.count("the API keys stay as they were") == 1
    file.write_text(whole)
    revoke_key(file, read_keys(file).records[0].key_id)
    clock.advance(RELOAD_SECONDS)
    assert keys.authenticate(acme) is None


def test_revoking_the_last_key_locks_everybody_out(file: Path, clock: ManualClock) -> None:
    record, key = add_key(file, ACME, KeyRole.TENANT, clock)
    ring = key_ring(file, None, clock)
    assert ring is not None
    revoke_key(file, record.key_id)
    clock.advance(RELOAD_SECONDS)
    assert ring.authenticate(key) is None


def test_the_file_holds_no_key_and_only_its_owner_may_read_it(file: Path, acme: str) -> None:
    text = file.read_text()
    assert acme.startswith(KEY_PREFIX)
    assert len(acme) >= 50
    assert acme not in text
    assert acme.removeprefix(KEY_PREFIX) not in text
    assert file.stat().st_mode & 0o777 == 0o600


def test_equal_keys_have_different_digests_in_different_files(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_urlsafe", lambda count: "A" * 43)
    first, second = (
        add_key(tmp_path / name, ACME, KeyRole.TENANT, clock)[0] for name in ("one", "two")
    )
    assert first.digest != second.digest


def test_a_file_that_others_may_read_is_warned_about(
    file: Path, acme: str, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(0o644)
    key_ring(file, None, clock)
    assert f"chmod 600 {file}" in caplog.text


def test_keys_from_the_environment_and_the_file_hold_side_by_side(
    file: Path, acme: str, clock: ManualClock
) -> None:
    given = "from-environment-0123456789"
    ring = key_ring(file, f"globex={given}, third=another-key-0123456789", clock)
    assert ring is not None
    callers = [ring.authenticate(key) for key in (acme, given, "another-key-0123456789", "no")]
    assert [caller and caller.tenant for caller in callers] == ["acme", "globex", "third", None]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("a-key-alone-0123456789", "has no '='"),
        ("acme=tiny-key", "could be guessed"),
        ("bad name=0123456789-0123456789", "cannot be the name of a tenant"),
        ("", "holds no key"),
    ],
)
def test_keys_that_cannot_be_are_refused_without_being_told(
    given: str, said: str, clock: ManualClock
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        key_ring(None, given, clock)
    key = given.partition("=")[2]
    assert not key or key not in str(caught.value)


def test_no_file_and_no_variable_mean_no_keys(clock: ManualClock) -> None:
    assert key_ring(None, None, clock) is None


def test_a_missing_file_is_told_with_the_command_that_makes_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    with pytest.raises(ConfigError, match="ostinato keys add TENANT --api-keys"):
        key_ring(tmp_path / "none", None, clock)


@pytest.mark.parametrize("name", ["", "~server", "*", "a b", "-a", "a" * 65, "ä", "a\n"])
def test_a_tenant_s_name_is_plain(file: Path, name: str, clock: ManualClock) -> None:
    line = {"id": "k_1", "tenant": name, "role": "tenant", "digest": "00", "created": ""}
    add_key(file, ACME, KeyRole.TENANT, clock)
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match="line 3"):
        read_keys(file)


def test_revoking_what_is_not_there_says_so(file: Path, acme: str) -> None:
    with pytest.raises(ConfigError, match="ostinato keys ls"):
        revoke_key(file, "k_none")


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [("5m", 300), ("1h", 3600), (90, 90), (1.5, 1.5), ("7d", 604_800), (None, None)],
)
def test_a_lifetime_reaches_the_backend_in_seconds(
    client: TestClient, backend: FakeBackend, ttl: object, seconds: float | None
) -> None:
    assert client.post(CHAT, json={**BODY, "cache_ttl": ttl}).status_code == 200
    prompt = {"model": MODEL, "prompt": "hi", "cache_ttl": ttl}
    assert client.post("/v1/completions", json=prompt).status_code == 200
    wanted = () if seconds is None else ((10, seconds),)
    assert [request.retain for request in backend.requests] == [wanted, wanted]


@pytest.mark.parametrize(
    "ttl", ["", "soon", "5 minutes", "-1", 0, -5, True, [], {}, "8d", 1e30, "1e3"]
)
def test_a_lifetime_that_is_none_is_a_400_that_names_the_field(
    client: TestClient, ttl: object
) -> None:
    error = refused(client.post(CHAT, json={**BODY, "cache_ttl": ttl}), 400)
    assert error["param"] == "cache_ttl"
    assert "cache_ttl" in error["message"]
