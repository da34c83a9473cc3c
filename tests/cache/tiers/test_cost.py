"""Guards load-or-recompute: the figures are those that were measured, the cheaper way is taken, and a tier that
was slow once gets another chance."""

from __future__ import annotations

import pytest

from ostinato.cache.tiers.cost import (
    OVERHEAD_SECONDS,
    PROBE_BLOCKS,
    PROBE_EVERY,
    LoadCosts,
    RateMeter,
    TierRun,
)
from ostinato.cache.tiers.policy import LEAST_PATIENCE_SECONDS, is_too_slow, load_patience
from ostinato.cache.types import BlockHash, Tier

BLOCK_TOKENS, BLOCK_BYTES = 16, 1_000_000


def run(tier: Tier, count: int) -> TierRun:
    return TierRun(tier, tuple(BlockHash(bytes([n])) for n in range(count)))


def costs(prefill: float | None, **rates: float) -> LoadCosts:
    made = LoadCosts(BLOCK_TOKENS, BLOCK_BYTES)
    if prefill is not None:
        made.prefill.observe(1e9 * prefill, 1e9)
    for name, rate in rates.items():
        made.load[Tier(name)].observe(1e12 * rate, 1e12)
    return made


def test_a_rate_is_its_prior_until_much_was_measured() -> None:
    meter = RateMeter(1600.0, prior=10.0)
    assert meter.rate == 10.0
    meter.observe(10.0, 0.0)  # took no time: says nothing
    assert meter.rate == 10.0
    meter.observe(1.0, 1.0)  # one slow little thing
    assert meter.rate == pytest.approx(101 / 11, rel=0.01)
    for _ in range(100):
        meter.observe(1600.0, 1600.0)
    assert meter.rate == pytest.approx(1.0, rel=1e-3)
    assert RateMeter(100.0).rate is None


def test_old_measurements_fade_with_what_was_measured_since() -> None:
    meter = RateMeter(100.0)
    meter.observe(1e6, 1e6)
    meter.observe(100.0, 10.0)
    first = meter.rate
    for _ in range(50):
        meter.observe(100.0, 10.0)
    assert first is not None
    assert meter.rate is not None
    assert 1.0 < first < 10.0
    assert meter.rate == pytest.approx(10.0, rel=1e-3)


def test_without_a_measured_prefill_everything_is_loaded() -> None:
    runs = [run(Tier.RAM, 2), run(Tier.DISK, 3)]
    chosen, decision = costs(None).decide(runs, {})
    assert list(chosen) == runs
    assert decision.load_tokens == 5 * BLOCK_TOKENS
    assert decision.compute_seconds is None


def test_the_cheaper_way_is_taken_and_the_figures_are_told() -> None:
    runs = [run(Tier.DISK, 10)]
    fast, figures = costs(prefill=100.0, disk=1e9).decide(runs, {})
    assert list(fast) == runs
    assert figures.load_seconds == pytest.approx(10 * BLOCK_BYTES / 1e9 + OVERHEAD_SECONDS)
    assert figures.compute_seconds == pytest.approx(10 * BLOCK_TOKENS / 100.0)
    slow, figures = costs(prefill=100.0, disk=1e6).decide(runs, {})
    assert list(slow) == []
    assert figures.found == {Tier.DISK: 160}
    assert figures.load_tokens == 0


def test_what_waits_before_a_load_counts() -> None:
    made = costs(prefill=100.0, disk=1e7)
    runs = [run(Tier.DISK, 10)]
    assert list(made.decide(runs, {})[0]) == runs
    assert list(made.decide(runs, {Tier.DISK: 10**8})[0]) == []


def test_only_the_runs_that_gain_are_loaded() -> None:
    made = costs(prefill=100.0, ram=1e9, remote=1e5)
    runs = [run(Tier.RAM, 4), run(Tier.REMOTE, 4)]
    assert list(made.decide(runs, {})[0]) == runs[:1]


def test_a_slow_run_is_loaded_for_the_sake_of_a_fast_one_behind_it() -> None:
    made = costs(prefill=100.0, ram=1e9, disk=6e6)
    runs = [run(Tier.DISK, 1), run(Tier.RAM, 50)]
    assert list(made.decide(runs, {})[0]) == runs


def test_a_gain_below_the_overhead_is_none() -> None:
    made = costs(prefill=1e9, ram=1e12)
    assert list(made.decide([run(Tier.RAM, 1)], {})[0]) == []


def test_after_many_refusals_one_load_is_made_to_measure_again() -> None:
    made = costs(prefill=100.0, disk=1e5)
    runs = [run(Tier.DISK, 10)]
    for _ in range(PROBE_EVERY):
        chosen, decision = made.decide(runs, {})
        assert not chosen
        assert not decision.is_probe
        made.accept(decision)
    chosen, decision = made.decide(runs, {})
    assert list(chosen) == [TierRun(Tier.DISK, runs[0].keys[:PROBE_BLOCKS])]
    assert decision.load_tokens == PROBE_BLOCKS * BLOCK_TOKENS
    assert decision.is_probe
    made.accept(decision)
    assert not made.decide(runs, {})[0]


def test_a_probe_counts_enough_to_be_believed_and_names_what_its_few_blocks_should_take() -> None:
    made = costs(prefill=100.0, disk=1e5)
    for _ in range(PROBE_EVERY):
        made.accept(made.decide([run(Tier.DISK, 10)], {})[1])
    _, decision = made.decide([run(Tier.DISK, 10)], {})
    assert decision.chosen_seconds == pytest.approx(PROBE_BLOCKS * 10.0, rel=0.01)
    assert decision.saved_seconds == pytest.approx(PROBE_BLOCKS * BLOCK_TOKENS / 100.0)
    meter = RateMeter(1e6)
    meter.observe(1e5, 1e5)
    meter.observe(10.0, 1e-6)
    assert meter.rate == pytest.approx(1.0, rel=1e-3)
    meter.observe_sample(10.0, 1e-6)
    assert meter.rate is not None
    assert meter.rate > 10.0


def test_the_choice_of_a_leading_part_is_expected_to_take_what_that_part_takes() -> None:
    made = costs(prefill=100.0, ram=1e9, remote=1e5)
    _, decision = made.decide([run(Tier.RAM, 4), run(Tier.REMOTE, 4)], {})
    assert decision.chosen_seconds == pytest.approx(4e-3 + OVERHEAD_SECONDS)
    assert decision.load_seconds > 40.0


@pytest.mark.parametrize(
    ("load", "compute", "patience"),
    [(1.0, 10.0, 2.0), (1.0, 1.5, 1.5), (1.0, None, 2.0), (0.001, 0.01, LEAST_PATIENCE_SECONDS)],
)
def test_a_load_may_take_twice_what_was_expected_or_as_long_as_computing(
    load: float, compute: float | None, patience: float
) -> None:
    assert load_patience(load, compute) == patience


@pytest.mark.parametrize(
    ("seconds", "arrived", "compute", "stopped"),
    [
        (1.9, 0.0, 10.0, False),  # not late yet
        (2.0, 0.0, 10.0, True),  # nothing came
        (4.0, 0.5, 10.0, False),  # half of it in less time than computing half takes
        (6.0, 0.5, 10.0, True),
        (7.0, 0.5, None, False),
        (9.0, 0.5, None, True),
    ],
)
def test_a_late_load_goes_on_while_it_is_faster_than_computing(
    seconds: float, arrived: float, compute: float | None, stopped: bool
) -> None:
    assert is_too_slow(seconds, arrived, 2.0, compute) is stopped
