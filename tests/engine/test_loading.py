"""Guards the way of a request through the tiers: what it waits for, what it reads, and that neither a failed
load, nor an abort, nor a full pool loses a block, a token or the truth of its report.
"""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.cache.tiers.carrier import RawCarrier
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.tiers.policy import LEAST_PATIENCE_SECONDS, PrefetchStop, WritePolicy
from ostinato.cache.types import MissReason, Tier
from ostinato.clock import Clock, ManualClock
from ostinato.engine.request import RequestStatus
from tests.cache.tiers.manual import FaultyTier, ManualTransfers
from tests.engine.harness import Collected, EchoStorage, Engine, collect, expected_tokens, tokens

BLOCK = 4


class Tiered:
    """An engine over a RAM and a disk tier whose transfers run when told.

    Args:
        ram: blocks of the RAM tier; 0 for none.
        disk: blocks of the disk tier; 0 for none.
    """

    def __init__(
        self,
        ram: int = 64,
        disk: int = 64,
        *,
        policy: WritePolicy = WritePolicy.WRITE_THROUGH,
        prefetch: PrefetchStop = PrefetchStop.BEST_EFFORT,
        **options: Any,
    ) -> None:
        self.transfers = ManualTransfers()
        self.clock = ManualClock()

        def below(storage: EchoStorage, clock: Clock) -> TierHierarchy:
            size = storage.slots[0].nbytes
            levels = ((Tier.RAM, ram), (Tier.DISK, disk))
            self.tiers = {tier: FaultyTier(tier, size, n, clock) for tier, n in levels if n}
            return TierHierarchy(
                list(self.tiers.values()),
                RawCarrier(storage, size),
                self.transfers,
                block_size=BLOCK,
                write_policy=policy,
                prefetch_stop=prefetch,
                clock=clock,
            )

        self.engine = Engine(block_size=BLOCK, clock=self.clock, tiers=below, **options)

    def serve(self, name: str, prompt: list[int], max_tokens: int = 2) -> Collected:
        """From arrival to end, all transfers after it included."""
        self.engine.add(name, prompt, max_tokens=max_tokens, ignore_eos=True)
        answer = self.engine.run()[name, 0]
        assert answer.tokens == expected_tokens(prompt, max_tokens, ignore_eos=True)
        self.drain()
        return answer

    def run_together(self) -> dict[tuple[str, int], Collected]:
        """Until nothing is left to do; transfers keep up with the steps."""
        answers: dict[tuple[str, int], Collected] = {}
        while self.engine.core.has_work:
            self.transfers.run()
            collect(self.engine.step(), answers)
        return answers

    def drain(self) -> None:
        self.engine.step()
        while self.transfers.queue:
            self.transfers.run()
            self.engine.step()

    def lose_device(self) -> None:
        assert self.engine.manager.reset()

    def lose(self, tier: Tier) -> None:
        """Everything in one tier."""
        directory = self.tiers[tier]._directory
        directory.erase([entry.key for entry in directory.entries()])

    def status(self, name: str) -> RequestStatus:
        groups = self.engine.core._groups
        return groups[name].sequences[0].status


PROMPT = tokens(19, 1)  # four blocks and three tokens


def read_by(answer: Collected) -> dict[Tier, int]:
    report = answer.last.report
    assert report is not None
    return dict(report.read_by_tier)


@pytest.mark.parametrize("policy", list(WritePolicy))
@pytest.mark.parametrize("prefix_index", ["radix", "block_hash"])
def test_what_the_device_evicted_comes_back_from_ram(
    policy: WritePolicy, prefix_index: str
) -> None:
    tiered = Tiered(policy=policy, prefix_index=prefix_index)
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    again = tiered.serve("again", PROMPT)
    assert read_by(again) == {Tier.RAM: 16}
    report = again.last.report
    assert report is not None
    assert report.miss_reason is MissReason.BELOW_BLOCK
    assert report.load is not None
    assert dict(report.load.found) == {Tier.RAM: 16}
    tiered.engine.assert_idle()


def test_what_neither_device_nor_ram_has_comes_from_disk_and_fills_ram() -> None:
    tiered = Tiered()
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.lose(Tier.RAM)
    assert read_by(tiered.serve("again", PROMPT)) == {Tier.DISK: 16}
    tiered.lose_device()
    assert read_by(tiered.serve("third", PROMPT)) == {Tier.RAM: 16}


def test_without_a_ram_tier_disk_serves_the_device() -> None:
    for policy in WritePolicy:
        tiered = Tiered(ram=0, policy=policy)
        tiered.serve("first", PROMPT)
        tiered.lose_device()
        tiered.drain()
        assert read_by(tiered.serve("again", PROMPT)) == {Tier.DISK: 16}


def test_the_device_and_two_tiers_share_one_prompt_in_the_report() -> None:
    tiered = Tiered(policy=WritePolicy.WRITE_THROUGH)
    tiered.serve("first", PROMPT)
    entries = sorted(tiered.tiers[Tier.RAM]._directory.entries(), key=lambda one: one.depth)
    tiered.lose_device()
    tiered.serve("head", PROMPT[:5], max_tokens=1)  # brings the first block back
    tiered.tiers[Tier.RAM].erase([entries[2].key])
    assert read_by(tiered.serve("again", PROMPT)) == {Tier.DEVICE: 4, Tier.RAM: 4, Tier.DISK: 8}


def test_a_whole_block_of_a_tier_is_preferred_to_a_part_of_it_on_the_device() -> None:
    tiered = Tiered()
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.serve(
        "branch", [*PROMPT[:6], 63, 63, 63, 63]
    )  # two of block 1's tokens are on the device
    again = tiered.serve("again", PROMPT)
    assert read_by(again) == {Tier.DEVICE: 4, Tier.RAM: 12}
    assert again.last.report is not None
    assert again.last.report.copied_tokens == 0


def test_others_run_on_while_a_request_waits_for_its_load() -> None:
    tiered = Tiered()
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.engine.add("busy", tokens(6, 9), max_tokens=8, ignore_eos=True)
    tiered.engine.step()
    tiered.engine.add("loads", PROMPT, max_tokens=2, ignore_eos=True)
    for _ in range(3):
        assert {delta.request_id for delta in tiered.engine.step()} == {"busy"}
        assert tiered.status("loads") is RequestStatus.WAITING_FOR_LOAD
        assert tiered.engine.core.stats().loading == 1
    tiered.transfers.run()
    tiered.engine.step()
    assert tiered.status("loads") is RequestStatus.RUNNING
    answers = tiered.engine.run()
    assert answers["busy", 0].tokens[-1:] == expected_tokens(tokens(6, 9), 8, ignore_eos=True)[-1:]


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_failed_load_costs_a_recomputation_of_exactly_the_lost_part(bad: int) -> None:
    tiered = Tiered(ram=0)
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.tiers[Tier.DISK].fails_read = lambda at: at == bad
    before = tiered.engine.core.stats().computed_tokens_total
    again = tiered.serve("again", PROMPT, max_tokens=1)
    report = again.last.report
    assert report is not None
    assert report.cached_tokens == bad * BLOCK
    assert report.miss_reason is MissReason.LOAD_FAILED
    assert tiered.engine.core.stats().computed_tokens_total - before == 19 - bad * BLOCK
    stats = tiered.engine.core.stats().tiers
    assert stats is not None
    assert stats.loads.failed_blocks[Tier.DISK] == 4 - bad
    tiered.engine.assert_idle()


def test_a_request_that_is_broken_off_while_it_loads_leaves_its_blocks_to_the_transfer() -> None:
    tiered = Tiered()
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.engine.add("gone", PROMPT, max_tokens=2)
    tiered.engine.step()
    tiered.engine.core.abort("gone")
    tiered.engine.core.check_integrity()
    assert tiered.engine.core.stats().blocks.in_transfer == 4
    assert not tiered.engine.core.has_work
    tiered.transfers.run()
    tiered.engine.step()
    tiered.engine.assert_idle()
    assert tiered.tiers[Tier.RAM].stats().num_blocks == 5  # a cancelled read is no damaged block
    assert read_by(tiered.serve("again", PROMPT)) == {Tier.RAM: 16}


def test_two_requests_for_one_prefix_load_it_once() -> None:
    tiered = Tiered()
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.engine.add("a", PROMPT, max_tokens=1)
    tiered.engine.add("b", PROMPT, max_tokens=1)
    answers = tiered.engine.run()
    assert read_by(answers["a", 0]) == {Tier.RAM: 16}
    assert read_by(answers["b", 0]) == {Tier.DEVICE: 16}


def test_a_request_that_waits_for_memory_starts_when_a_transfer_gives_blocks_back() -> None:
    tiered = Tiered(num_blocks=6, ram=64, disk=0)
    tiered.engine.add("first", PROMPT, max_tokens=1)
    tiered.engine.step()  # ended; its blocks are being copied
    assert tiered.engine.core.stats().blocks.in_transfer > 0
    tiered.engine.add("next", tokens(20, 5), max_tokens=1)
    assert tiered.engine.step() == []
    assert tiered.engine.core.is_stalled
    answers = tiered.engine.run()
    assert answers["next", 0].tokens == expected_tokens(tokens(20, 5), 1)


def test_computing_is_chosen_where_loading_is_expected_to_take_longer() -> None:
    tiered = Tiered(ram=0)
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiers = tiered.engine.manager.tiers
    assert tiers is not None
    tiers.observe_prefill(100_000, 1.0)
    tiers._costs.load[Tier.DISK].observe(2**40, 2**30)
    again = tiered.serve("again", PROMPT)
    report = again.last.report
    assert report is not None
    assert read_by(again) == {}
    assert report.miss_reason is MissReason.RECOMPUTED
    assert report.load is not None
    assert report.load.compute_seconds == pytest.approx(16 / 100_000)
    assert report.load.load_seconds > 0.05
    stats = tiers.stats()
    assert (stats.loads.recomputes, stats.loads.loads) == (1, 0)


def test_a_waiting_request_is_prefetched_into_ram() -> None:
    tiered = Tiered(max_num_seqs=1)
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.lose(Tier.RAM)
    tiered.engine.add("busy", tokens(6, 9), max_tokens=8, ignore_eos=True)
    tiered.engine.step()
    tiered.engine.add("waits", PROMPT, max_tokens=1)
    tiered.engine.step()
    tiered.transfers.run()
    answers = tiered.engine.run()
    assert read_by(answers["waits", 0]) == {Tier.RAM: 16}
    stats = tiered.engine.core.stats().tiers
    assert stats is not None
    assert stats.loads.prefetched_blocks == 4


@pytest.mark.parametrize(
    ("stop", "seconds", "starts"),
    [
        (PrefetchStop.BEST_EFFORT, 0.0, True),
        (PrefetchStop.TIMEOUT, 1.9, False),
        (PrefetchStop.TIMEOUT, 2.1, True),
        (PrefetchStop.WAIT, 1000.0, False),
    ],
)
def test_how_long_a_request_waits_for_its_prefetch_is_a_rule(
    stop: PrefetchStop, seconds: float, starts: bool
) -> None:
    tiered = Tiered(max_num_seqs=1, prefetch=stop)
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiered.lose(Tier.RAM)
    tiered.engine.add("busy", tokens(6, 9), max_tokens=2, ignore_eos=True)
    tiered.engine.step()
    tiered.engine.add("waits", PROMPT, max_tokens=1)
    tiered.engine.step()  # "busy" ends; the prefetch has begun
    tiered.clock.advance(seconds)
    tiered.engine.step()
    expected = RequestStatus.WAITING_FOR_LOAD if starts else RequestStatus.WAITING
    assert tiered.status("waits") is expected
    answers = tiered.engine.run()
    assert read_by(answers["waits", 0]) == {Tier.DISK if starts else Tier.RAM: 16}


@pytest.mark.parametrize("policy", list(WritePolicy))
def test_a_pool_for_three_serves_sixty_four_conversations_over_its_tiers(
    policy: WritePolicy,
) -> None:
    tiered = Tiered(ram=40, disk=400, policy=policy, num_blocks=18)
    prompts = {f"r{seed}": tokens(14 + seed % 7, seed) for seed in range(64)}
    for turn in range(2):
        for name, prompt in prompts.items():
            tiered.engine.add(f"{name}/{turn}", prompt, max_tokens=3, ignore_eos=True)
        answers = tiered.run_together()
        for name, prompt in prompts.items():
            wanted = expected_tokens(prompt, 3, ignore_eos=True)
            assert answers[f"{name}/{turn}", 0].tokens == wanted
    tiered.drain()
    tiered.engine.assert_idle()
    stats = tiered.engine.core.stats()
    assert stats.tiers is not None
    assert stats.tiers.loads.loaded_blocks[Tier.DISK] > 0
    assert stats.cached_tokens_total > 0.3 * stats.prompt_tokens_total


def test_k_v_of_a_request_that_failed_is_erased_from_every_tier() -> None:
    tiered = Tiered()

    def fail(scheduled: Any) -> None:
        if any(part.request.request_id == "bad" and part.start for part in scheduled):
            raise RuntimeError("broken")

    tiered.engine.spy.before = fail
    tiered.engine.add("bad", PROMPT, max_tokens=4, ignore_eos=True)
    tiered.engine.step()
    tiered.drain()
    assert [one.request_id for one in tiered.engine.core.take_failures()] == ["bad"]
    tiered.drain()
    assert all(tier.stats().num_blocks == 0 for tier in tiered.tiers.values())


@pytest.mark.parametrize("tier", [Tier.RAM, Tier.DISK])
def test_a_load_that_does_not_get_on_is_stopped_and_the_prompt_is_computed(tier: Tier) -> None:
    tiered = Tiered()
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    if tier is Tier.DISK:
        tiered.lose(Tier.RAM)
    tiered.engine.add("again", PROMPT, max_tokens=2, ignore_eos=True)
    tiered.engine.step()
    assert tiered.status("again") is RequestStatus.WAITING_FOR_LOAD
    tiered.clock.advance(LEAST_PATIENCE_SECONDS / 2)
    tiered.engine.step()
    tiers = tiered.engine.manager.tiers
    assert tiers is not None
    assert tiers.stats().loads.stopped_loads == 0
    tiered.clock.advance(LEAST_PATIENCE_SECONDS)
    tiered.engine.step()
    answer = tiered.run_together()["again", 0]
    assert answer.tokens == expected_tokens(PROMPT, 2, ignore_eos=True)
    assert read_by(answer) == {}
    assert answer.last.report is not None
    assert answer.last.report.miss_reason is MissReason.LOAD_FAILED
    loads = tiers.stats().loads
    assert (loads.stopped_loads, sum(loads.failed_blocks.values())) == (1, 0)
    tiered.drain()
    tiered.engine.assert_idle()


def test_what_arrived_of_a_load_before_it_was_stopped_is_used() -> None:
    tiered = Tiered()
    tiered.serve("first", PROMPT)
    tiered.lose_device()
    tiers = tiered.engine.manager.tiers
    assert tiers is not None

    def slow(at: int) -> bool:
        if at == 2:
            tiered.clock.advance(LEAST_PATIENCE_SECONDS)
            tiers.poll()
        return False

    tiered.tiers[Tier.RAM].fails_read = slow
    answer = tiered.serve("again", PROMPT)
    assert read_by(answer) == {Tier.RAM: 12}
    assert tiers.stats().loads.stopped_loads == 1
    assert tiers.stats().tiers[0].num_blocks >= 4  # nothing of it is damaged
    tiered.engine.assert_idle()
