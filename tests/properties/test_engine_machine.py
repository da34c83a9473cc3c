"""Guards the engine as a whole: any mix of arrivals, aborts and steps, in any pool, leaves no block behind,
breaks no invariant, starves nobody and gives every answer exactly the tokens it would have got alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.clock import Clock
from ostinato.engine.outputs import FinishReason
from ostinato.errors import CapacityError
from tests.engine.harness import (
    EOS,
    Collected,
    EchoStorage,
    Engine,
    collect,
    echo_logits,
    expected_tokens,
    request,
)

MAX_STEPS_TO_DRAIN = 5_000


class EngineMachine(RuleBasedStateMachine):
    """Prompts are drawn from few token ids, so that they share prefixes of every length."""

    names: Bundle[str] = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine | None = None
        self.prompts: dict[str, list[int]] = {}
        self.params: dict[str, dict[str, Any]] = {}
        self.tenants: dict[str, str] = {}
        self.answers: dict[tuple[str, int], Collected] = {}
        self.aborted: set[str] = set()

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.sampled_from([1, 4, 16]),
        prefix_index=st.sampled_from(["radix", "block_hash", "none"]),
        spare=st.integers(0, 32),
        long_prefill=st.none() | st.integers(1, 40),
        seats=st.integers(2, 8),
        watermark=st.sampled_from([0.0, 0.1, 0.5]),
    )
    def build(
        self,
        num_blocks: int,
        block_size: int,
        prefix_index: Any,
        spare: int,
        long_prefill: int | None,
        seats: int,
        watermark: float,
    ) -> None:
        self.engine = Engine(
            num_blocks=num_blocks,
            block_size=block_size,
            prefix_index=prefix_index,
            max_num_batched_tokens=seats + spare,
            long_prefill_tokens=long_prefill,
            max_num_seqs=seats,
            watermark=watermark,
            tiers=self.tiers_of,
        )

    tiers_of: ClassVar[Callable[[EchoStorage, Clock], TierHierarchy] | None] = None
    """What lies below the device."""

    @rule(
        target=names,
        prompt=st.lists(st.integers(1, 2), min_size=1, max_size=24),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 2),
        ignore_eos=st.booleans(),
        tenant=st.sampled_from(["a", "b"]),
    )
    def add(self, prompt: list[int], max_tokens: int, n: int, ignore_eos: bool, tenant: str) -> str:
        name = f"r{len(self.prompts)}"
        params = {"max_tokens": max_tokens, "n": n, "ignore_eos": ignore_eos}
        fits = len(prompt) + max_tokens <= self.engine.core.limits.pool_tokens
        try:
            self.engine.core.add_request(request(name, prompt, tenant=tenant, **params))
        except CapacityError:
            assert not fits
            self.aborted.add(name)
        else:
            assert fits
        self.prompts[name], self.params[name], self.tenants[name] = prompt, params, tenant
        return name

    @precondition(lambda self: self.engine is not None)
    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            collect(self.engine.step(), self.answers)

    @rule(name=consumes(names))
    def abort(self, name: str) -> None:
        collect(self.engine.core.abort(name), self.answers)
        if not self._finished(name):
            self.aborted.add(name)

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.engine.clock.advance(seconds)

    @invariant()
    def cache_and_counters_are_sound(self) -> None:
        if self.engine is None:
            return
        self.engine.core.check_integrity()
        stats = self.engine.core.stats()
        blocks = stats.blocks
        states = blocks.free + blocks.in_use + blocks.cached + blocks.in_transfer
        assert states == blocks.total
        assert 0 <= stats.used_slots <= stats.allocated_slots
        assert stats.cached_tokens_total <= stats.prompt_tokens_total
        assert stats.running <= self.engine.scheduler._config.max_num_seqs

    def teardown(self) -> None:
        if self.engine is None:
            return
        collect_all = self.engine.run(MAX_STEPS_TO_DRAIN)
        for key, answer in collect_all.items():
            collect(answer.deltas, self.answers)
            assert key in self.answers
        assert self.engine.core.take_failures() == []
        for name in self.prompts.keys() - self.aborted:
            assert self._finished(name)
            self._check_tokens(name)
        self.settle()
        self.engine.assert_idle()

    def settle(self) -> None:
        """Let what goes on in the background end."""

    def _finished(self, name: str) -> bool:
        indices = range(self.params[name]["n"])
        ends = [self.answers.get((name, index)) for index in indices]
        return all(
            end is not None and end.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            for end in ends
        )

    def _check_tokens(self, name: str) -> None:
        """Greedy answers are all the same and equal those of an engine without a past."""
        prompt, params = self.prompts[name], self.params[name]
        wanted = expected_tokens(prompt, params["max_tokens"], ignore_eos=params["ignore_eos"])
        for index in range(params["n"]):
            assert self.answers[name, index].tokens == wanted
            self._check_logits(name, index, [*prompt, *wanted[:-1]])

    def _check_logits(self, name: str, index: int, computed: list[int]) -> None:
        row = self.engine.spy.logits.get((name, index, len(computed)))
        if row is not None:  # the first token of all n answers comes from the leader's row
            np.testing.assert_array_equal(row, echo_logits(np.array(computed)))
        assert EOS not in computed or self.params[name]["ignore_eos"]


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
