"""A real process is killed while it stores: what it had committed is there, and nothing else is ever served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.cache.tiers.base import TierAnswer
from tests.cache.tiers.crash_child import FORMAT
from tests.cache.tiers.tools import TierMaker, chain, content, keys_of, load

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("commits", [1, 7, 40])
def test_kill_9_loses_at_most_what_was_not_committed(tmp_path: Path, commits: int) -> None:
    folder = tmp_path / "kv"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.cache.tiers.crash_child", str(folder)],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    for _ in range(commits):
        child.stdout.readline()
    child.kill()
    committed = [commits - 1, *(int(line) for line in child.stdout if line.endswith("\n"))]
    child.wait()
    child.stdout.close()

    maker = TierMaker("disk", folder, format=FORMAT)
    tier = maker.make(64)
    newest = max(committed)
    for number in range(newest + 3):
        keys = keys_of(chain(f"prompt {number}", 5))
        hits, _ = tier.lookup_prefix(keys)
        if newest - 10 < number <= newest:  # older ones may have been evicted
            assert hits == 5
        assert all(tier.lookup(key) is not TierAnswer.HIT for key in keys[hits:])
        if hits:
            wanted = [content(key, FORMAT.block_bytes) for key in keys[:hits]]
            assert load(tier, keys[:hits]) == wanted
    assert tier.stats().failures == {}
    tier.check_integrity()
    maker.close()
