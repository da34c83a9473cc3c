"""Guards the memory of file digests: a stale entry would give one model's cache keys to another."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from ostinato.models.weights.files import DigestMemo, write_atomically


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def test_a_digest_is_computed_once_and_remembered_across_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"content")
    assert DigestMemo(tmp_path / "data").sha256(file) == sha256(b"content")

    def refuse(*_: object) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    assert DigestMemo(tmp_path / "data").sha256(file) == sha256(b"content")


def test_changed_content_of_the_same_size_gets_its_own_digest(tmp_path: Path) -> None:
    file, memo = tmp_path / "weights", DigestMemo(tmp_path / "data")
    file.write_bytes(b"old")
    status = file.stat()
    assert memo.sha256(file) == sha256(b"old")
    file.write_bytes(b"new")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert memo.sha256(file) == sha256(b"new")


def test_a_replaced_file_with_an_old_date_gets_its_own_digest(tmp_path: Path) -> None:
    file, memo = tmp_path / "weights", DigestMemo(tmp_path / "data")
    file.write_bytes(b"old")
    status = file.stat()
    assert memo.sha256(file) == sha256(b"old")
    other = tmp_path / "other"
    other.write_bytes(b"new")
    other.replace(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert memo.sha256(file) == sha256(b"new")


def test_entries_of_other_files_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memo = DigestMemo(tmp_path / "data")
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode())
        memo.sha256(tmp_path / name)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert memo.sha256(tmp_path / "one") == sha256(b"one")
    assert memo.sha256(tmp_path / "two") == sha256(b"two")


@pytest.mark.parametrize("content", [b"{ half", b"[]", b'{"/x": 3}', b"\xff\xfe"])
def test_a_damaged_memo_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"content")
    (tmp_path / "digests.json").write_bytes(content)
    assert DigestMemo(tmp_path).sha256(file) == sha256(b"content")
    assert DigestMemo(tmp_path).sha256(file) == sha256(b"content")


def test_a_memo_that_cannot_be_written_costs_a_warning_and_not_the_digest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"content")
    (tmp_path / "data").write_bytes(b"a file where the folder should be")
    assert DigestMemo(tmp_path / "data").sha256(file) == sha256(b"content")
    assert "cannot remember file digests" in caplog.text


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def fail(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
