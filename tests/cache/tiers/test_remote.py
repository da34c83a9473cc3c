"""What only the remote tier has: a network that fails, a server that others share, background questions."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import TierAnswer, TierFailure
from ostinato.cache.tiers.remote import ABSENT_SECONDS, MAX_ERRANDS, REPEAT_SECONDS, RemoteTier
from ostinato.errors import ConfigError
from tests.cache.tiers.tools import (
    TierMaker,
    ask,
    chain,
    content,
    keys_of,
    load,
    promised,
    store,
    stored,
)
from tests.redis_server import RedisServer, free_port, running_server


@pytest.fixture
def maker(redis_server: RedisServer, tmp_path: Path) -> Iterator[TierMaker]:
    made = TierMaker("remote", tmp_path, redis_server.url)
    yield made
    made.close()


def client(maker: TierMaker) -> Any:
    import redis

    return redis.Redis.from_url(maker.url)


def block_name(maker: TierMaker, key: bytes) -> bytes:
    return f"ostinato:{{{maker.format.name}}}:block:".encode() + key


def test_an_unknown_prompt_is_asked_for_once_and_in_the_background(maker: TierMaker) -> None:
    tier = maker.make()
    assert isinstance(tier, RemoteTier)
    keys = keys_of(chain("x", 3))
    assert tier.lookup_prefix(keys) == (0, TierAnswer.RETRY)
    assert tier.lookup_prefix(keys)[0] == 0
    tier.drain()
    assert tier.lookup_prefix(keys) == (0, TierAnswer.MISS)
    assert tier.lookup(keys[2]) is TierAnswer.MISS  # asked for with the first
    maker.clock.advance(ABSENT_SECONDS)
    assert tier.lookup(keys[0]) is TierAnswer.RETRY


def test_what_another_server_stored_is_found(maker: TierMaker) -> None:
    here, there = maker.make(), maker.make()
    blocks = chain("x", 3)
    assert not any(stored(here, keys_of(blocks)))
    store(there, blocks)
    maker.clock.advance(ABSENT_SECONDS)
    assert all(stored(here, keys_of(blocks)))
    assert load(here, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]


def test_what_the_server_lost_is_a_counted_miss(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 3)
    store(tier, blocks)
    client(maker).delete(block_name(maker, keys_of(blocks)[1]))
    assert len(load(tier, keys_of(blocks))) == 1
    assert tier.stats().failures == {TierFailure.VANISHED: 1}
    assert stored(tier, keys_of(blocks)) == [True, False, False]


@pytest.mark.parametrize(
    ("cut", "reason"), [(-1, TierFailure.SHORT_READ), (100, TierFailure.CORRUPT)]
)
def test_a_damaged_value_is_a_counted_miss(maker: TierMaker, cut: int, reason: TierFailure) -> None:
    tier = maker.make()
    blocks = chain("x", 1)
    store(tier, blocks)
    name = block_name(maker, keys_of(blocks)[0])
    client(maker).set(name, client(maker).get(name)[:cut])
    assert load(tier, keys_of(blocks)) == []
    assert tier.stats().failures == {reason: 1}


def test_evicted_and_erased_blocks_leave_the_server(maker: TierMaker) -> None:
    tier = maker.make(4)
    assert isinstance(tier, RemoteTier)
    for number in range(6):
        store(tier, chain(f"p{number}", 3))
        tier.drain()
        names = list(client(maker).scan_iter(block_name(maker, b"") + b"*"))
        assert len(names) == tier.stats().num_blocks <= 4
    tier.erase([key for number in range(6) for key in keys_of(chain(f"p{number}", 1))])
    tier.drain()
    assert not list(client(maker).scan_iter(block_name(maker, b"") + b"*"))


def test_a_server_with_a_small_bound_deletes_nothing_by_starting_or_asking(
    maker: TierMaker,
) -> None:
    prompts = [chain(f"p{number}", 3) for number in range(4)]
    large = maker.make(12)
    for blocks in prompts:
        store(large, blocks)
    small = maker.make(4)
    assert isinstance(small, RemoteTier)
    for blocks in prompts:
        assert all(stored(small, keys_of(blocks)))
        assert load(small, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]
    small.drain()
    assert small.stats().used_bytes <= small.stats().capacity_bytes
    assert len(list(client(maker).scan_iter(block_name(maker, b"") + b"*"))) == 12
    for blocks in prompts:
        assert load(large, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]


def test_the_server_forgets_a_hard_promise_by_itself(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 2)
    hard = Retention(maker.clock.time() + 60, hard=True, ttl=60)
    store(tier, promised(blocks[:1], hard))
    store(tier, [blocks[0], blocks[1]])
    first, second = (client(maker).ttl(block_name(maker, key)) for key in keys_of(blocks))
    assert 55 <= first <= 60
    assert second > 86_400


def test_a_server_that_goes_away_is_a_miss_and_that_comes_back_a_hit(
    redis_program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = chain("x", 2)
    with running_server(redis_program, tmp_path) as server:
        maker = TierMaker("remote", tmp_path, server.url)
        tier = maker.make()
        store(tier, blocks)
        server.stop()
        with caplog.at_level(logging.WARNING):
            assert load(tier, keys_of(blocks)) == []
            assert load(tier, keys_of(blocks)[:0]) == []
            assert tier.prepare_store(chain("y", 2)) is None
            assert ask(tier, keys_of(blocks)[0]) is TierAnswer.MISS
        assert tier.stats().failures == {TierFailure.DISCONNECTED: 1}
        assert len(caplog.records) == 1
        second = RedisServer(redis_program, tmp_path, server.port)
        maker.clock.advance(1.0)
        assert store(tier, blocks)
        assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]
        maker.close()
        second.stop()


def test_a_server_that_is_not_there_at_start_is_no_error_and_told_once(
    redis_program: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker = TierMaker("remote", tmp_path, f"redis://127.0.0.1:{free_port()}/0")
    with caplog.at_level(logging.WARNING):
        tier = maker.make()
        assert tier.prepare_store(chain("x", 1)) is None
        assert ask(tier, keys_of(chain("x", 1))[0]) is TierAnswer.MISS
        maker.clock.advance(1.0)
        assert ask(tier, keys_of(chain("x", 1))[0]) is TierAnswer.MISS
    assert tier.stats().failures == {TierFailure.DISCONNECTED: 1}
    assert len(caplog.records) == 1
    maker.close()


def test_a_full_server_refuses_and_loses_nothing(redis_program: str, tmp_path: Path) -> None:
    with running_server(redis_program, tmp_path, memory="1") as server:
        maker = TierMaker("remote", tmp_path, server.url)
        tier = maker.make()
        blocks = chain("x", 2)
        store(tier, blocks)
        assert not any(stored(tier, keys_of(blocks)))
        assert tier.stats().failures[TierFailure.NO_SPACE] >= 1
        maker.close()


def test_a_wrong_url_is_refused_with_an_example(redis_program: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="redis://HOST:6379/0"):
        TierMaker("remote", tmp_path, "http://nowhere").make()


def test_blocks_that_are_read_together_are_fetched_in_one_round_trip(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 3)
    store(tier, blocks)
    client(maker).delete(block_name(maker, keys_of(blocks)[2]))

    def num_calls() -> int:
        return sum(client(maker).info("commandstats")[f"cmdstat_{c}"]["calls"] for c in ["mget"])

    client(maker).mget([b"none"])  # so that there is a figure
    before = num_calls()
    job = tier.prepare_load(keys_of(blocks))
    tier.fetch(job, range(3))
    out = [bytearray(tier.block_bytes) for _ in blocks]
    read = [tier.read(job, at, memoryview(one)) for at, one in enumerate(out)]
    tier.complete_load(job, 2)
    assert num_calls() == before + 1
    assert read == [True, True, False]
    assert [bytes(one) for one in out[:2]] == [content(key) for key in keys_of(blocks)[:2]]
    assert tier.stats().failures == {TierFailure.VANISHED: 1}


def test_a_promise_that_the_server_was_not_there_to_hear_is_told_again(
    redis_program: str, tmp_path: Path
) -> None:
    blocks = chain("x", 2)
    with running_server(redis_program, tmp_path) as server:
        maker = TierMaker("remote", tmp_path, server.url)
        tier = maker.make()
        assert isinstance(tier, RemoteTier)
        store(tier, blocks)
        tier._store._client.connection_pool.disconnect()
        hard = Retention(maker.clock.time() + 60, hard=True, ttl=60)
        tier._store._resume_at = maker.clock.monotonic() + 30  # as after a failure
        tier.retain(keys_of(blocks), hard)
        tier.drain()
        assert client(maker).ttl(block_name(maker, keys_of(blocks)[0])) > 86_400
        maker.clock.advance(30)
        tier.expire()
        tier.drain()
        for key in keys_of(blocks):
            assert 0 < client(maker).ttl(block_name(maker, key)) <= 60
        maker.close()


def test_what_the_server_refused_to_promise_or_delete_is_told_again(
    maker: TierMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = maker.make()
    assert isinstance(tier, RemoteTier)
    kept, erased = chain("x", 1), chain("y", 1)
    for blocks in (kept, erased):
        store(tier, blocks)
    with monkeypatch.context() as patch:
        patch.setattr(tier._store, "describe", lambda records: False)
        patch.setattr(tier._store, "keep", lambda keys, lifetime: False)
        patch.setattr(tier._store, "delete", lambda keys: False)
        tier.retain(keys_of(kept), Retention(maker.clock.time() + 60, hard=True, ttl=60))
        tier.erase(keys_of(erased))
        tier.drain()
    tier.expire()
    tier.drain()
    assert client(maker).exists(block_name(maker, keys_of(erased)[0]))  # not again at once
    maker.clock.advance(REPEAT_SECONDS)
    tier.expire()
    tier.drain()
    assert not client(maker).exists(block_name(maker, keys_of(erased)[0]))
    assert client(maker).ttl(block_name(maker, keys_of(kept)[0])) <= 60


def test_a_block_that_is_stored_again_outlives_the_deletion_that_failed(
    maker: TierMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = maker.make()
    assert isinstance(tier, RemoteTier)
    blocks = chain("x", 1)
    store(tier, blocks)
    with monkeypatch.context() as patch:
        patch.setattr(tier._store, "delete", lambda keys: False)
        tier.erase(keys_of(blocks))
        tier.drain()
    store(tier, blocks)
    maker.clock.advance(REPEAT_SECONDS)
    tier.expire()
    tier.drain()
    assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]


def test_an_unexpected_error_in_the_background_is_counted_and_the_next_question_answered(
    maker: TierMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(keys: Any) -> Any:
        raise ValueError("a bug")

    tier = maker.make()
    assert isinstance(tier, RemoteTier)
    blocks = chain("x", 1)
    store(maker.make(), blocks)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(tier._store, "find", broken)
        assert ask(tier, keys_of(blocks)[0]) is TierAnswer.MISS
        maker.clock.advance(ABSENT_SECONDS)
        assert ask(tier, keys_of(blocks)[0]) is TierAnswer.MISS
    assert tier.stats().failures == {TierFailure.IO_ERROR: 2}
    assert len(caplog.records) == 1
    maker.clock.advance(ABSENT_SECONDS)
    assert all(stored(tier, keys_of(blocks)))


def test_questions_beyond_what_may_wait_are_counted_misses(maker: TierMaker) -> None:
    tier = maker.make()
    assert isinstance(tier, RemoteTier)
    gate = threading.Event()
    tier._errands.put(gate.wait)
    while not tier._errands.full():
        tier._errands.put(lambda: None)
    key = keys_of(chain("x", 1))[0]
    tier.lookup(key)
    assert tier.lookup(key) is TierAnswer.MISS
    assert tier.stats().failures == {TierFailure.DISCONNECTED: 1}
    assert tier._errands.qsize() <= MAX_ERRANDS
    gate.set()
    tier.drain()
    maker.clock.advance(ABSENT_SECONDS)
    assert ask(tier, key) is TierAnswer.MISS


def test_an_answer_with_keys_in_it_is_logged_as_text(
    maker: TierMaker, caplog: pytest.LogCaptureFixture
) -> None:
    tier = maker.make()
    blocks = chain("x", 1)
    client(maker).set(f"ostinato:{{{maker.format.name}}}:index", "no hash")
    with caplog.at_level(logging.WARNING):
        store(tier, blocks)
    assert tier.stats().failures[TierFailure.IO_ERROR] >= 1
    assert "WRONGTYPE" in caplog.text
    assert caplog.text.isascii()
    assert caplog.text.replace("\n", "").isprintable()
