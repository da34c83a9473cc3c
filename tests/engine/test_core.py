"""Guards the engine's promises to a caller: when an answer ends and why, who is refused, who is not harmed."""

from __future__ import annotations

import numpy as np
import pytest

from ostinato.cache.manager import KVCacheManager
from ostinato.engine.integrity import CountViolations
from ostinato.engine.outputs import FinishReason
from ostinato.errors import (
    CacheIntegrityError,
    ContextLengthError,
    EngineOverloadedError,
    InvalidRequestError,
    RequestError,
)
from tests.engine.harness import EOS, VOCAB_SIZE, Engine, expected_tokens, request, tokens

PROMPT = tokens(9, 3)
FREE_RUN = expected_tokens(PROMPT, 40, ignore_eos=True)


def prompt_that_ends_after(low: int, high: int) -> tuple[list[int], list[int]]:
    """A prompt whose greedy answer ends by itself within so many tokens, and the answer."""
    for seed in range(1000):
        answer = expected_tokens(tokens(6, seed), high)
        if answer[-1] == EOS and low <= len(answer):
            return tokens(6, seed), answer
    raise AssertionError("no such prompt")


def test_an_answer_ends_with_end_of_sequence_which_counts_but_is_not_text() -> None:
    engine = Engine()
    prompt, answer = prompt_that_ends_after(4, 30)
    engine.add("a", prompt, max_tokens=40, skip_special_tokens=False)
    got = engine.run()["a", 0]
    assert got.tokens == answer
    assert got.text == engine.tokenizer.text(answer)
    assert (got.finish_reason, got.last.stop_reason) == (FinishReason.STOP, None)
    assert got.last.num_output_tokens == len(answer)


def test_ignore_eos_goes_on_to_max_tokens() -> None:
    engine = Engine()
    prompt, answer = prompt_that_ends_after(4, 30)
    engine.add("a", prompt, max_tokens=40, ignore_eos=True)
    got = engine.run()["a", 0]
    assert got.tokens == expected_tokens(prompt, 40, ignore_eos=True)
    assert len(got.tokens) == 40 > len(answer)
    assert got.finish_reason is FinishReason.LENGTH


def test_min_tokens_forbids_ending_before_that_many() -> None:
    engine = Engine()
    prompt, answer = prompt_that_ends_after(4, 30)
    engine.add("a", prompt, max_tokens=60, min_tokens=len(answer) + 3)
    got = engine.run()["a", 0]
    assert got.tokens[: len(answer) - 1] == answer[:-1]
    assert got.tokens[len(answer) - 1] != EOS
    assert len(got.tokens) >= len(answer) + 3


def test_a_stop_token_ends_the_answer_and_is_named() -> None:
    engine = Engine()
    stop = FREE_RUN[5]
    first = FREE_RUN.index(stop)
    engine.add("a", PROMPT, max_tokens=40, ignore_eos=True, stop_token_ids=(stop,))
    got = engine.run()["a", 0]
    assert got.tokens == FREE_RUN[: first + 1]
    assert got.text == engine.tokenizer.text(FREE_RUN[:first])
    assert (got.finish_reason, got.last.stop_reason) == (FinishReason.STOP, stop)


def test_a_stop_string_over_several_tokens_ends_the_answer_and_never_shows() -> None:
    engine = Engine()
    stop = engine.tokenizer.text(FREE_RUN[4:7])
    whole = engine.tokenizer.text(FREE_RUN)
    engine.add("a", PROMPT, max_tokens=40, ignore_eos=True, stop=(stop,))
    got = engine.run()["a", 0]
    assert got.text == whole[: whole.index(stop)]
    assert (got.finish_reason, got.last.stop_reason) == (FinishReason.STOP, stop)
    assert got.tokens == FREE_RUN[: len(got.tokens)]
    engine.assert_idle()


def test_stop_strings_are_not_looked_for_in_the_first_min_tokens() -> None:
    engine = Engine()
    early = engine.tokenizer.token_text(FREE_RUN[1])
    engine.add("a", PROMPT, max_tokens=12, ignore_eos=True, min_tokens=4, stop=(early,))
    got = engine.run()["a", 0]
    assert len(got.tokens) > 4
    assert early in got.text[:4]


def test_what_looks_like_the_begin_of_a_stop_string_is_shown_in_the_end() -> None:
    engine = Engine()
    text = engine.tokenizer.text(FREE_RUN[:8])
    engine.add("a", PROMPT, max_tokens=8, ignore_eos=True, stop=(text[-2:] + "nevermore",))
    got = engine.run()["a", 0]
    assert got.deltas[-2].text == ""
    assert got.text == text
    assert got.finish_reason is FinishReason.LENGTH


def test_logprobs_name_each_token_and_its_rivals() -> None:
    engine = Engine()
    engine.add("a", PROMPT, max_tokens=3, ignore_eos=True, logprobs=2)
    got = engine.run()["a", 0]
    entries = [entry for delta in got.deltas for entry in delta.logprobs]
    assert [entry.token_id for entry in entries] == FREE_RUN[:3]
    for entry in entries:
        assert entry.top[0].token_id == entry.token_id
        assert entry.top[0].logprob == entry.logprob > entry.top[1].logprob


def test_n_answers_compute_their_prompt_once_and_differ() -> None:
    engine = Engine(num_blocks=128)
    engine.add("a", tokens(30), n=4, temperature=1.0, seed=7, max_tokens=6, ignore_eos=True)
    answers = engine.run()
    assert sorted(answers) == [("a", index) for index in range(4)]
    assert engine.spy.computed["a"] == 30 + 4 * 5
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 4
    stats = engine.core.stats()
    assert stats.prompt_tokens_total == 30
    assert stats.requests_finished_total[FinishReason.LENGTH] == 4
    engine.assert_idle()


def test_each_of_n_answers_reads_its_own_tokens_from_copied_blocks() -> None:
    engine = Engine(num_blocks=128)
    prompt = tokens(10)
    engine.add("a", prompt, n=3, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True)
    answers = engine.run()
    for (name, index), answer in answers.items():
        for length in range(1, 8):
            sequence = [*prompt, *answer.tokens[:length]]
            row = engine.spy.logits[name, index, len(sequence)]
            np.testing.assert_array_equal(row, _logits(sequence))


def _logits(sequence: list[int]) -> np.ndarray:
    from tests.engine.harness import echo_logits

    return echo_logits(np.array(sequence))


def test_a_seeded_answer_is_the_same_alone_and_among_n_and_under_preemption() -> None:
    alone = Engine(num_blocks=128)
    alone.add("a", tokens(10), temperature=1.0, seed=5, max_tokens=9, ignore_eos=True)
    first = alone.run()["a", 0].tokens
    crowded = Engine(num_blocks=8)
    for name in ("b", "a"):
        crowded.add(name, tokens(10), n=3, temperature=1.0, seed=5, max_tokens=9, ignore_eos=True)
    answers = crowded.run()
    assert crowded.core.stats().preemptions_total > 0
    assert answers["a", 0].tokens == first
    for index in range(3):
        assert answers["a", index].tokens == answers["b", index].tokens


def test_n_takes_n_seats_at_admission() -> None:
    engine = Engine(max_num_seqs=4, num_blocks=128)
    engine.add("one", tokens(5, 1), max_tokens=3, ignore_eos=True)
    engine.add("four", tokens(5, 2), n=4, max_tokens=3, ignore_eos=True)
    seen = 0
    while engine.core.has_work:
        engine.step()
        seen = max(seen, len(engine.scheduler.running))
        names = {one.request_id for one in engine.scheduler.running}
        assert names != {"one", "four"}
    assert seen == 4


@pytest.mark.parametrize("steps", range(8))
def test_an_abort_at_any_point_frees_everything_at_once(steps: int) -> None:
    engine = Engine(max_num_batched_tokens=7, num_blocks=64)
    engine.add("victim", tokens(17, 1), n=2, temperature=1.0, max_tokens=9, ignore_eos=True)
    engine.add("other", tokens(13, 2), max_tokens=9, ignore_eos=True)
    for _ in range(steps):
        engine.step()
    deltas = engine.core.abort("victim")
    assert all(one.request_id != "victim" for one in engine.scheduler.running)
    assert {delta.finish_reason for delta in deltas} == {FinishReason.ABORT}
    assert sorted(delta.index for delta in deltas) == [0, 1]
    engine.core.check_integrity()
    answers = engine.run()
    rest = expected_tokens(tokens(13, 2), 9, ignore_eos=True)
    got = answers["other", 0].tokens
    assert got == rest[len(rest) - len(got) :]
    engine.assert_idle()


def test_aborting_an_unknown_or_finished_request_does_nothing() -> None:
    engine = Engine()
    engine.add("a", tokens(4), max_tokens=1)
    engine.run()
    assert engine.core.abort("a") == []
    assert engine.core.abort("never") == []
    assert engine.core.stats().requests_finished_total[FinishReason.ABORT] == 0


def test_a_preempted_request_can_be_aborted() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    for seed in range(3):
        engine.add(f"r{seed}", tokens(6, seed), max_tokens=20, ignore_eos=True)
    while engine.core.stats().preemptions_total == 0:
        engine.step()
    assert engine.core.abort("r2")
    engine.run()
    engine.assert_idle()


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"prompt": []}, InvalidRequestError, "prompt"),
        ({"prompt": [1, VOCAB_SIZE]}, InvalidRequestError, "prompt"),
        ({"prompt": [-1]}, InvalidRequestError, "prompt"),
        ({"prompt": [1], "n": 65}, InvalidRequestError, "n"),
        ({"prompt": [1], "priority": 101}, InvalidRequestError, "priority"),
        ({"prompt": [1], "stop_token_ids": (99,)}, InvalidRequestError, "stop_token_ids"),
        ({"prompt": [1], "logit_bias": {99: 1.0}}, InvalidRequestError, "logit_bias"),
        ({"prompt": [1] * 200}, ContextLengthError, "prompt"),
        ({"prompt": [1] * 100, "max_tokens": 101}, ContextLengthError, "max_tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_and_nothing_is_queued(
    options: dict, error: type[RequestError], param: str
) -> None:
    engine = Engine(max_model_len=200, num_blocks=128)
    with pytest.raises(error) as caught:
        engine.core.add_request(request("a", **options))
    assert caught.value.param == param
    assert not engine.core.has_work


def test_an_id_in_use_is_refused_and_may_be_used_again_later() -> None:
    engine = Engine()
    engine.add("a", tokens(4), max_tokens=1)
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.add("a", tokens(4), max_tokens=1)
    engine.run()
    engine.add("a", tokens(4), max_tokens=1)
    assert len(engine.run()) == 1


def test_one_request_more_than_may_wait_is_refused() -> None:
    engine = Engine(max_waiting=2, max_num_seqs=1)
    engine.add("running", tokens(4), max_tokens=2, ignore_eos=True)
    engine.core.step()
    engine.add("b", tokens(4), max_tokens=1)
    engine.add("c", tokens(4), max_tokens=1)
    assert not engine.core.can_queue
    with pytest.raises(EngineOverloadedError, match="2 requests are waiting"):
        engine.add("d", tokens(4), max_tokens=1)
    engine.run()
    assert engine.core.can_queue


def test_requests_that_find_a_free_sequence_do_not_count_as_waiting() -> None:
    engine = Engine(max_waiting=2, max_num_seqs=3)
    for number in range(5):
        engine.add(f"r{number}", tokens(4), max_tokens=1)
    assert not engine.core.can_queue
    with pytest.raises(EngineOverloadedError, match="2 requests are waiting"):
        engine.add("one more", tokens(4), max_tokens=1)
    assert len(engine.run()) == 5


def _break(manager: KVCacheManager) -> None:
    table = manager.allocate(manager.lookup(b"n".ljust(32), np.array([1, 2], np.int32)), 2)
    assert table is not None


def test_a_broken_invariant_raises_in_tests_and_is_counted_in_production() -> None:
    strict, lenient = Engine(), Engine(integrity=CountViolations())
    for engine in (strict, lenient):
        _break(engine.manager)  # a block that no request knows of
    with pytest.raises(CacheIntegrityError):
        strict.core.check_integrity()
    lenient.core.check_integrity()
    assert lenient.core.stats().integrity_errors_total == 1
    assert strict.core.stats().integrity_errors_total == 1
