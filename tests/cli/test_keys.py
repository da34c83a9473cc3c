"""Guards ``ostinato keys``: a key is shown once, alone on standard output, so that a script can take it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from ostinato.api.key_file import read_keys
from ostinato.cli.keys import key_file_of
from ostinato.config import OstinatoConfig

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_key_s_life(run_ostinato: Run, tmp_path: Path) -> None:
    file = tmp_path / "below" / "keys.jsonl"
    where = ("--api-keys", str(file))
    made = run_ostinato("keys", "add", "acme", *where)
    assert made.returncode == 0
    key = made.stdout.rstrip("\n")
    assert key.startswith("sk-ost-")
    assert "\n" not in key
    assert key not in made.stderr
    assert "only time" in made.stderr
    run_ostinato("keys", "add", "prometheus", "--role", "monitor", *where)
    first, second = read_keys(file).records
    listed = run_ostinato("keys", "ls", *where).stdout.splitlines()
    assert [line.split()[:3] for line in listed] == [
        [first.key_id, "acme", "tenant"],
        [second.key_id, "prometheus", "monitor"],
    ]
    assert run_ostinato("keys", "revoke", first.key_id, *where).returncode == 0
    assert [record.tenant for record in read_keys(file).records] == ["prometheus"]
    again = run_ostinato("keys", "revoke", first.key_id, *where)
    assert again.returncode == 2
    assert "ostinato keys ls" in again.stderr


def test_what_cannot_be_a_tenant_is_told(run_ostinato: Run, tmp_path: Path) -> None:
    done = run_ostinato("keys", "add", "a b", "--api-keys", str(tmp_path / "keys"))
    assert done.returncode == 2
    assert "cannot be the name of a tenant" in done.stderr
    assert not (tmp_path / "keys").exists()


def test_a_folder_that_cannot_be_written_is_told(run_ostinato: Run) -> None:
    done = run_ostinato("keys", "add", "acme", "--api-keys", "/proc/none/keys")
    assert done.returncode == 2
    assert "cannot write the API keys" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_default_file_is_in_the_data_folder(tmp_path: Path) -> None:
    assert key_file_of(OstinatoConfig(data_dir=tmp_path)) == tmp_path / "api-keys.jsonl"
