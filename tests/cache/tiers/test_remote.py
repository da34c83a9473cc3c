"""What only the remote tier has: a network that fails, a server that others share, background questions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import TierAnswer, TierFailure
from ostinato.cache.tiers.remote import ABSENT_SECONDS, RemoteTier
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


def test_a_server_that_is_not_there_at_start_is_no_error(
    redis_program: str, tmp_path: Path
) -> None:
    maker = TierMaker("remote", tmp_path, f"redis://127.0.0.1:{free_port()}/0")
    tier = maker.make()
    assert tier.prepare_store(chain("x", 1)) is None
    assert ask(tier, keys_of(chain("x", 1))[0]) is TierAnswer.MISS
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
