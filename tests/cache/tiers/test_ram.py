"""What only the RAM tier has: memory that keeps what nobody overwrites."""

from __future__ import annotations

from pathlib import Path

from ostinato.cache.retention import Retention
from tests.cache.tiers.tools import BLOCK_BYTES, TierMaker, chain, content, keys_of, promised, store


def test_what_was_promised_to_be_erased_leaves_no_bytes(tmp_path: Path) -> None:
    maker = TierMaker("ram", tmp_path)
    tier = maker.make()
    head, tail = chain("x", 2)
    until = maker.clock.time() + 60
    store(tier, [*promised([head], Retention(until, hard=True, ttl=60)), tail])
    maker.clock.advance(60)
    tier.expire()
    for name in ("y", "z"):  # in their places; what they are is never written
        blocks = chain(name, 1)
        job = tier.prepare_store(blocks)
        assert job is not None
        tier.complete_store(job, 1)
        found = bytearray(b"?" * BLOCK_BYTES)
        assert tier.read(tier.prepare_load(keys_of(blocks)), 0, memoryview(found))
        assert bytes(found) != content(head.identity.key)
        assert not found.strip(b"\0")
