"""What ``ostinato cache`` says and mends: it must see the damage, and take out no more than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.cache.retention import Retention
from ostinato.cache.tiers import disk_check
from ostinato.cache.tiers.disk_files import BLOCKS_NAME, INDEX_NAME
from ostinato.cache.tiers.disk_folder import MANIFEST_NAME, format_folders
from ostinato.cache.tiers.disk_index import Drop
from ostinato.cache.tiers.record import RECORD_BYTES
from ostinato.cache.types import TenantId
from ostinato.errors import ConfigError
from tests.cache.tiers.tools import (
    BLOCK_BYTES,
    TierMaker,
    chain,
    content,
    keys_of,
    load,
    promised,
    store,
)

NOW = 1_000.0


@pytest.fixture
def maker(tmp_path: Path) -> TierMaker:
    """A folder with two prompts of four blocks in it, the second of tenant b and kept for an hour."""
    maker = TierMaker("disk", tmp_path / "kv")
    tier = maker.make(16)
    store(tier, chain("x", 4))
    store(tier, promised(chain("y", 4, tenant="b"), Retention(NOW + 3600, hard=False, ttl=3600)))
    tier.close()
    return maker


def flip(maker: TierMaker, name: str, offset: int) -> None:
    with (maker.folder / maker.format.name / name).open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_listing_counts_blocks_tenants_and_promises(maker: TierMaker) -> None:
    (content,) = disk_check.list_contents(maker.folder, NOW)
    assert (content.num_blocks, content.num_retained) == (8, 4)
    assert content.tenants == {TenantId("a"): 4, TenantId("b"): 4}
    assert content.num_bytes == content.folder.num_bytes == 8 * maker.slot_bytes
    assert content.newest == NOW
    assert not content.dropped
    (later,) = disk_check.list_contents(maker.folder, NOW + 3600)
    assert later.num_retained == 0


def test_a_listing_works_while_a_server_runs_and_nothing_else_does(maker: TierMaker) -> None:
    maker.make(16)
    assert disk_check.list_contents(maker.folder, NOW)[0].num_blocks == 8
    with pytest.raises(ConfigError, match="in use by process"), disk_check.locked(maker.folder):
        pass
    maker.close()


def test_sound_blocks_are_found_sound(maker: TierMaker) -> None:
    seen: list[int] = []
    verdict = disk_check.verify(format_folders(maker.folder)[0], NOW, seen.append)
    assert verdict.sound
    assert verdict.num_sound == 8
    assert sum(seen) == 8 * BLOCK_BYTES


def test_damage_is_found_and_repair_takes_out_no_more_than_it_reaches(maker: TierMaker) -> None:
    flip(maker, BLOCKS_NAME, 2 * BLOCK_BYTES + 5)  # the third block of x
    flip(maker, INDEX_NAME, 7 * RECORD_BYTES + 50)  # the record of the last block of y
    folder = format_folders(maker.folder)[0]
    verdict = disk_check.verify(folder, NOW)
    assert not verdict.sound
    assert (verdict.damaged, verdict.lost) == ({2}, {2, 3})
    assert verdict.dropped == {Drop.DAMAGED: 1}
    assert disk_check.repair(folder, NOW).repaired
    after = disk_check.verify(folder, NOW)
    assert after.sound
    assert after.num_sound == 5
    tier = maker.make(16)
    for keys in (keys_of(chain("x", 2)), keys_of(chain("y", 3, tenant="b"))):
        assert load(tier, keys) == [content(key) for key in keys]
    maker.close()


def test_pruning_keeps_heads_and_what_was_promised_and_cuts_the_files(maker: TierMaker) -> None:
    disk_check.prune(maker.folder, 5 * maker.slot_bytes, NOW)
    (found,) = disk_check.list_contents(maker.folder, NOW)
    assert (found.num_blocks, found.num_retained) == (5, 4)
    assert found.folder.num_bytes == 5 * maker.slot_bytes
    tier = maker.make(16)
    keys = keys_of(chain("y", 4, tenant="b"))
    assert load(tier, keys) == [content(key) for key in keys]
    assert load(tier, keys_of(chain("x", 1))) == [content(keys_of(chain("x", 1))[0])]
    maker.close()


def test_pruning_without_a_size_only_tidies(maker: TierMaker) -> None:
    tier = maker.make(16)
    tier.erase(keys_of(chain("x", 2))[1:])
    tier.close()
    disk_check.prune(maker.folder, None, NOW)
    (found,) = disk_check.list_contents(maker.folder, NOW)
    assert found.num_blocks == 5
    assert found.folder.num_bytes == 5 * maker.slot_bytes
    assert disk_check.verify(found.folder, NOW).num_sound == 5


def test_pruning_to_nothing_leaves_no_folder(maker: TierMaker) -> None:
    disk_check.prune(maker.folder, 1, NOW)
    assert disk_check.list_contents(maker.folder, NOW) == []


def test_a_folder_of_another_version_is_named_and_goes_first(maker: TierMaker) -> None:
    foreign = maker.folder / "0123456789abcdef"
    foreign.mkdir()
    (foreign / MANIFEST_NAME).write_text('{"format_version": 99, "model": "x"}')
    (foreign / BLOCKS_NAME).write_bytes(bytes(5000))
    contents = {c.folder.path.name: c for c in disk_check.list_contents(maker.folder, NOW)}
    assert not contents[foreign.name].folder.readable
    disk_check.prune(maker.folder, 8 * maker.slot_bytes + 100, NOW)
    assert [f.path.name for f in format_folders(maker.folder)] == [maker.format.name]
    assert disk_check.list_contents(maker.folder, NOW)[0].num_blocks == 8


def test_pruning_takes_other_versions_out_without_a_size_too(maker: TierMaker) -> None:
    foreign = maker.folder / "0123456789abcdef"
    foreign.mkdir()
    (foreign / MANIFEST_NAME).write_text('{"format_version": 99, "model": "x"}')
    (foreign / BLOCKS_NAME).write_bytes(bytes(5000))
    disk_check.prune(maker.folder, None, NOW)
    assert [f.path.name for f in format_folders(maker.folder)] == [maker.format.name]


def test_what_else_lies_in_the_folder_is_neither_listed_nor_deleted(maker: TierMaker) -> None:
    stranger = maker.folder / "photos"
    stranger.mkdir()
    (stranger / "beach.jpg").write_text("precious")
    assert len(disk_check.list_contents(maker.folder, NOW)) == 1
    disk_check.prune(maker.folder, None, NOW)
    disk_check.prune(maker.folder, 1, NOW)
    disk_check.clear(maker.folder)
    assert (stranger / "beach.jpg").exists()


@pytest.mark.parametrize(
    "block_bytes", ["0", "-160", "true", "1e3", "9e99", "null", str(2**62), "[" * 9**6]
)
def test_a_manifest_with_an_impossible_block_is_not_readable(
    maker: TierMaker, block_bytes: str
) -> None:
    manifest = maker.folder / maker.format.name / MANIFEST_NAME
    manifest.write_text(f'{{"format_version": 1, "model": "x", "block_bytes": {block_bytes}}}')
    (found,) = disk_check.list_contents(maker.folder, NOW)
    assert not found.folder.readable


def test_clearing_deletes_one_folder_or_all(maker: TierMaker) -> None:
    assert disk_check.clear(maker.folder, "another") == 0
    assert disk_check.clear(maker.folder, maker.format.name) == 1
    assert disk_check.clear(maker.folder) == 0


def test_a_listing_writes_nothing_and_passes_over_a_folder_that_cannot_be_read(
    maker: TierMaker,
) -> None:
    second = TierMaker("disk", maker.folder, clock=maker.clock)
    third = TierMaker("disk", maker.folder, clock=maker.clock)
    for other in (second, third):
        other.make().close()
    (maker.folder / second.format.name / INDEX_NAME).unlink()
    (maker.folder / second.format.name / INDEX_NAME).mkdir()
    for name in (BLOCKS_NAME, INDEX_NAME):
        (maker.folder / third.format.name / name).unlink()
    found = {c.folder.path.name: c for c in disk_check.list_contents(maker.folder, NOW)}
    assert found[maker.format.name].num_blocks == 8
    error = found[second.format.name].error
    assert error is not None
    assert INDEX_NAME in error
    assert (found[third.format.name].error, found[third.format.name].num_blocks) == (None, 0)
    assert not (maker.folder / third.format.name / BLOCKS_NAME).exists()
