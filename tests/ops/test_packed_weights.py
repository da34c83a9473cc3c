"""Guards the folders of packed weights: those of models that changed must go, and never one that is in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ostinato.clock import ManualClock
from tests.ops.backends import needs_native
from tests.ops.test_cpu_weights import k_quantised

pytestmark = needs_native

DAY = 24 * 3600.0
NOW = 2e9
NAMES = [letter * 32 for letter in "abc"]


def use(folder: Path, clock: ManualClock) -> object:
    """A start with the model of this folder; what it returns holds the folder."""
    from ostinato.ops.cpu_weights import pack
    from ostinato.ops.packed_weights import PackedWeights

    cache = PackedWeights(folder, clock)
    pack([k_quantised()], cache, "auto")
    return cache


def kept(root: Path) -> list[str]:
    return sorted(folder.name for folder in root.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Folders a and b, last used 31 and 29 days before NOW."""
    for name in NAMES[:2]:
        use(tmp_path / name, ManualClock(NOW))
    for name, days in zip(NAMES, (31, 29), strict=False):
        os.utime(tmp_path / name, (NOW - days * DAY,) * 2)
    assert kept(tmp_path) == NAMES[:2]
    return tmp_path


def test_packing_another_model_deletes_what_was_not_used_for_thirty_days(root: Path) -> None:
    use(root / NAMES[2], ManualClock(NOW))
    assert kept(root) == NAMES[1:]


def test_a_start_that_only_reads_counts_as_use_and_deletes_nothing(root: Path) -> None:
    use(root / NAMES[0], ManualClock(NOW))
    assert kept(root) == NAMES[:2]
    use(root / NAMES[2], ManualClock(NOW + DAY / 2))
    assert kept(root) == NAMES


def test_what_another_process_uses_stays(root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ostinato.clock import ManualClock\n"
        "from ostinato.ops.packed_weights import PackedWeights\n"
        "cache = PackedWeights(Path(sys.argv[1]), ManualClock(0.0))\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(root / NAMES[0])]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        use(root / NAMES[2], ManualClock(NOW))
        assert kept(root) == NAMES
        server.communicate()
    use(root / ("d" * 32), ManualClock(NOW))
    assert NAMES[0] not in kept(root)


def test_what_is_not_a_model_s_folder_stays(root: Path) -> None:
    (root / "notes").mkdir()
    (root / "file").write_bytes(b"")
    for path in (root / "notes", root / "file"):
        os.utime(path, (0, 0))
    use(root / NAMES[2], ManualClock(NOW))
    assert kept(root) == [*NAMES[1:], "file", "notes"]


def test_a_folder_in_use_by_this_process_stays_until_it_is_let_go(root: Path) -> None:
    held = use(root / NAMES[0], ManualClock(NOW - 40 * DAY))
    use(root / NAMES[2], ManualClock(NOW))
    assert kept(root) == NAMES
    del held
    use(root / ("d" * 32), ManualClock(NOW))
    assert kept(root) == [*NAMES[1:], "d" * 32]
