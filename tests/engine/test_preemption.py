"""Guards progress under memory pressure: the oldest gets on, everything ends, nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ostinato.engine.outputs import FinishReason
from ostinato.engine.request import RequestStatus
from ostinato.errors import CapacityError
from tests.engine.harness import Engine, PrefixIndexName, expected_tokens, request, tokens


def decode_until(engine: Engine, condition: Callable[[], bool]) -> None:
    for _ in range(200):
        engine.step()
        if condition():
            return
    raise AssertionError("it never happened")


def test_the_newest_running_request_is_preempted_and_the_oldest_goes_on() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    for seed, name in enumerate(("oldest", "middle", "newest")):
        engine.add(name, tokens(6, seed), max_tokens=20, ignore_eos=True)
    engine.step()
    running = {one.request_id: one for one in engine.scheduler.running}
    decode_until(engine, lambda: engine.core.stats().preemptions_total > 0)
    assert running["newest"].status is RequestStatus.PREEMPTED
    assert running["newest"].num_computed_tokens == 0
    assert running["oldest"].status is RequestStatus.RUNNING
    answers = engine.run()
    assert {answer.finish_reason for answer in answers.values()} == {FinishReason.LENGTH}
    engine.assert_idle()


def test_no_waiting_request_is_admitted_in_a_step_that_preempts() -> None:
    engine = Engine(num_blocks=6, block_size=4)
    for seed, name in enumerate(("a", "b")):
        engine.add(name, tokens(7, seed), max_tokens=16, ignore_eos=True)
    engine.step()
    decode_until(engine, lambda: engine.manager.num_available_blocks == 0)
    engine.add("tiny", tokens(1, 5), max_tokens=1)
    decode_until(engine, lambda: engine.core.stats().preemptions_total > 0)
    assert engine.manager.num_available_blocks > 1
    assert [one.request_id for one in engine.scheduler.running] == ["a"]
    assert len(engine.run()) == 3


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash", "none"])
def test_preempted_requests_give_the_same_tokens(prefix_index: PrefixIndexName) -> None:
    engine = Engine(num_blocks=12, block_size=4, prefix_index=prefix_index)
    prompts = {f"r{seed}": tokens(5 + seed, seed) for seed in range(6)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=25, ignore_eos=True)
    answers = engine.run()
    assert engine.core.stats().preemptions_total > 0
    for name, prompt in prompts.items():
        assert answers[name, 0].tokens == expected_tokens(prompt, 25, ignore_eos=True)
    engine.assert_idle()


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash", "none"])
def test_sixty_four_requests_finish_in_a_pool_for_three(prefix_index: PrefixIndexName) -> None:
    engine = Engine(num_blocks=36, block_size=4, prefix_index=prefix_index, watermark=0.01)
    shared = tokens(12)
    prompts = {f"r{seed}": [*shared, *tokens(1 + seed % 9, seed)] for seed in range(64)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=24, ignore_eos=True)
    answers = engine.run()
    for name, prompt in prompts.items():
        assert answers[name, 0].tokens == expected_tokens(prompt, 24, ignore_eos=True)
    stats = engine.core.stats()
    assert stats.requests_finished_total[FinishReason.LENGTH] == 64
    assert stats.generated_tokens_total == 64 * 24
    engine.assert_idle()


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash", "none"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_request_as_large_as_the_pool_finishes_whatever_is_cached(
    prefix_index: PrefixIndexName, block_size: int
) -> None:
    """A match inside a block wants a copy beside its source: there is no room for both."""
    engine = Engine(num_blocks=64 // block_size, block_size=block_size, prefix_index=prefix_index)
    prompt = tokens(58)
    engine.add("cached", [*prompt[:55], *tokens(3, 1)], max_tokens=2, ignore_eos=True)
    engine.run()
    engine.add("whole pool", prompt, max_tokens=6, ignore_eos=True)
    answer = engine.run()["whole pool", 0]
    assert answer.tokens == expected_tokens(prompt, 6, ignore_eos=True)
    engine.assert_idle()


def test_three_requests_as_large_as_the_pool_finish_one_after_the_other() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    prompts = {f"r{seed}": [*tokens(5), *tokens(3, seed)] for seed in range(3)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=24, ignore_eos=True)
    answers = engine.run()
    for name, prompt in prompts.items():
        assert answers[name, 0].tokens == expected_tokens(prompt, 24, ignore_eos=True)


def test_a_request_that_can_never_fit_is_refused_with_the_largest_that_would() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    with pytest.raises(CapacityError, match=r"largest prompt \+ max_tokens that would is 32 "):
        engine.core.add_request(request("a", tokens(30), max_tokens=3))
    engine.core.add_request(request("a", tokens(30), max_tokens=2))
    assert len(engine.run()["a", 0].tokens) <= 2


def test_without_max_tokens_a_request_may_fill_the_pool_and_no_more() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    engine.add("a", tokens(5), ignore_eos=True)
    answer = engine.run()["a", 0]
    assert len(answer.tokens) == 32 - 5
    assert answer.finish_reason is FinishReason.LENGTH


def test_resumes_are_counted_apart_and_the_report_is_that_of_the_first_admission() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    for seed in range(3):
        engine.add(f"r{seed}", tokens(6, seed), max_tokens=20, ignore_eos=True)
    answers = engine.run()
    stats = engine.core.stats()
    assert stats.preemptions_total > 0
    assert stats.resumed_tokens_total > 0
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (18, 0)
    for answer in answers.values():
        reports = {id(delta.report) for delta in answer.deltas}
        assert len(reports) == 1
        assert answer.last.report is not None
        assert answer.last.report.cached_tokens == 0


def test_a_resumed_request_recomputes_only_what_was_evicted() -> None:
    engine = Engine(num_blocks=12, block_size=4)
    engine.add("a", tokens(16, 1), max_tokens=17, ignore_eos=True)
    engine.add("b", tokens(16, 2), max_tokens=17, ignore_eos=True)
    engine.run()
    stats = engine.core.stats()
    assert stats.preemptions_total > 0
    # Everything once, the last token of each never, and what resuming did not find again.
    once = 2 * (16 + 17 - 1)
    assert once < stats.computed_tokens_total < once + 33
