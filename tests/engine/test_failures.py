"""Guards the company of a request that fails: nobody else fails, and nobody finds its K/V afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ostinato.engine.outputs import FinishReason
from ostinato.engine.sampler import SamplerState
from ostinato.engine.scheduler import ScheduledRequest
from ostinato.errors import NonFiniteKVError
from tests.engine.harness import (
    Collected,
    Engine,
    PrefixIndexName,
    collect,
    expected_tokens,
    namespace_of,
    request,
    tokens,
)


def test_a_failing_kernel_fails_the_requests_of_that_step_only() -> None:
    engine = Engine()

    def explode(scheduled: object) -> None:
        raise FloatingPointError("the kernel tripped")

    engine.add("doomed", tokens(6, 1), max_tokens=4)
    engine.spy.before = explode
    assert engine.step() == []
    (failure,) = engine.core.take_failures()
    assert failure.request_id == "doomed"
    assert "the kernel tripped" in str(failure.error)
    assert isinstance(failure.error.__cause__, FloatingPointError)
    assert engine.core.take_failures() == []
    engine.assert_idle()

    engine.spy.before = lambda scheduled: None
    engine.add("fine", tokens(6, 1), max_tokens=4, ignore_eos=True)
    got = engine.run()["fine", 0]
    assert got.tokens == expected_tokens(tokens(6, 1), 4, ignore_eos=True)


def test_logits_that_are_not_numbers_fail_their_own_request_alone() -> None:
    engine = Engine()
    engine.add("sound", tokens(6, 1), max_tokens=4, ignore_eos=True)
    engine.add("broken", tokens(6, 2), n=2, max_tokens=4, ignore_eos=True)

    def spoil(scheduled: list, logits: np.ndarray) -> None:
        for row, part in enumerate(part for part in scheduled if part.wants_logits):
            if part.request.request_id == "broken":
                logits[row, 3] = np.nan

    engine.spy.spoil = spoil
    answers = engine.run()
    assert [failure.request_id for failure in engine.core.take_failures()] == ["broken"]
    assert list(answers) == [("sound", 0)]
    assert answers["sound", 0].tokens == expected_tokens(tokens(6, 1), 4, ignore_eos=True)
    engine.assert_idle()


def fail_for(name: str) -> Callable[[Sequence[ScheduledRequest]], None]:
    def explode(scheduled: Sequence[ScheduledRequest]) -> None:
        if any(part.request.request_id == name for part in scheduled):
            raise FloatingPointError("the kernel tripped")

    return explode


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_only_the_culprit_of_a_failed_step_fails(steps: int) -> None:
    engine = Engine(num_blocks=128)
    engine.add("doomed", tokens(9, 1), n=2, temperature=1.0, max_tokens=8, ignore_eos=True)
    for seed in range(2, 5):
        engine.add(f"r{seed}", tokens(9, seed), max_tokens=8, ignore_eos=True)
    answers: dict[tuple[str, int], Collected] = {}
    for _ in range(steps):
        collect(engine.step(), answers)
    engine.spy.before = fail_for("doomed")
    for answer in engine.run().values():
        collect(answer.deltas, answers)
    assert [failure.request_id for failure in engine.core.take_failures()] == ["doomed"]
    for seed in range(2, 5):
        wanted = expected_tokens(tokens(9, seed), 8, ignore_eos=True)
        assert answers[f"r{seed}", 0].tokens == wanted
    engine.assert_idle()


def test_a_step_that_fails_once_costs_nobody_anything() -> None:
    engine = Engine(num_blocks=128)
    for seed in range(3):
        engine.add(f"r{seed}", tokens(9, seed), max_tokens=5, ignore_eos=True)
    failed = []

    def explode_once(scheduled: Sequence[ScheduledRequest]) -> None:
        if not failed:
            failed.append(len(scheduled))
            raise MemoryError

    engine.spy.before = explode_once
    answers = engine.run()
    assert failed == [3]
    assert engine.core.take_failures() == []
    for seed in range(3):
        wanted = expected_tokens(tokens(9, seed), 5, ignore_eos=True)
        assert answers[f"r{seed}", 0].tokens == wanted


def test_a_sequence_that_cannot_be_sampled_fails_alone_and_seeds_keep_their_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeded = {"temperature": 1.0, "seed": 11, "max_tokens": 6, "ignore_eos": True}
    alone = Engine()
    alone.add("seeded", tokens(6, 1), **seeded)
    wanted = alone.run()["seeded", 0].tokens

    engine = Engine()
    engine.add("seeded", tokens(6, 1), **seeded)
    engine.add("doomed", tokens(6, 2), max_tokens=6, logit_bias={1: 1.0}, ignore_eos=True)
    adjusted = SamplerState.adjusted

    def explode(state: SamplerState, logits: np.ndarray) -> np.ndarray:
        if state.params.logit_bias:
            raise ZeroDivisionError
        return adjusted(state, logits)

    monkeypatch.setattr(SamplerState, "adjusted", explode)
    answers = engine.run()
    assert [failure.request_id for failure in engine.core.take_failures()] == ["doomed"]
    assert answers["seeded", 0].tokens == wanted
    engine.assert_idle()


def test_failed_answers_are_counted() -> None:
    engine = Engine()
    engine.add("doomed", tokens(6, 1), n=3, max_tokens=4)
    engine.spy.before = fail_for("doomed")
    engine.run()
    assert engine.core.stats().requests_finished_total[FinishReason.ERROR] == 3


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash"])
def test_nothing_of_a_failed_request_can_be_found(prefix_index: PrefixIndexName) -> None:
    engine = Engine(prefix_index=prefix_index, num_blocks=128)
    engine.add("doomed", tokens(18, 1), n=2, temperature=1.0, max_tokens=20, ignore_eos=True)
    for _ in range(6):
        engine.step()
    assert engine.manager.stats().in_use > 5
    engine.spy.before = fail_for("doomed")
    engine.step()
    assert engine.manager.stats().cached == 0
    engine.assert_idle()
    engine.add("again", tokens(18, 1), max_tokens=3, ignore_eos=True)
    got = engine.run()["again", 0]
    assert got.last.report is not None
    assert got.last.report.cached_tokens == 0
    assert got.tokens == expected_tokens(tokens(18, 1), 3, ignore_eos=True)


def test_a_prefix_that_others_hold_survives_the_failure_of_one_of_them() -> None:
    engine = Engine(num_blocks=128)
    shared = tokens(16, 1)
    engine.add("sound", [*shared, 1], max_tokens=9, ignore_eos=True)
    engine.step()
    engine.add("doomed", [*shared, *tokens(9, 2)], max_tokens=9, ignore_eos=True)
    engine.step()
    engine.spy.before = fail_for("doomed")
    engine.step()
    lookup = engine.manager.lookup
    space = namespace_of(request("any", [1]))
    assert lookup(space, np.array([*shared, 1], np.int32)).num_tokens == 16
    assert lookup(space, np.array([*shared, *tokens(9, 2)], np.int32)).num_tokens == 16
    engine.run()
    engine.assert_idle()


def test_a_chunk_whose_kv_cannot_be_stored_fails_its_request_and_leaves_nothing_behind() -> None:
    """No logits are computed of the chunks before a prompt's last, so nobody else would notice."""
    engine = Engine(num_blocks=128, max_num_batched_tokens=16)
    engine.add("sound", tokens(4, 1), max_tokens=8, ignore_eos=True)
    engine.add("spoilt", tokens(60, 2), max_tokens=4, ignore_eos=True)

    def overflow(scheduled: Sequence[ScheduledRequest]) -> None:
        for part in scheduled:
            if part.request.request_id == "spoilt" and part.start <= 30 < part.end:
                raise NonFiniteKVError

    engine.spy.before = overflow
    answers = engine.run()
    (failure,) = engine.core.take_failures()
    assert failure.request_id == "spoilt"
    assert isinstance(failure.error.__cause__, NonFiniteKVError)
    assert answers["sound", 0].tokens == expected_tokens(tokens(4, 1), 8, ignore_eos=True)
    engine.assert_idle()

    engine.spy.before = lambda scheduled: None
    engine.add("again", tokens(60, 2), max_tokens=4, ignore_eos=True)
    answer = engine.run()["again", 0]
    assert answer.deltas[0].report.cached_tokens == 0
    assert answer.tokens == expected_tokens(tokens(60, 2), 4, ignore_eos=True)
