"""Guards cache objects: their life by the clock, whose they are, what they save, what storage costs."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from ostinato.api.app import create_app
from ostinato.api.gemini import cache_routes, cached_contents
from ostinato.api.gemini.cache_store import CacheStore
from ostinato.api.gemini.cached_contents import CachedContents, NewContent
from ostinato.api.gemini.prefill import prefill
from ostinato.api.gemini.times import format_time, parse_time
from ostinato.api.gemini.wire import PrefixFields
from ostinato.api.local import LocalBackend
from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.config_sections import CacheConfig
from ostinato.engine.build import build_engine
from ostinato.errors import ConfigError, RequestError
from ostinato.product.rules import HOUSE_RULES
from tests.api.gemini.conftest import Place, Records
from tests.api.gemini.test_generate import HELLO, TOOLS, refused

CACHES = "/v1beta/cachedContents"
BOOK = "the rain in the land of the red sun " * 4
SECRET = "seldom told"


def make(place: Place, **more: Any) -> dict[str, Any]:
    system = {"parts": [{"text": BOOK + SECRET}]}
    response = place.post(
        CACHES, {"model": "models/tiny", "systemInstruction": system, "ttl": "100s", **more}
    )
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


def ask(place: Place, name: str) -> Any:
    config = {"maxOutputTokens": 1}
    body = {"contents": HELLO, "cachedContent": name, "generationConfig": config}
    return place.post("/v1beta/models/tiny:generateContent", body)


def test_an_object_is_shown_without_what_is_in_it(place: Place) -> None:
    made = make(place, displayName="a book")
    assert set(made) == {
        *("name", "model", "displayName", "createTime", "updateTime", "expireTime", "usageMetadata")
    }
    assert made["expireTime"] == "2026-11-30T00:55:00.000000Z"
    assert made["usageMetadata"]["totalTokenCount"] > 20
    got = place.client.get(f"/v1/{made['name']}").json()
    assert got == made
    assert place.client.get(CACHES).json() == {"cachedContents": [made]}


def test_an_object_is_computed_when_it_is_made_and_read_when_it_is_used(place: Place) -> None:
    before = place.engine.stats().computed_tokens_total
    made = make(place)
    total = made["usageMetadata"]["totalTokenCount"]
    assert place.engine.stats().computed_tokens_total - before == total
    usage = ask(place, made["name"]).json()["usageMetadata"]
    assert usage["cachedContentTokenCount"] == total
    assert usage["cacheTokensDetails"] == [{"modality": "TEXT", "tokenCount": total}]


def test_an_object_with_contents_and_tools_is_an_exact_prefix(place: Place) -> None:
    contents = [
        {"role": "user", "parts": [{"text": BOOK}]},
        {"role": "model", "parts": [{"text": "so"}]},
    ]
    made = make(place, contents=contents, tools=TOOLS)
    usage = ask(place, made["name"]).json()["usageMetadata"]
    assert usage["cachedContentTokenCount"] == made["usageMetadata"]["totalTokenCount"]
    asked = {"model": "models/tiny", "contents": HELLO, "cachedContent": made["name"]}
    count = place.post("/v1/models/tiny:countTokens", {"generateContentRequest": asked}).json()
    assert count["totalTokens"] == usage["promptTokenCount"]
    assert count["cachedContentTokenCount"] == usage["cachedContentTokenCount"]


def test_an_object_whose_kv_was_evicted_is_computed_again_and_not_reported_as_read(
    place: Place,
) -> None:
    made = make(place)
    for number in range(30):
        text = f"{number} " + "abcdefgh " * 30
        place.generate(
            {
                "contents": [{"parts": [{"text": text}]}],
                "generationConfig": {"maxOutputTokens": 300, "temperature": 0.0},
            }
        )
    # Promises give way last, soonest deadline first: another, longer one takes the whole pool.
    place.post(
        CACHES,
        {
            "model": "models/tiny",
            "contents": [{"parts": [{"text": "xyzw" * 245}]}],
            "ttl": "9000s",
        },
    )
    usage = ask(place, made["name"]).json()["usageMetadata"]
    assert usage.get("cachedContentTokenCount", 0) < made["usageMetadata"]["totalTokenCount"]
    again = ask(place, made["name"]).json()["usageMetadata"]
    assert again["cachedContentTokenCount"] >= made["usageMetadata"]["totalTokenCount"]


def test_an_object_ends_at_its_time_and_use_does_not_lengthen_its_life(place: Place) -> None:
    name = make(place)["name"]
    place.clock.advance(99)
    assert ask(place, name).status_code == 200
    place.clock.advance(1)
    assert "no cache object" in refused(ask(place, name), 403, "PERMISSION_DENIED")
    refused(place.client.get(f"/v1/{name}"), 403, "PERMISSION_DENIED")
    refused(place.client.patch(f"/v1/{name}", json={"ttl": "9s"}), 403, "PERMISSION_DENIED")
    refused(place.client.delete(f"/v1/{name}"), 403, "PERMISSION_DENIED")
    assert place.client.get(CACHES).json() == {"cachedContents": []}


def test_a_life_begins_when_its_tokens_are_computed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*given: Any) -> None:
        await prefill(*given)
        place.clock.advance(60)

    monkeypatch.setattr(cache_routes, "prefill", slow)
    made = make(place, ttl="30s")
    assert lifetime(made, "createTime") == 30
    assert ask(place, made["name"]).status_code == 200
    end = format_time(place.clock.time() + 50)
    late = {"model": "models/tiny", "systemInstruction": {"parts": [{"text": BOOK}]}}
    refused(place.post(CACHES, {**late, "expireTime": end}), 400, "INVALID_ARGUMENT")


def lifetime(shown: dict[str, Any], since: str) -> float:
    return parse_time(shown["expireTime"], "") - parse_time(shown[since], "")


def test_what_has_expired_is_overwritten_on_disk(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "cached_contents.sqlite3"
    make(place)
    assert SECRET.encode() in file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    place.clock.advance(100)
    place.contents.sweep()
    assert SECRET.encode() not in b"".join(
        path.read_bytes() for path in tmp_path.glob("cached_contents*")
    )


def test_storage_is_billed_by_the_token_second_each_second_once(
    place: Place,
) -> None:
    made = make(place)
    tokens = made["usageMetadata"]["totalTokenCount"]
    place.clock.advance(40)
    longer = place.client.patch(f"/v1/{made['name']}", json={"ttl": "200s"}).json()
    assert longer["updateTime"] == "2026-11-30T00:54:00.000000Z"
    assert longer["expireTime"] == "2026-11-30T00:57:20.000000Z"
    place.clock.advance(1000)
    assert place.contents.sweep() == 1
    assert place.contents.sweep() == 0
    [last] = place.records.all
    assert last.storage_token_seconds == tokens * 200
    assert last.dialect == "gemini_cache"
    assert last.time == 1_796_000_240.0
    assert last.tokens is not None
    assert last.tokens.total == 0


def test_what_a_request_ends_or_moves_is_billed_to_that_request(
    place: Place,
) -> None:
    contents, clock = place.contents, place.clock
    new = NewContent(TenantId("a"), "tiny", None, PrefixFields())
    made = contents.add(new, 7, clock.time() + 100)
    clock.advance(10)
    changed, unpaid = contents.set_expiry(made, clock.time() + 5)
    assert unpaid == 70
    with pytest.raises(RequestError, match="no cache object"):
        contents.set_expiry(made, clock.time() + 5)
    clock.advance(3)
    gone, rest = contents.delete(TenantId("a"), f"cachedContents/{made.id}")
    assert (gone.id, rest) == (changed.id, 21)
    assert contents.sweep() == 0
    assert place.records.all == []


def test_nobody_sees_another_tenants_object(place: Place) -> None:
    contents, clock = place.contents, place.clock
    new = NewContent(TenantId("a"), "tiny", None, PrefixFields())
    made = contents.add(new, 7, clock.time() + 100)
    assert contents.find(TenantId("a"), made.id) == made
    for reach in (contents.find, contents.delete):
        with pytest.raises(RequestError, match="not yours"):
            reach(TenantId("b"), made.id)
    assert contents.page(TenantId("b"), None, None) == ([], None)


def test_pages_follow_each_other_without_gap_or_repetition(place: Place) -> None:
    names = []
    for _ in range(5):
        place.clock.advance(1)
        names.append(make(place)["name"])
    seen, token = [], ""
    while True:
        url = f"{CACHES}?pageSize=2" + (f"&pageToken={token}" if token else "")
        page = place.client.get(url).json()
        seen += [one["name"] for one in page["cachedContents"]]
        if "nextPageToken" not in page:
            break
        token = page["nextPageToken"]
    assert seen == names
    refused(place.client.get(f"{CACHES}?pageToken=nonsense"), 400, "INVALID_ARGUMENT")
    refused(place.client.get(f"{CACHES}?pageSize=-1"), 400, "INVALID_ARGUMENT")
    wrong = place.client.get(f"{CACHES}?pageSize=many")
    refused(wrong, 400, "INVALID_ARGUMENT")
    assert wrong.json()["error"]["message"] == "pageSize must be an integer, not the string 'many'"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"ttl": "5m"}, "ttl"),
        ({"ttl": "0s"}, "future"),
        ({"ttl": "99999999999s"}, "at most"),
        ({"expireTime": "2020-01-01T00:00:00Z"}, "future"),
        ({"expireTime": "soon"}, "expireTime"),
        ({"ttl": "5s", "expireTime": "2030-01-01T00:00:00Z"}, "not both"),
    ],
)
def test_a_life_that_cannot_be_is_refused_at_creation_and_at_a_patch(
    place: Place, body: dict[str, Any], named: str
) -> None:
    system = {"parts": [{"text": BOOK}]}
    created = place.post(CACHES, {"model": "tiny", "systemInstruction": system, **body})
    assert named in refused(created, 400, "INVALID_ARGUMENT")
    name = make(place)["name"]
    patched = place.client.patch(f"/v1beta/{name}", json=body)
    assert named in refused(patched, 400, "INVALID_ARGUMENT")


def test_only_the_expiry_can_be_patched(place: Place) -> None:
    url = f"/v1beta/{make(place)['name']}"
    refused(place.client.patch(url, json={}), 400, "INVALID_ARGUMENT")
    named = refused(place.client.patch(url, json={"displayName": "x"}), 400, "INVALID_ARGUMENT")
    assert "displayName" in named
    masked = place.client.patch(f"{url}?updateMask=ttl,model", json={"ttl": "9s"})
    assert "model" in refused(masked, 400, "INVALID_ARGUMENT")
    assert place.client.patch(f"{url}?updateMask=ttl", json={"ttl": "9s"}).status_code == 200


def test_an_object_excludes_what_belongs_into_it(place: Place) -> None:
    name = make(place)["name"]
    for field, value in (
        ("systemInstruction", {"parts": [{"text": "x"}]}),
        ("tools", TOOLS),
        ("toolConfig", {}),
    ):
        body = {"contents": HELLO, "cachedContent": name, field: value}
        response = place.post("/v1/models/tiny:generateContent", body)
        assert field in refused(response, 400, "INVALID_ARGUMENT")
    refused(ask(place, "cachedContents/nix"), 403, "PERMISSION_DENIED")


def test_an_object_that_is_too_small_is_refused_with_both_counts(place: Place) -> None:
    nothing = place.post(CACHES, {"model": "models/tiny"})
    assert "nothing to cache" in refused(nothing, 400, "INVALID_ARGUMENT")
    unknown = place.post(CACHES, {"model": "models/gpt", "contents": HELLO})
    refused(unknown, 404, "NOT_FOUND")


def test_a_tenant_has_no_more_objects_than_it_may(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_contents, "MAX_OBJECTS", 1)
    make(place)
    system = {"parts": [{"text": BOOK}]}
    second = place.post(CACHES, {"model": "tiny", "systemInstruction": system})
    assert "delete one" in refused(second, 429, "RESOURCE_EXHAUSTED")
    monkeypatch.setattr(cached_contents, "MAX_OBJECTS", 10)
    monkeypatch.setattr(cached_contents, "MAX_BYTES", 300)
    third = place.post(CACHES, {"model": "tiny", "systemInstruction": system})
    assert "300 bytes" in refused(third, 429, "RESOURCE_EXHAUSTED")


def test_what_ended_while_it_was_being_moved_stays_ended_and_is_billed_once() -> None:
    clock, records = ManualClock(0.0), Records()
    with contextlib.closing(CacheStore(None)) as store:
        contents = CachedContents(store, clock, records, "local")
        new = NewContent(TenantId("us"), "tiny", None, PrefixFields())
        made = contents.add(new, num_tokens=10, expires=5.0)
        clock.advance(6.0)  # what the longer life needs is computed
        with pytest.raises(RequestError, match="expired"):
            contents.set_expiry(made, 100.0)
        assert contents.sweep() == 1
    assert [record.storage_token_seconds for record in records.all] == [50]


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.sqlite3"
    CacheStore(file).close()
    database = sqlite3.connect(file)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(ConfigError, match="another version"):
        CacheStore(file)


@pytest.mark.parametrize("rules", ["anthropic-512", "openai-5.6", "deepseek"])
def test_a_read_is_never_more_than_what_was_reused_under_any_house_rules(
    place: Place, rules: str
) -> None:
    under = replace(HOUSE_RULES[rules], min_tokens=16)
    with place.under(under) as (client, ledger):
        system = {"parts": [{"text": BOOK}]}
        created = client.post(CACHES, json={"model": "tiny", "systemInstruction": system}).json()
        body = {"contents": HELLO, "cachedContent": created["name"]}
        url = "/v1beta/models/tiny:generateContent"
        config = {"maxOutputTokens": 1}
        usage = client.post(url, json={**body, "generationConfig": config}).json()["usageMetadata"]
        client.delete(f"/v1/{created['name']}")
        total = created["usageMetadata"]["totalTokenCount"]
        assert usage["cachedContentTokenCount"] == total - total % under.rounding
    made, used, deleted = (record.tokens for record in ledger.all)
    assert made is not None
    assert used is not None
    assert (made.input, made.cached) == (total, 0)
    assert used.read == usage["cachedContentTokenCount"] <= used.cached
    assert deleted is not None
    assert deleted.total == 0


def test_an_object_below_the_houses_minimum_is_refused_with_both_counts(place: Place) -> None:
    with place.under(HOUSE_RULES["gemini-2048"]) as (client, _):
        system = {"parts": [{"text": BOOK}]}
        small = client.post(CACHES, json={"model": "tiny", "systemInstruction": system})
        named = refused(small, 400, "INVALID_ARGUMENT")
        assert "min_total_token_count=2048" in named
        assert "total_token_count=" in named
        assert client.get(CACHES).json() == {"cachedContents": []}


def test_creating_moving_and_deleting_leave_records_that_pay_for_storage(place: Place) -> None:
    with place.under(HOUSE_RULES["local"]) as (client, ledger):
        system = {"parts": [{"text": BOOK}]}
        body = {"model": "tiny", "systemInstruction": system, "ttl": "100s"}
        made = client.post(CACHES, json=body).json()
        tokens = made["usageMetadata"]["totalTokenCount"]
        place.clock.advance(30)
        client.patch(f"/v1/{made['name']}", json={"ttl": "50s"})
        place.clock.advance(20)
        client.delete(f"/v1/{made['name']}")
    assert [record.storage_token_seconds for record in ledger.all] == [0, 30 * tokens, 20 * tokens]
    assert {record.dialect for record in ledger.all} == {"gemini_cache"}
    assert {record.model for record in ledger.all} == {"tiny"}


def test_without_prefix_caching_there_are_no_objects(tool_model: Path, tmp_path: Path) -> None:
    config = OstinatoConfig(
        model=str(tool_model),
        data_dir=tmp_path / "data",
        cache=CacheConfig(num_blocks=8, prefix_index="none"),
    )
    engine = build_engine(config, clock=ManualClock())
    engine.start()
    try:
        app = create_app(LocalBackend(engine), clock=ManualClock())
        with TestClient(app) as client:
            created = client.post(CACHES, json={"model": "tiny", "contents": HELLO})
        assert "--prefix-index" in refused(created, 400, "INVALID_ARGUMENT")
    finally:
        engine.stop()


def test_a_lone_surrogate_in_an_object_is_refused_and_nothing_is_kept(place: Place) -> None:
    tools = [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"title": "\ud800"}}]}]
    body = json.dumps({"model": "tiny", "contents": HELLO, "tools": tools})
    json_type = {"content-type": "application/json"}
    response = place.client.post(CACHES, content=body, headers=json_type)
    assert "Unicode" in refused(response, 400, "INVALID_ARGUMENT")
    assert place.client.get(CACHES).json() == {"cachedContents": []}
