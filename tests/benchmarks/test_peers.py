"""Guards the comparison itself: a wrong rate, ratio or order of turns makes every published figure wrong."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from benchmarks.peers.__main__ import main as peers_main
from benchmarks.peers.chart import relative, svg_chart
from benchmarks.peers.contract import Completion, Engine, EngineError
from benchmarks.peers.counts import ModelCounts, Work, share_of_limit, work_of
from benchmarks.peers.figures import (
    LOADS,
    STREAMS,
    Decode,
    Figure,
    Prefill,
    Scenario,
    Shared,
    Streams,
    joint_rate,
    scenarios,
    stream_rate,
)
from benchmarks.peers.http_engine import read_stream
from benchmarks.peers.install import requirements_without_torch
from benchmarks.peers.journal import Journal, JournalError
from benchmarks.peers.limits import Limits
from benchmarks.peers.prompts import PromptMaker
from benchmarks.peers.runner import Plan, Results, Turn, measure, start_all
from benchmarks.peers.table import comparison_table, make_row, note

LIMITS = Limits(read=10.0, fp32=100.0, int16=200.0, int8=400.0, source="test")
COUNTS = ModelCounts(layer_ops=1000, head_ops=100, attention_ops=10, weight_bytes=5000, kv_bytes=20)


class FakeEngine(Engine):
    """Answers at once; writes down what it was asked, and whether it was running then."""

    name, title = "ostinato", "Ostinato"

    def __init__(self, journal: list[str], name: str = "ostinato", seconds: float = 1.0) -> None:
        self.name = self.title = name  # type: ignore[misc]
        self._journal = journal
        self._seconds = seconds
        self.reason: str | None = None
        self.broken = False
        self.running = False

    def missing(self) -> str | None:
        return self.reason

    def start(self) -> None:
        if self.broken:
            raise EngineError("no memory")
        self.running = True

    def stop(self) -> None:
        self.running = False

    def pause(self) -> None:
        self.running = False

    def resume(self) -> None:
        self._journal.append(self.name)
        self.running = True

    def complete(self, prompt: Sequence[int], max_tokens: int) -> Completion:
        assert self.running
        if self.broken:
            raise EngineError("broke off")
        times = tuple(self._seconds * (1 + at) for at in range(max_tokens))
        return Completion(times, max_tokens, 0)


class NumberedPrompts:
    """Stands in for the tokenizer's prompts."""

    def __init__(self) -> None:
        self._next = 0

    def prompt(self, length: int) -> list[int]:
        self._next += 1
        return [self._next] * length


def run(
    engines: list[FakeEngine], chosen: list[Scenario], repeats: int = 1, patience: float = 1e9
) -> Results:
    results, maker = Results(), cast(PromptMaker, NumberedPrompts())
    running = start_all(engines, maker, results, ignore)
    measure(running, Plan(chosen, repeats, patience), maker, results, ignore, ignore)
    return results


def ignore(_: object) -> None:
    """For what nobody listens to."""


def test_the_rate_of_a_stream_leaves_out_the_first_token() -> None:
    assert stream_rate(Completion((1.0, 1.5, 2.0), 3)) == pytest.approx(2.0)


def test_a_stream_that_comes_in_one_piece_has_no_rate() -> None:
    with pytest.raises(EngineError, match="one piece"):
        stream_rate(Completion((1.0,), 8))


def test_the_joint_rate_counts_only_while_all_streams_run() -> None:
    early = Completion((0.0, 1.0, 2.0, 3.0), 4)
    late = Completion((1.0, 2.0, 3.0, 9.0), 4)
    assert joint_rate([early, late]) == pytest.approx(4 / 2.0)


def test_the_joint_rate_counts_tokens_that_share_a_piece() -> None:
    doubled = Completion((0.0, 1.0, 2.0), 6)
    assert joint_rate([doubled]) == pytest.approx(4 / 2.0)


def test_streams_that_never_overlap_are_refused() -> None:
    with pytest.raises(EngineError, match="all at once"):
        joint_rate([Completion((0.0, 1.0), 2), Completion((5.0, 6.0), 2)])


def test_a_new_prompt_that_was_cached_is_no_prefill_figure() -> None:
    class Cheating(FakeEngine):
        def complete(self, prompt: Sequence[int], max_tokens: int) -> Completion:
            return Completion((0.1,), 1, len(prompt) - 1)

    results = run([Cheating([])], [Prefill(8)])
    assert "were cached" in results.failures["prefill-8/ostinato"]


def test_engines_take_turns_and_the_order_rotates() -> None:
    journal: list[str] = []
    engines = [FakeEngine(journal, name) for name in ("a", "b", "c")]
    run(engines, [Prefill(8)], repeats=3)
    assert "".join(journal) == "abc" + "bca" + "cab"


def test_only_the_engine_whose_turn_it_is_runs() -> None:
    engines = [FakeEngine([], name) for name in ("a", "b")]

    class Watching(Prefill):
        def turn(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
            assert [one for one in engines if one.running] == [engine]
            return dict(super().turn(engine, prompts))

    assert set(run(engines, [Watching(8)]).values["prefill-8"]) == {"a", "b"}


def test_an_engine_that_fails_is_noted_and_not_asked_again() -> None:
    journal: list[str] = []
    good, bad = FakeEngine(journal, "good"), FakeEngine(journal, "bad")
    results, maker = Results(), cast(PromptMaker, NumberedPrompts())
    running = start_all([good, bad], maker, results, ignore)
    bad.broken = True
    measure(running, Plan([Prefill(8)], 3, 1e9), maker, results, ignore, ignore)
    assert results.failures == {"prefill-8/bad": "broke off"}
    assert journal.count("bad") == 1
    assert len(results.values["prefill-8"]["good"]) == 3


def test_an_engine_that_takes_too_long_has_one_turn_and_the_table_says_so() -> None:
    journal: list[str] = []
    results = run([FakeEngine(journal, "slow")], [Prefill(8)], repeats=3, patience=0.0)
    assert journal == ["slow"]
    assert "Measured once" in note(Plan([Prefill(8)], 3, 0.0), results)
    assert "prefill-8/slow" in note(Plan([Prefill(8)], 3, 0.0), results)
    assert "once" not in note(Plan([Prefill(8)], 3, 1e9), results)


def test_a_run_that_broke_off_goes_on_with_the_turns_that_are_missing(tmp_path: Path) -> None:
    path, plan = tmp_path / "results" / "run.jsonl", Plan([Prefill(8), Decode(8, 4)], 2, 1e9)
    asked: list[list[int]] = []

    class Writing(FakeEngine):
        def complete(self, prompt: Sequence[int], max_tokens: int) -> Completion:
            if len(prompt) == 8:
                asked.append([self.name == "b", *prompt[:1]])
            return super().complete(prompt, max_tokens)

    def go_on(results: Results, journal: Journal, last: int) -> None:
        def keep(turn: Turn) -> None:
            journal.add(turn)
            if len(asked) == last:
                raise KeyboardInterrupt

        engines = [Writing([], "a"), Writing([], "b")]
        maker = cast(PromptMaker, NumberedPrompts())
        running = start_all(engines, maker, results, ignore)
        measure(running, plan, maker, results, keep, ignore)

    Journal(path).begin({"model": "m"}, seed=7)
    with pytest.raises(KeyboardInterrupt):
        go_on(Results(), Journal(path), last=3)
    with path.open("a") as file:
        file.write('{"scenario": "prefill-8", "rou')  # the machine went down here
    results = Results()
    seed, turns = Journal(path).resume({"model": "m"})
    assert seed == 7
    for turn in turns:
        results.record(turn)
    assert plan.wants(FakeEngine([], "a"), results)
    go_on(results, Journal(path), last=-1)
    assert len(asked) == 8
    rounds = [asked[at : at + 2] for at in range(0, 8, 2)]
    assert all(one[1] == other[1] and one[0] != other[0] for one, other in rounds)
    assert {len(values) for figure in results.values.values() for values in figure.values()} == {2}
    assert len(Journal(path).resume({"model": "m"})[1]) == 8
    assert not plan.wants(FakeEngine([], "a"), results)


def test_another_runs_journal_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    with pytest.raises(JournalError, match="there is no run"):
        journal.resume({"model": "m"})
    journal.begin({"model": "m"}, seed=7)
    with pytest.raises(JournalError, match="of another run"):
        journal.resume({"model": "n"})
    journal.remove()
    with pytest.raises(JournalError, match="there is no"):
        journal.resume({"model": "m"})


def test_engines_that_are_missing_or_do_not_start_are_left_out_by_name() -> None:
    absent, dead = FakeEngine([], "absent"), FakeEngine([], "dead")
    absent.reason, dead.broken = "not installed", True
    assert run([absent, dead], [Prefill(8)]).left_out == {
        "absent": "not installed",
        "dead": "no memory",
    }


def test_the_shared_load_sends_two_sets_of_suffixes_after_one_prefix() -> None:
    prompts = Shared(4, 2, 3).prompts(cast(PromptMaker, NumberedPrompts()))
    assert len(prompts) == 2 * STREAMS
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 1
    assert len({tuple(prompt[4:]) for prompt in prompts}) == 2 * STREAMS


def test_times_are_better_when_lower_and_rates_when_higher() -> None:
    results = Results()
    for key, own, peer in (("rate", 30.0, 10.0), ("time", 10.0, 30.0)):
        results.values[key]["ostinato"].append(own)
        results.values[key]["peer"].append(peer)
    for key, higher in (("rate", True), ("time", False)):
        row = make_row(
            Figure(key, f"{key} s", higher), ["ostinato", "peer"], results, Work(), 0, LIMITS
        )
        assert row.versus_best == pytest.approx(3.0)
        assert relative(row) == pytest.approx({"ostinato": 3.0, "peer": 1.0})


def test_the_table_shows_a_dash_where_an_engine_has_no_figure() -> None:
    results = Results()
    results.values["x"]["ostinato"] += [1.0, 5.0, 2.0]
    row = make_row(
        Figure("x", "x, tokens/s", True, 1.5), ["ostinato", "peer"], results, Work(), 1, LIMITS
    )
    table = comparison_table([row], {"ostinato": "Ostinato", "peer": "Peer"}, "note")
    assert table.rows == [("x, tokens/s", "2", "–", "–", "1.5", "0%")]


def test_the_chart_holds_a_bar_for_every_engine_and_escapes_titles() -> None:
    results = Results()
    results.values["x"]["ostinato"].append(4.0)
    results.values["x"]["peer"].append(2.0)
    row = make_row(
        Figure("x", "a < b, tokens/s", True), ["ostinato", "peer"], results, Work(), 1, LIMITS
    )
    svg = svg_chart([row], {"ostinato": "Ostinato", "peer": "Peer & Co"})
    assert svg.count('height="11" fill="#c2410c"') == 2  # its bar and its place in the legend
    assert "a &lt; b" in svg
    assert "Peer &amp; Co" in svg
    assert ">2.00<" in svg


def test_the_limit_is_the_longer_of_computing_and_reading() -> None:
    assert Work(400e9, 200e9, 0).seconds(LIMITS) == pytest.approx(2.0)
    assert Work(400e9, 0, 50e9).seconds(LIMITS) == pytest.approx(5.0)


def test_the_best_limits_are_taken_one_by_one() -> None:
    disturbed = Limits(read=20.0, fp32=50.0, int16=100.0, int8=500.0, source="test")
    assert LIMITS.best(disturbed) == Limits(20.0, 100.0, 200.0, 500.0, "test")


def test_shares_of_rates_and_times_agree() -> None:
    work = Work(read_bytes=10e9)  # one second
    assert share_of_limit(8.0, work, 16, LIMITS, 1.0) == pytest.approx(0.5)
    assert share_of_limit(2000.0, work, 0, LIMITS, 1e-3) == pytest.approx(0.5)


def test_a_causal_prefill_counts_each_pair_once() -> None:
    work = COUNTS.prefill(4)
    assert work.attention_ops == (1 + 2 + 3 + 4) * 10
    assert work.linear_ops == 4 * 1000 + 100
    assert COUNTS.prefill(2, cached=3).attention_ops == (4 + 5) * 10


def test_streams_read_their_shared_prefix_once() -> None:
    assert COUNTS.step(5, shared=100, rows=4).read_bytes == 5000 + (4 * 5 + 100) * 20


def test_every_figure_of_every_scenario_has_counts() -> None:
    for scenario in [scenario for load in LOADS for scenario in scenarios(load)]:
        known = work_of(scenario, COUNTS)
        assert {figure.key for figure in scenario.figures()} <= set(known)


@pytest.mark.parametrize("scenario", [Prefill(8, warm=True), Decode(8, 4), Streams(8, 4)])
def test_a_turn_yields_the_figures_that_it_promises(scenario: Scenario) -> None:
    results = run([FakeEngine([])], [scenario])
    assert set(results.values) == {figure.key for figure in scenario.figures()}


def test_a_stream_of_events_gives_a_time_for_each_piece_and_the_usage() -> None:
    lines = (
        b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
        b'data: {"choices":[{"text":"","finish_reason":null}]}\n\n'
        b'data: {"choices":[{"text":"","finish_reason":"length"}],"usage":{"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":7}}}\n\n'
        b"data: [DONE]\n\n"
    )
    completion = read_stream(io.BytesIO(lines), 0.0)
    assert (len(completion.times), completion.output_tokens) == (2, 2)
    assert completion.cached_tokens == 7


def test_an_error_in_the_stream_is_an_error() -> None:
    with pytest.raises(EngineError, match="out of blocks"):
        read_stream(io.BytesIO(b'data: {"error": "out of blocks"}\n'), 0.0)


def test_torch_is_left_out_of_a_wheels_requirements(tmp_path: Path) -> None:
    import zipfile

    wheel = tmp_path / "peer-1.whl"
    metadata = "Requires-Dist: torch==2.13.0\nRequires-Dist: torchvision\nRequires-Dist: numpy>=2\n"
    metadata += 'Requires-Dist: pytest; extra == "dev"\n'
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("peer-1.dist-info/METADATA", metadata)
    assert requirements_without_torch(wheel) == ["numpy>=2"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["install"], "install which"),
        (["--repeats", "0"], "at least 1"),
        (["--setting", "OSTINATO_THREADS"], "NAME=VALUE"),
        (["--model", "no-such-model"], "there is no model 'no-such-model'"),
    ],
)
def test_a_command_that_cannot_work_is_refused_in_a_sentence(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.peers", *arguments])
    with pytest.raises(SystemExit) as stopped:
        peers_main()
    assert said in str(stopped.value) + capsys.readouterr().err
