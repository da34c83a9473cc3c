"""Guards the simulator: that it counts what the real cache would reuse, and that nothing beats the optimum."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.traffic import SHAPES, generate

from ostinato.cache.eviction import LRU, POLICIES
from ostinato.cache.tiers.policy import WritePolicy
from ostinato.cache.types import Tier
from ostinato.errors import ConfigError
from ostinato.insight.simulate.chart import save_chart, svg_chart
from ostinato.insight.simulate.optimum import NEVER, next_uses
from ostinato.insight.simulate.replay import Replay, TierSizes, replay
from ostinato.insight.simulate.sweep import ALL_POLICIES, default_capacities, sweep
from ostinato.insight.simulate.trace import read_trace, total_tokens

LINE = '{"timestamp": %d, "input_length": %d, "output_length": 9, "hash_ids": %s}\n'


def _trace(tmp_path: Path, *requests: tuple[int, list[int]]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(LINE % (at, n, ids) for at, (n, ids) in enumerate(requests)))
    return path


def test_a_repeated_prompt_reuses_all_but_its_last_token_and_a_continued_one_its_full_blocks(
    tmp_path: Path,
) -> None:
    path = _trace(tmp_path, (700, [1, 2]), (700, [1, 2]), (1100, [1, 3, 4]))
    result = replay(read_trace(path), "lru", 10)
    assert result.hit_tokens == 699 + 512
    assert result.prompt_tokens == 2500
    assert (result.requests, result.evicted_by_tier, result.refused) == (3, {Tier.DEVICE: 0}, 0)


@pytest.mark.parametrize("index", ["radix", "block_hash"])
def test_both_indexes_give_the_same_hits(index: str) -> None:
    requests = generate("agents", 150)
    assert replay(requests, "lru", 120, index=index) == replay(requests, "lru", 120)


def test_a_request_larger_than_the_cache_is_counted_and_nothing_else_breaks(tmp_path: Path) -> None:
    path = _trace(tmp_path, (512, [1]), (1536, [2, 3, 4]), (512, [1]))
    result = replay(read_trace(path), "lru", 2)
    assert (result.refused, result.hit_tokens) == (1, 511)


def test_what_the_device_evicted_is_found_in_ram_and_what_ram_evicted_on_disk(
    tmp_path: Path,
) -> None:
    path = _trace(tmp_path, (1024, [1, 2]), (1024, [3, 4]), (1024, [5, 6]), (1024, [1, 2]))
    below = TierSizes({Tier.RAM: 2, Tier.DISK: 4}, WritePolicy.WRITE_BACK)
    assert replay(read_trace(path), "lru", 2).hit_tokens == 0
    found = replay(read_trace(path), "lru", 2, below=below)
    assert found.hits_by_tier == {Tier.DEVICE: 0, Tier.RAM: 0, Tier.DISK: 1023}
    assert found.evicted_by_tier[Tier.DEVICE] == 6
    roomy = replace(below, blocks={Tier.RAM: 4})
    found = replay(read_trace(path), "lru", 2, below=roomy)
    assert found.hits_by_tier == {Tier.DEVICE: 0, Tier.RAM: 1023}
    assert found.evicted_by_tier == {Tier.DEVICE: 6, Tier.RAM: 2}


def test_device_and_tiers_share_one_prompt_and_each_counts_its_part(tmp_path: Path) -> None:
    path = _trace(tmp_path, (1536, [1, 2, 3]), (512, [9]), (1536, [1, 2, 3]))
    found = replay(read_trace(path), "lru", 3, below=TierSizes({Tier.RAM: 3}))
    assert found.hits_by_tier == {Tier.DEVICE: 1024, Tier.RAM: 511}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_tier_below_adds_hits_and_none_beats_one_cache_of_all_their_sizes(
    policy: str,
) -> None:
    requests = generate("chat", 300)
    below = TierSizes({Tier.RAM: 200, Tier.DISK: 800})
    alone = replay(requests, policy, 150)
    tiered = replay(requests, policy, 150, below=below)
    bound = replay(requests, "belady", 150, below=below)
    assert bound.num_blocks == 150
    assert alone.hit_tokens < tiered.hit_tokens <= bound.hit_tokens
    assert tiered.hits_by_tier[Tier.RAM] > 0
    assert tiered.hits_by_tier[Tier.DISK] > 0


@pytest.mark.parametrize("write_policy", list(WritePolicy))
def test_the_simulated_tiers_keep_their_bounds_and_their_books(write_policy: WritePolicy) -> None:
    below = TierSizes({Tier.RAM: 60, Tier.DISK: 200}, write_policy)
    cache = Replay("lru", LRU, 80, below=below)
    for request in generate("agents", 120):
        cache.serve(request)
        assert cache.tiers is not None
        for level in cache.tiers.stats().tiers:
            assert level.used_bytes <= level.capacity_bytes
    cache.manager.check_integrity([])
    copied = cache.result().written_by_tier
    assert copied[Tier.RAM] > 60
    assert copied[Tier.DISK] > 0


def test_the_future_is_known_block_by_block(tmp_path: Path) -> None:
    path = _trace(tmp_path, (1024, [1, 2]), (1024, [1, 3]), (1024, [1, 2]))
    assert next_uses(read_trace(path)) == [[1, 2], [2, NEVER], [NEVER, NEVER]]


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_no_policy_beats_the_optimum_and_more_room_never_hurts_it(shape: str) -> None:
    requests = generate(shape, 200)
    curves = sweep(
        requests, ALL_POLICIES, default_capacities(requests), block_tokens=512, index="radix"
    )
    best = [result.hit_tokens for result in curves["belady"]]
    assert best == sorted(best)
    for curve in curves.values():
        assert all(r.hit_tokens <= bound for r, bound in zip(curve, best, strict=True))
        assert {r.prompt_tokens for r in curve} == {total_tokens(requests)}


def test_our_policy_beats_lru_on_agents_that_share_tool_prompts() -> None:
    requests = generate("agents", 600)
    ours, lru = (replay(requests, policy, 300).hit_tokens for policy in ("reuse_rate", "lru"))
    assert ours > 1.1 * lru


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense\n", "line 1: not a request"),
        (LINE % (0, 2000, [1]), "2000 tokens do not fill 1 blocks of 512"),
        ('{"timestamp": 0}\n', "line 1: not a request"),
        (LINE % (0, 9, "5"), "line 1: not a request"),
        (LINE % (0, 9, "[[1]]"), "line 1: not a request"),
        (LINE % (0, 9, "[1.5]"), "line 1: not a request"),
        ("[" * 9**6, "line 1: not a request"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_line(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=message):
        read_trace(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "missing.jsonl")


def test_the_picture_has_a_line_for_each_policy_and_a_panel_for_each_trace() -> None:
    requests = generate("rag", 60)
    curves = sweep(requests, ("lru", "belady"), [10, 40], block_tokens=512, index="radix")
    picture = svg_chart({"a < b": curves, "c": curves})
    assert picture.count("<polyline") == 4
    assert "a &lt; b" in picture


def test_the_picture_is_also_a_png_of_twice_its_size(tmp_path: Path) -> None:
    requests = generate("rag", 40)
    curves = sweep(requests, ("lru",), [10, 40], block_tokens=512, index="radix")
    svg, png = save_chart({"a trace": curves}, tmp_path / "picture")
    header = png.read_bytes()[:24]
    assert header.startswith(b"\x89PNG\r\n\x1a\n")
    size = [int(re.search(rf' {name}="(\d+)"', svg.read_text())[1]) for name in ("width", "height")]  # type: ignore[index]
    assert struct.unpack(">II", header[16:]) == (2 * size[0], 2 * size[1])
