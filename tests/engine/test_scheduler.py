"""Guards the step: budget, chunks, seats, reservation, watermark, and what is counted when."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ostinato.cache.hashing import sha256
from ostinato.cache.types import MissReason
from ostinato.clock import ManualClock
from ostinato.config_sections import SchedulerConfig
from ostinato.engine.request import RequestStatus
from tests.engine.harness import Engine, expected_tokens, request, tokens
from tests.engine.tiny_engine import load_tiny, tiny_core


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    engine = Engine(max_num_batched_tokens=7)
    engine.add("a", tokens(20), max_tokens=1)
    engine.run()
    assert [batch[0].num_tokens for batch in engine.spy.batches] == [7, 7, 6]


def test_running_requests_are_served_before_waiting_ones() -> None:
    engine = Engine(max_num_batched_tokens=8)
    engine.add("old", tokens(8, 1), max_tokens=5, ignore_eos=True)
    engine.step()
    engine.add("new", tokens(20, 2), max_tokens=1)
    engine.step()
    parts = [(part.request.request_id, part.num_tokens) for part in engine.spy.batches[-1]]
    assert parts == [("old", 1), ("new", 7)]


def test_one_step_mixes_decodes_and_prefill_chunks() -> None:
    engine = Engine(max_num_batched_tokens=16)
    prompts = {"a": tokens(5, 1), "b": tokens(30, 2), "c": tokens(9, 3)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, max_tokens=6, ignore_eos=True)
    answers = engine.run()
    assert any(
        {part.num_tokens > 1 for part in batch} == {True, False} for batch in engine.spy.batches
    )
    for name, prompt in prompts.items():
        assert answers[name, 0].tokens == expected_tokens(prompt, 6, ignore_eos=True)


def test_no_step_exceeds_the_token_budget() -> None:
    engine = Engine(max_num_batched_tokens=10, num_blocks=200)
    for seed in range(12):
        engine.add(f"r{seed}", tokens(3 + 5 * seed, seed), max_tokens=4)
    engine.run()
    assert max(sum(part.num_tokens for part in batch) for batch in engine.spy.batches) <= 10


def test_more_requests_than_seats_wait_for_a_seat() -> None:
    engine = Engine(max_num_seqs=2)
    for seed in range(5):
        engine.add(f"r{seed}", tokens(6, seed), max_tokens=3, ignore_eos=True)
    seen = 0
    while engine.core.has_work:
        engine.step()
        seen = max(seen, len(engine.scheduler.running))
    assert seen == 2


def test_admission_reserves_the_whole_prompt_so_that_two_prefills_never_deadlock() -> None:
    engine = Engine(num_blocks=10, block_size=4, max_num_batched_tokens=4)
    engine.add("a", tokens(24, 1), max_tokens=1)
    engine.add("b", tokens(24, 2), max_tokens=1)
    engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["a"]
    assert engine.scheduler.running[0].block_table.num_blocks == 6
    engine.run()
    assert engine.core.stats().preemptions_total == 0


def test_the_watermark_keeps_room_for_running_requests_but_not_from_an_idle_engine() -> None:
    engine = Engine(num_blocks=10, block_size=4, watermark=0.3)
    engine.add("whole pool", tokens(38, 1), max_tokens=2)
    engine.step()
    assert len(engine.scheduler.running) == 1
    engine.run()

    engine.add("small", tokens(8, 2), max_tokens=8, ignore_eos=True)
    engine.step()
    engine.add("leaves too little", tokens(20, 3), max_tokens=4)
    engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["small"]
    engine.run()
    engine.assert_idle()


def test_nobody_overtakes_the_first_in_line_when_room_is_short() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    engine.add("running", tokens(12, 1), max_tokens=8, ignore_eos=True)
    engine.step()
    engine.add("large", tokens(28, 2), max_tokens=1)
    engine.add("small", tokens(3, 3), max_tokens=1)
    order = []
    while engine.core.has_work:
        for delta in engine.step():
            if delta.finish_reason:
                order.append(delta.request_id)
    assert order == ["running", "large", "small"]


def test_a_repeated_prompt_reuses_all_but_its_last_token() -> None:
    engine = Engine()
    prompt = tokens(21)
    engine.add("first", prompt, max_tokens=1)
    engine.run()
    engine.add("second", prompt, max_tokens=1)
    report = engine.run()["second", 0].last.report
    assert report is not None
    assert (report.prompt_tokens, report.cached_tokens) == (21, 20)
    assert engine.spy.computed == {"first": 21, "second": 1}


def test_the_next_turn_reuses_the_generated_answer() -> None:
    engine = Engine()
    prompt = tokens(10)
    engine.add("first", prompt, max_tokens=7, ignore_eos=True)
    answer = engine.run()["first", 0].tokens
    follow_up = [*prompt, *answer, *tokens(5, 9)]
    engine.add("second", follow_up, max_tokens=1)
    report = engine.run()["second", 0].last.report
    assert report is not None
    # The token sampled last was never computed.
    assert report.cached_tokens == len(prompt) + len(answer) - 1
    assert report.miss_reason in (MissReason.NOT_CACHED, MissReason.DIVERGED)


def test_a_prompt_is_findable_while_its_request_still_decodes() -> None:
    engine = Engine()
    prompt = tokens(18)
    engine.add("first", prompt, max_tokens=20, ignore_eos=True)
    engine.step()
    engine.add("second", [*prompt, 1], max_tokens=1)
    (delta,) = [delta for delta in engine.step() if delta.request_id == "second"]
    assert delta.report is not None
    assert delta.report.cached_tokens == 16  # the full blocks


def test_a_request_without_room_is_not_looked_up_again_before_somebody_leaves() -> None:
    engine = Engine(num_blocks=8, block_size=4)
    engine.add("running", tokens(20, 1), max_tokens=8, ignore_eos=True)
    engine.step()
    engine.add("large", tokens(20, 2), max_tokens=1)
    asked = []
    lookup = engine.manager.lookup
    engine.manager.lookup = lambda *args: asked.append(args) or lookup(*args)
    for _ in range(5):
        engine.step()
    assert len(asked) == 1
    assert engine.run()["large", 0].tokens == expected_tokens(tokens(20, 2), 1)


def test_without_a_prefix_index_nothing_is_reused_and_the_report_says_why() -> None:
    engine = Engine(prefix_index="none")
    for name in ("first", "second"):
        engine.add(name, tokens(12), max_tokens=2, ignore_eos=True)
        report = engine.run()[name, 0].last.report
        assert report is not None
        assert (report.cached_tokens, report.miss_reason) == (0, MissReason.DISABLED)
    assert engine.core.stats().blocks.cached == 0


def test_sixteen_requests_that_arrive_at_once_compute_their_shared_prefix_once() -> None:
    engine = Engine(num_blocks=2048, block_size=16, max_num_batched_tokens=8192, max_model_len=4096)
    shared = tokens(1024)
    for seed in range(16):
        tail = [seed + 1, *tokens(6, seed)]
        engine.add(f"r{seed}", [*shared, *tail], max_tokens=1)
    answers = engine.run()
    stats = engine.core.stats()
    assert stats.computed_tokens_total == 1024 + 16 * 7
    assert stats.prompt_tokens_total == 16 * 1031
    assert stats.cached_tokens_total == 15 * 1024
    for seed in range(16):
        prompt = [*shared, seed + 1, *tokens(6, seed)]
        assert answers[f"r{seed}", 0].tokens == expected_tokens(prompt, 1)


def test_without_a_prefix_index_requests_with_a_shared_prefix_do_not_wait_for_each_other() -> None:
    engine = Engine(prefix_index="none", num_blocks=256, max_num_batched_tokens=256)
    for seed in range(4):
        engine.add(f"r{seed}", [*tokens(40), seed + 1], max_tokens=1)
    engine.step()
    assert len(engine.spy.batches[0]) == 4


def test_a_request_held_back_starts_when_the_one_it_waits_for_is_aborted() -> None:
    engine = Engine(max_num_batched_tokens=8)
    shared = tokens(40)
    engine.add("leader", [*shared, 1], max_tokens=1)
    engine.add("follower", [*shared, 2], max_tokens=1)
    engine.step()
    assert [part.request.request_id for part in engine.spy.batches[-1]] == ["leader"]
    engine.core.abort("leader")
    engine.step()
    assert [part.request.request_id for part in engine.spy.batches[-1]] == ["follower"]
    answers = engine.run()
    assert answers["follower", 0].tokens == expected_tokens([*shared, 2], 1)


def test_tenants_with_equal_prompts_share_nothing_and_the_same_tenant_does() -> None:
    engine = Engine()
    prompt = tokens(16)
    cached = {}
    for name, tenant, salt in (
        ("a1", "a", None),
        ("b", "b", None),
        ("a salted", "a", "x"),
        ("a2", "a", None),
    ):
        engine.add(name, prompt, tenant=tenant, salt=salt, max_tokens=1)
        report = engine.run()[name, 0].last.report
        assert report is not None
        cached[name] = report.cached_tokens
    assert cached == {"a1": 0, "b": 0, "a salted": 0, "a2": 15}


def test_a_waiting_request_becomes_running_and_then_finished() -> None:
    engine = Engine()
    engine.add("a", tokens(4), max_tokens=2, ignore_eos=True)
    request = engine.scheduler.waiting[0]
    assert request.status is RequestStatus.WAITING
    engine.step()
    assert request.status is RequestStatus.RUNNING
    engine.run()
    assert request.status is RequestStatus.FINISHED
    assert request.num_computed_tokens == request.num_tokens - 1


def test_waste_is_what_is_allocated_and_holds_nothing() -> None:
    engine = Engine(block_size=8)
    engine.add("a", tokens(9), max_tokens=4, ignore_eos=True)
    engine.step()
    stats = engine.core.stats()
    assert (stats.allocated_slots, stats.used_slots) == (16, 9)
    assert stats.waste == pytest.approx(7 / 16)
    engine.run()
    assert engine.core.stats().waste == 0.0


def test_age_lets_a_cold_prompt_start_before_an_endless_stream_of_warm_ones() -> None:
    clock = ManualClock()
    engine = Engine(clock=clock, max_num_seqs=1, age_weight=8.0, num_blocks=128)
    warm = tokens(64, 1)
    engine.add("seed", warm, max_tokens=1)
    engine.run()
    engine.add("warm 0", [*warm, 1], max_tokens=1)
    engine.add("cold", tokens(10, 2), max_tokens=1)
    finished: list[str] = []
    for turn in range(1, 30):
        engine.add(f"warm {turn}", [*warm, turn], max_tokens=1)
        finished += [delta.request_id for delta in engine.step() if delta.finish_reason]
        clock.advance(1.0)
    place = finished.index("cold")
    # Behind warm ones at first, but 64 cached tokens are worth 8 seconds.
    assert 1 <= place <= 10


def test_a_budget_below_the_number_of_sequences_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="raise the first or lower the second"):
        SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=9)
    assert SchedulerConfig(max_num_batched_tokens=9, max_num_seqs=9).max_num_seqs == 9


def test_every_running_sequence_gets_a_token_in_every_step_whatever_prefills() -> None:
    engine = Engine(max_num_batched_tokens=12, max_num_seqs=12, num_blocks=400)
    engine.add("prefill", tokens(300, 99), max_tokens=1)
    engine.step()
    engine.add("decodes", tokens(2, 1), n=11, max_tokens=30, ignore_eos=True)
    most = 0
    for _ in range(20):
        running = list(engine.scheduler.running)
        most = max(most, len(running))
        engine.step()
        shares = {part.request: part.num_tokens for part in engine.spy.batches[-1]}
        assert sum(shares.values()) <= 12
        assert all(shares[request] > 0 for request in running)
    assert most == 12
    engine.run()


def test_a_short_request_need_not_wait_for_the_end_of_a_long_prefill() -> None:
    engine = Engine(max_num_batched_tokens=16, max_num_seqs=8, num_blocks=256)
    engine.add("long", tokens(600, 1), max_tokens=2, ignore_eos=True)
    for _ in range(3):
        engine.step()
    engine.add("short", tokens(4, 2), max_tokens=3, ignore_eos=True)
    deltas = [delta for _ in range(2) for delta in engine.step()]
    assert [delta.request_id for delta in deltas] == ["short", "short"]
    answers = engine.run()
    assert answers["long", 0].tokens == expected_tokens(tokens(600, 1), 2, ignore_eos=True)
    assert {sum(part.num_tokens for part in batch) for batch in engine.spy.batches[:35]} == {16}


def test_a_prefill_is_capped_only_as_long_as_others_want_tokens() -> None:
    engine = Engine(
        max_num_batched_tokens=16, long_prefill_tokens=5, max_num_seqs=8, num_blocks=256
    )
    engine.add("one", tokens(40, 1), max_tokens=1)
    engine.step()
    engine.add("two", tokens(60, 2), max_tokens=1)
    engine.add("three", tokens(60, 3), max_tokens=1)
    engine.step()
    shares = [[part.num_tokens for part in batch] for batch in engine.spy.batches]
    assert shares == [[16], [6, 5, 5]]
    engine.run()


@pytest.mark.parametrize(("policy", "first"), [("lpm", "warm"), ("fcfs", "cold")])
def test_the_policy_of_waiting_is_a_setting(policy: str, first: str, tmp_path: Path) -> None:
    core = tiny_core(load_tiny(tmp_path), tmp_path, scheduler={"policy": policy, "max_num_seqs": 1})
    order = []
    for name, prompt in (("seed", range(40)), ("cold", range(40, 80)), ("warm", range(41))):
        core.add_request(request(name, prompt, max_tokens=1))
        if name == "seed":
            while core.has_work:
                core.step()
    while core.has_work:
        order += [delta.request_id for delta in core.step()]
    assert order[0] == first


@pytest.mark.parametrize("n", [1, 3])
def test_a_request_hashes_none_of_its_blocks_twice_in_its_whole_life(n: int) -> None:
    engine = Engine(prefix_index="block_hash", max_num_seqs=4, num_blocks=14, block_size=4)
    hashed: Counter[bytes] = Counter()

    def count(message: bytes) -> bytes:
        hashed[message] += 1
        return sha256(message)

    engine.manager._index._digest = count
    # Waits for memory, is looked up again and again, is preempted and resumed, and may fork.
    engine.add("before", tokens(30, 1), max_tokens=10, ignore_eos=True)
    engine.step()
    engine.add("a", tokens(18, 2), n=n, temperature=1.0, max_tokens=12, ignore_eos=True)
    engine.run()
    if n == 3:
        assert engine.core.stats().preemptions_total > 0
    assert set(hashed.values()) == {1}
    # At most all of them: blocks are compared, and hashed only where prompts part.
    own = (18 + 12 - 1) // 4
    assert sum(hashed.values()) <= (30 + 10 - 1) // 4 + own + (n - 1) * (own - 18 // 4)
