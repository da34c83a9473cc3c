"""The tier machine over a real server that loses and damages blocks, taken up by a new process at any step.

Guards against what `test_tier_machine` guards against, and blocks that come back after they were deleted.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from ostinato.cache.tiers.base import TierBlock
from ostinato.cache.tiers.record import RECORD_BYTES
from ostinato.cache.types import BlockHash
from tests.cache.tiers.tools import BLOCK_BYTES, settle
from tests.properties.test_tier_machine import ALL, TierMachine
from tests.properties.tier_model import TierModel
from tests.redis_server import RedisServer


class RemoteMachine(TierMachine):
    """Also loses and damages blocks on the server, and starts anew over what is there."""

    kind = "remote"

    def _readable(self) -> set[BlockHash]:
        for key in ALL:
            self.tier.lookup(key)
        settle(self.tier)
        return super()._readable()

    @precondition(lambda self: self.model.ready)
    @rule(data=st.data())
    def lose_a_block(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.ready)))
        settle(self.tier)
        self._server().delete(self._block_name(key))
        self.model.copies[key].damaged = True

    @precondition(lambda self: self.model.ready)
    @rule(data=st.data(), byte=st.integers(0, BLOCK_BYTES + RECORD_BYTES - 1))
    def damage_a_block(self, data: st.DataObject, byte: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model.ready)))
        settle(self.tier)
        value = bytearray(self._server().get(self._block_name(key)) or b"")
        if value:
            value[byte] ^= 0x20
            self._server().set(self._block_name(key), bytes(value))
            self.model.copies[key].damaged = True

    @rule()
    def start_anew(self) -> None:
        """Whoever dies leaves what he has told the server."""
        settle(self.tier)
        model = self.model
        sound = {key for key, copy in model.copies.items() if copy.ready and not copy.damaged}
        expected = {key for key in sound if model.ancestors(key) <= sound}
        self.tier = self.maker.make(model.capacity)
        self.stores, self.loads = [], []
        found = self._readable()
        assert expected <= found <= model.written
        self.model = TierModel(model.capacity, dict(ALL), written=model.written)
        for copy in self.model.reserve(
            [TierBlock(ALL[key].identity, self.tier.retention(key)) for key in found]
        ):
            copy.users, copy.ready, copy.damaged = 0, True, copy.key not in sound

    def _block_name(self, key: BlockHash) -> bytes:
        return f"ostinato:{{{self.maker.format.name}}}:block:".encode() + key

    def _server(self) -> Any:
        return self.tier._store._client  # type: ignore[attr-defined]


def test_a_remote_tier_agrees_with_the_model(redis_server: RedisServer) -> None:
    machine = type("OnServer", (RemoteMachine,), {"url": redis_server.url})
    run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=25))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_remote_tier_agrees_with_the_model_at_length(redis_server: RedisServer) -> None:
    machine = type("OnServer", (RemoteMachine,), {"url": redis_server.url})
    run_state_machine_as_test(machine, settings=settings(max_examples=200, stateful_step_count=40))
