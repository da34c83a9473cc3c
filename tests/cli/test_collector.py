"""Guards a start against the collector, and that it runs afterwards, whatever became of the start."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ostinato.cli.collector import collecting_once_ready


@pytest.fixture(autouse=True)
def collector_is_as_before() -> Iterator[None]:
    yield
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_nothing_is_collected_before_all_is_ready_and_what_was_there_is_left_alone_afterwards() -> (
    None
):
    with collecting_once_ready() as ready:
        assert not gc.isenabled()
        ready()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000


def test_a_start_that_fails_leaves_the_collector_running() -> None:
    with pytest.raises(RuntimeError), collecting_once_ready():
        raise RuntimeError("the model cannot be read")
