"""What only the disk tier has: files, a lock, a file system that fills up, other models' folders."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ostinato.cache.retention import Retention
from ostinato.cache.tiers import disk, disk_folder
from ostinato.cache.tiers.base import KVTier, TierFailure
from ostinato.cache.tiers.disk import PAUSE_SECONDS
from ostinato.cache.tiers.disk_files import BLOCKS_NAME, INDEX_NAME, BlockFiles
from ostinato.cache.tiers.disk_folder import LOCK_NAME, MANIFEST_NAME, FolderLock
from ostinato.cache.tiers.disk_index import hard_deadlines, read_index
from ostinato.cache.tiers.record import RECORD_BYTES, BlockRecord
from ostinato.errors import ConfigError
from tests.cache.tiers.tools import (
    BLOCK_BYTES,
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


def test_what_expires_while_it_is_written_leaves_no_bytes_either(maker: TierMaker) -> None:
    tier = maker.make()
    head, tail = chain("x", 2)
    hard = Retention(maker.clock.time() + 60, hard=True, ttl=60)
    job = tier.prepare_store([*promised([head], hard), tail])
    assert job is not None
    for at, block in enumerate(job.blocks):
        assert tier.write(job, at, memoryview(content(block.identity.key)))
    maker.clock.advance(60)
    tier.expire()
    tier.complete_store(job, 2)
    data = file_of(maker, BLOCKS_NAME).read_bytes() + file_of(maker, INDEX_NAME).read_bytes()
    assert not data.strip(b"\0")
    maker.close()


def test_what_else_lies_in_the_folder_is_never_deleted(maker: TierMaker, tmp_path: Path) -> None:
    strangers = [maker.folder / name for name in ("photos", "lost+found", ".removed-mine")]
    for stranger in strangers:
        stranger.mkdir(parents=True)
        (stranger / "index").write_text("not ours")
    (maker.folder / "0123456789abcdef").symlink_to(tmp_path, target_is_directory=True)
    other = TierMaker("disk", maker.folder)
    store(other.make(8), chain("o", 8))
    other.close()
    tier = maker.make(8)
    store(tier, chain("x", 8))
    assert not (maker.folder / other.format.name).exists()
    assert tier.stats().num_blocks == 8
    maker.close()
    assert all((stranger / "index").exists() for stranger in strangers)
    assert tmp_path.exists()


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


def other_model(maker: TierMaker) -> TierMaker:
    """For another model's blocks in the same folder, by the same clock."""
    return TierMaker("disk", maker.folder, clock=maker.clock)


@pytest.mark.parametrize("is_running", [True, False])
def test_what_was_promised_to_be_erased_is_erased_while_another_model_is_served(
    maker: TierMaker, is_running: bool
) -> None:
    hard = Retention(maker.clock.time() + 60, hard=True, ttl=60)
    later = Retention(maker.clock.time() + 90, hard=True, ttl=90)
    tier = maker.make()
    head, *behind = chain("x", 3)
    store(tier, [*promised([head], hard), *behind])
    store(tier, promised(chain("y", 1), later))
    store(tier, chain("z", 1))
    tier.close()
    last_used = file_of(maker, BLOCKS_NAME).stat().st_mtime
    if not is_running:
        maker.clock.advance(60)
    served = other_model(maker).make()
    if is_running:
        before = file_of(maker, INDEX_NAME).read_bytes()
        maker.clock.advance(59)
        served.expire()
        assert file_of(maker, INDEX_NAME).read_bytes() == before
        maker.clock.advance(1)
        served.expire()
    written = file_of(maker, BLOCKS_NAME).read_bytes()
    assert [content(key) in written for key in keys_of([head, *behind])] == [False] * 3
    assert file_of(maker, BLOCKS_NAME).stat().st_mtime == last_used
    assert content(keys_of(chain("y", 1))[0]) in written
    maker.clock.advance(30)
    served.expire()
    assert content(keys_of(chain("y", 1))[0]) not in file_of(maker, BLOCKS_NAME).read_bytes()
    served.close()
    again = maker.make()
    assert stored(again, keys_of(chain("z", 1))) == [True]
    assert again.stats().num_blocks == 1
    assert not again.stats().failures
    again.close()


def test_a_folder_of_another_model_that_cannot_be_read_is_counted_and_keeps_nobody_from_serving(
    maker: TierMaker,
) -> None:
    maker.make().close()
    file_of(maker, INDEX_NAME).unlink()
    file_of(maker, INDEX_NAME).mkdir()
    served = other_model(maker).make()
    assert store(served, chain("x", 2))
    assert served.stats().failures == {TierFailure.IO_ERROR: 1}
    served.close()


def test_a_head_whose_promise_was_renewed_at_its_tail_alone_is_not_expired(
    maker: TierMaker,
) -> None:
    now = maker.clock.time()
    tier = maker.make()
    short, long = (Retention(now + ttl, hard=True, ttl=60) for ttl in (60, 120))
    head, tail = chain("x", 2)
    store(tier, [*promised([head], short), *promised([tail], long)])
    tier.close()
    files = BlockFiles(maker.folder / maker.format.name, BLOCK_BYTES, RoomyIO())
    records = {slot: BlockRecord.unpack(data) for slot, data in files.records()}
    first = next(slot for slot, record in records.items() if record.identity == head.identity)
    files.write_record(first, replace(records[first], retention=short).pack())
    assert set(read_index(files, now + 100).live) == set(records)
    assert set(hard_deadlines(read_index(files, now)).values()) == {now + 120}
    assert not read_index(files, now + 120).live
    files.close()


def test_files_that_somebody_deletes_are_noticed_and_what_was_there_is_read_still(
    maker: TierMaker, caplog: pytest.LogCaptureFixture
) -> None:
    tier = maker.make()
    blocks = chain("x", 2)
    store(tier, blocks)
    shutil.rmtree(maker.folder / maker.format.name)
    with caplog.at_level(logging.WARNING):
        assert not store(tier, chain("y", 2))
        assert not store(tier, chain("z", 1))
    assert tier.stats().failures == {TierFailure.VANISHED: 3}
    assert tier.stats().refused_blocks == 3
    assert len(caplog.records) == 1
    assert load(tier, keys_of(blocks)) == [content(key) for key in keys_of(blocks)]
    tier.close()


def test_who_only_asks_who_uses_the_folder_keeps_no_server_from_starting(
    maker: TierMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker.make().close()
    asking = os.open(maker.folder / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    waits = []

    class Event:
        def wait(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                os.close(asking)

    monkeypatch.setattr(disk_folder.threading, "Event", Event)
    FolderLock(maker.folder).release()
    assert len(waits) == 3


def test_a_stop_does_not_wait_for_a_device_that_hangs(
    maker: TierMaker, io: RefusingIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    tier = maker.make()
    store(tier, chain("x", 1))
    monkeypatch.setattr(disk, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(io, "sync", lambda descriptor: gate.wait(20.0))
    tier.close()
    monkeypatch.undo()
    again = maker.make()
    assert stored(again, keys_of(chain("x", 1))) == [True]
    gate.set()
