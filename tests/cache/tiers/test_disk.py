"""What only the disk tier has: files, a lock, a file system that fills up, other models' folders."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import KVTier, TierFailure
from ostinato.cache.tiers.disk import PAUSE_SECONDS
from ostinato.cache.tiers.disk_files import BLOCKS_NAME, INDEX_NAME
from ostinato.cache.tiers.disk_folder import MANIFEST_NAME
from ostinato.cache.tiers.record import RECORD_BYTES
from ostinato.errors import ConfigError
from tests.cache.tiers.tools import (
    GIB,
    RoomyIO,
    TierMaker,
    chain,
    content,
    keys_of,
    load,
    promised,
    store,
    stored,
)


class RefusingIO(RoomyIO):
    """Writes fail with `error` while it is set."""

    error: int | None = None
    free = 900 * GIB

    def pwrite(self, descriptor: int, data: memoryview | bytes, offset: int) -> int:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return super().pwrite(descriptor, data, offset)

    def free_space(self, path: Path) -> tuple[int, int]:
        return self.free, 1000 * GIB


@pytest.fixture
def io() -> RefusingIO:
    return RefusingIO()


@pytest.fixture
def maker(tmp_path: Path, io: RefusingIO) -> TierMaker:
    return TierMaker("disk", tmp_path / "kv", io=io)


def file_of(maker: TierMaker, name: str) -> Path:
    return maker.folder / maker.format.name / name


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def reopened(maker: TierMaker, num_blocks: int = 8) -> KVTier:
    maker.close()
    return maker.make(num_blocks)


def test_a_flipped_byte_is_a_miss_for_its_block_and_all_behind_it(
    maker: TierMaker, caplog: pytest.LogCaptureFixture
) -> None:
    tier = maker.make()
    blocks = chain("x", 4)
    store(tier, blocks)
    overwrite(file_of(maker, BLOCKS_NAME), 160 + 7, b"!")
    with caplog.at_level(logging.WARNING):
        assert load(tier, keys_of(blocks)) == [content(keys_of(blocks)[0])]
        store(tier, blocks)
        overwrite(file_of(maker, BLOCKS_NAME), 160 + 7, b"!")
        load(tier, keys_of(blocks))
    assert stored(tier, keys_of(blocks)) == [True, False, False, False]
    assert tier.stats().failures == {TierFailure.CORRUPT: 2}
    assert len(caplog.records) == 1
    maker.close()


def test_a_file_that_was_cut_is_a_short_read(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 2)
    store(tier, blocks)
    os.truncate(file_of(maker, BLOCKS_NAME), 160 + 10)
    assert len(load(tier, keys_of(blocks))) == 1
    assert tier.stats().failures == {TierFailure.SHORT_READ: 1}
    second = reopened(maker)
    assert stored(second, keys_of(blocks)) == [True, False]
    maker.close()


def test_records_of_a_foreign_version_are_passed_over(maker: TierMaker) -> None:
    import zlib

    blocks = chain("x", 3)
    store(maker.make(), blocks)
    maker.close()
    path = file_of(maker, INDEX_NAME)
    record = bytearray(path.read_bytes()[RECORD_BYTES : 2 * RECORD_BYTES])
    record[4:6] = (77).to_bytes(2, "little")
    record[-4:] = zlib.crc32(record[:-4]).to_bytes(4, "little")
    overwrite(path, RECORD_BYTES, bytes(record))
    tier = maker.make()
    assert stored(tier, keys_of(blocks)) == [True, False, False]
    assert tier.stats().failures == {TierFailure.FOREIGN_VERSION: 1}
    maker.close()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOSPC, TierFailure.NO_SPACE),
        (errno.EROFS, TierFailure.READ_ONLY),
        (errno.EIO, TierFailure.IO_ERROR),
    ],
)
def test_a_failing_device_costs_no_block_that_is_there(
    maker: TierMaker, io: RefusingIO, error: int, reason: TierFailure
) -> None:
    tier = maker.make()
    blocks, others = chain("x", 4), chain("y", 2)
    store(tier, blocks)
    io.error = error
    store(tier, others)
    assert not any(stored(tier, keys_of(others)))
    assert tier.stats().failures[reason] >= 1
    assert tier.prepare_store(others) is None  # left alone for a while
    assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]
    io.error = None
    maker.clock.advance(PAUSE_SECONDS)
    assert store(tier, others)
    assert all(stored(tier, keys_of(others)))
    tier.check_integrity()
    maker.close()


def test_a_share_of_the_file_system_stays_free(maker: TierMaker, io: RefusingIO) -> None:
    tier = maker.make(8)
    store(tier, chain("x", 3))
    io.free = 100 * GIB + 2 * maker.slot_bytes  # two blocks above the tenth that stays free
    assert tier.prepare_store(chain("big", 6)) is None
    assert store(tier, chain("y", 3))  # two more, and one that gives way
    assert tier.stats().num_blocks == 5
    io.free = 0
    assert store(tier, chain("z", 2))
    assert tier.stats().num_blocks == 5
    maker.close()


def test_files_never_grow_beyond_the_bound(maker: TierMaker) -> None:
    tier = maker.make(4)
    for number in range(20):
        store(tier, chain(f"p{number}", 3))
        size = sum(file_of(maker, name).stat().st_size for name in (BLOCKS_NAME, INDEX_NAME))
        assert size <= 4 * maker.slot_bytes
    maker.close()


def test_another_models_folder_gives_way_when_room_is_needed(
    maker: TierMaker, tmp_path: Path
) -> None:
    other = TierMaker("disk", maker.folder)
    store(other.make(8), chain("o", 5))
    other.close()
    tier = maker.make(8)
    store(tier, chain("x", 3))
    assert (maker.folder / other.format.name).exists()
    store(tier, chain("y", 2))
    assert not (maker.folder / other.format.name).exists()
    assert tier.stats().num_blocks == 5
    maker.close()


def test_what_was_promised_to_be_erased_leaves_no_bytes(maker: TierMaker) -> None:
    tier = maker.make()
    blocks = chain("x", 3)
    until = maker.clock.time() + 60
    store(tier, promised(blocks, Retention(until, hard=True, ttl=60)))
    maker.clock.advance(60)
    tier.expire()
    data = file_of(maker, BLOCKS_NAME).read_bytes() + file_of(maker, INDEX_NAME).read_bytes()
    assert not data.strip(b"\0")
    maker.close()


def test_two_processes_never_share_a_folder(maker: TierMaker) -> None:
    maker.make()
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()} on "):
        maker.make()
    script = (
        "import sys; from pathlib import Path; from ostinato.cache.tiers.disk_folder import FolderLock; "
        "FolderLock(Path(sys.argv[1]))"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(maker.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"in use by process {os.getpid()} on " in child.stderr
    maker.close()
    maker.make()
    maker.close()


def test_the_manifest_says_what_the_folder_holds(maker: TierMaker) -> None:
    maker.make()
    manifest = json.loads(file_of(maker, MANIFEST_NAME).read_text())
    assert manifest["model"] == "tiny"
    assert manifest["kv_dtype"] == "fp16"
    assert manifest["block_bytes"] == maker.format.block_bytes
    assert manifest["format_version"] == 1
    maker.close()


def test_k_v_on_disk_is_for_its_owner_alone(maker: TierMaker) -> None:
    store(maker.make(), chain("x", 1))
    assert maker.folder.stat().st_mode & 0o077 == 0
    for name in (BLOCKS_NAME, INDEX_NAME):
        assert file_of(maker, name).stat().st_mode & 0o077 == 0
    maker.close()


def test_a_folder_that_cannot_be_made_is_refused_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name a folder that may be written"):
        TierMaker("disk", tmp_path / "file" / "kv").make()


def test_a_prompt_that_is_stored_at_once_lies_in_a_row(maker: TierMaker) -> None:
    tier = maker.make(8)
    job = tier.prepare_store(chain("x", 6))
    assert job is not None
    assert job.places == tuple(range(6))
    tier.complete_store(job, 0)
    maker.close()
