"""Guards what the engine does with promises and budgets: they reach the pool and every tier, from the settings
and from requests; deadlines are kept in every step and while nobody asks for anything.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostinato.cache.layout import KVDtype
from ostinato.cache.tiers.policy import WritePolicy
from ostinato.cache.types import TenantId, Tier
from ostinato.config import OstinatoConfig
from ostinato.engine import async_engine
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.core import EngineCore
from tests.engine.harness import Engine, request, tokens
from tests.engine.test_loading import BLOCK, PROMPT, Tiered
from tests.engine.test_tiers import settle
from tests.engine.tiny_engine import load_tiny, tiny_core

MINUTES = 300.0


def promise(tiered: Tiered, name: str, prompt: list[int] = PROMPT) -> None:
    asked = request(name, prompt, max_tokens=1)
    tiered.engine.core.add_request(replace(asked, retain=((len(prompt), MINUTES),)))
    tiered.engine.run()


def entries(tier: Any) -> list[Any]:
    return list(tier._directory.entries())


@pytest.mark.parametrize("policy", list(WritePolicy))
def test_a_promise_is_kept_by_the_copies_that_were_under_way_when_it_was_made(
    policy: WritePolicy,
) -> None:
    tiered = Tiered(policy=policy)
    promise(tiered, "promised")
    tiered.drain()
    if policy is WritePolicy.WRITE_BACK:
        tiered.lose_device()
        tiered.engine.core._manager.tiers._stores.write_all_down()  # type: ignore[union-attr]
        tiered.drain()
    for tier in tiered.tiers.values():
        promised = [one.retention for one in entries(tier) if one.depth < len(PROMPT) // BLOCK]
        assert len(promised) == len(PROMPT) // BLOCK
        assert {one and one.until for one in promised} == {tiered.clock.time() + MINUTES}


@pytest.mark.parametrize("source", [Tier.RAM, Tier.DISK])
def test_a_hit_in_a_tier_renews_the_promise_there_too(source: Tier) -> None:
    tiered = Tiered()
    promise(tiered, "promised")
    tiered.drain()
    tiered.lose_device()
    if source is Tier.DISK:
        tiered.lose(Tier.RAM)
    tiered.clock.advance(MINUTES - 1)
    tiered.serve("again", PROMPT, max_tokens=1)
    tiered.lose_device()
    tiered.clock.advance(MINUTES - 1)
    found = {one.retention.holds(tiered.clock.time()) for one in entries(tiered.tiers[source])}
    assert found == {True}


def deepest_promised(tier: Any) -> Any:
    return max((one for one in entries(tier) if one.retention), key=lambda one: one.depth)


def test_a_hit_on_the_device_renews_the_promise_in_every_tier_at_once() -> None:
    """A process that is killed then has no older deadline; the contract suite has the blocks before."""
    tiered = Tiered()
    promise(tiered, "promised")
    tiered.drain()
    tiered.clock.advance(MINUTES - 1)
    tiered.serve("again", PROMPT, max_tokens=1)
    for tier in tiered.tiers.values():
        assert deepest_promised(tier).retention.until == tiered.clock.time() + MINUTES


def test_hits_in_quick_succession_are_told_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    tiered = Tiered()
    promise(tiered, "promised")
    tiered.drain()
    disk = tiered.tiers[Tier.DISK]
    told: list[list[Any]] = []
    retain = disk.retain
    monkeypatch.setattr(disk, "retain", lambda keys, what: (told.append(keys), retain(keys, what)))
    tiered.clock.advance(10.0)
    for number in range(20):
        tiered.serve(f"hit {number}", PROMPT, max_tokens=1)
        tiered.clock.advance(0.125)
    # At 10 s, and then whenever a whole second has passed.
    assert [len(keys) for keys in told] == [1, 1, 1]
    left = deepest_promised(disk).retention.until - tiered.clock.time()
    assert MINUTES - 1.125 <= left <= MINUTES


@pytest.mark.parametrize("source", [Tier.RAM, Tier.DISK])
def test_a_hit_in_a_tier_renews_the_promise_in_every_tier_at_once(source: Tier) -> None:
    tiered = Tiered()
    promise(tiered, "promised")
    tiered.drain()
    tiered.lose_device()
    if source is Tier.DISK:
        tiered.lose(Tier.RAM)
    tiered.clock.advance(MINUTES - 1)
    tiered.serve("again", PROMPT, max_tokens=1)
    disk = deepest_promised(tiered.tiers[Tier.DISK])
    assert disk.retention.until == tiered.clock.time() + MINUTES


def test_a_step_that_settles_a_transfer_also_erases_what_is_due() -> None:
    tiered = Tiered(expire="hard")
    promise(tiered, "promised")
    tiered.drain()
    promise(tiered, "other", tokens(16, 5))
    assert tiered.transfers.queue
    tiered.clock.advance(MINUTES + 1)
    tiered.transfers.run()
    tiered.engine.step()
    assert tiered.engine.core.stats().blocks.cached == 0
    assert not [one for tier in tiered.tiers.values() for one in entries(tier)]


def test_an_idle_engine_erases_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_engine, "IDLE_CHECK_SECONDS", 0.001)
    monkeypatch.setattr(async_engine, "IDLE_EXPIRE_SECONDS", 0.001)
    harness = Engine(expire="hard")

    async def scene() -> None:
        served = AsyncEngine(harness.core, OstinatoConfig())
        served.start()
        try:
            asked = replace(request("a", tokens(16), max_tokens=1), retain=((16, MINUTES),))
            async for _ in served.generate(asked):
                pass
            assert served.stats().blocks.cached > 0
            harness.clock.advance(MINUTES + 1)  # type: ignore[attr-defined]
            while served.stats().blocks.cached:
                await asyncio.sleep(0)
        finally:
            await asyncio.to_thread(served.stop)

    asyncio.run(asyncio.wait_for(scene(), 60.0))


def play(core: EngineCore, name: str, tenant: str, seed: int, ttl: float | None) -> None:
    asked = request(name, tokens(64, seed), tenant=tenant, max_tokens=1)
    retain = () if ttl is None else ((64, ttl),)
    core.add_request(replace(asked, retain=retain))
    while core.has_work:
        core.step()


def test_budgets_in_the_settings_bound_pool_and_tiers_whatever_a_tenant_promises_itself(
    tmp_path: Path,
) -> None:
    model = load_tiny(tmp_path)
    block = model.config.kv_spec(KVDtype.FP32, 16).bytes_per_block
    core = tiny_core(
        model,
        tmp_path,
        cache={"num_blocks": 24},
        tiers={"ram_bytes": 40 * block},
        tenants={"limits": {"greedy": {"num_blocks": 8, "ram_bytes": 12 * block}}},
    )
    for seed in range(30):
        play(core, f"greedy {seed}", "greedy", seed, MINUTES)
        play(core, f"plain {seed}", "plain", 100 + seed, None)
        settle(core)  # a bound on what is stored, not on what is on its way
    held = [b for b in core._manager._pool.blocks if b.entry and b.tenant == TenantId("greedy")]
    assert len(held) <= 8 + 4  # and what was stored last
    tiers = core.stats().tiers
    assert tiers is not None
    assert tiers.tiers[0].used_bytes == tiers.tiers[0].capacity_bytes
    assert tiers.tiers[0].tenant_bytes["greedy"] <= (12 + 4) * block  # type: ignore[index]
    core.close()


@pytest.mark.parametrize("tiers", [False, True])
def test_a_tenant_cannot_take_the_cache_from_another_by_promises(
    tmp_path: Path, tiers: bool
) -> None:
    model = load_tiny(tmp_path)
    block = model.config.kv_spec(KVDtype.FP32, 16).bytes_per_block
    below = {"ram_bytes": 32 * block} if tiers else {}
    core = tiny_core(model, tmp_path, cache={"num_blocks": 32}, tiers=below)
    for seed in range(20):
        play(core, f"acme {seed}", "acme", seed, 7 * 86_400.0)
    for turn in range(2):
        for seed in (100, 101):
            play(core, f"bob {turn} {seed}", "bob", seed, None)
            play(core, f"acme {turn} {seed}", "acme", 50 * turn + seed, 7 * 86_400.0)
            if tiers:
                settle(core)  # what is being copied down cannot give way
    found = core.stats().cached_tokens_total
    for seed in (100, 101):
        play(core, f"bob again {seed}", "bob", seed, None)
    assert core.stats().cached_tokens_total - found >= 2 * 48
    core.close()
