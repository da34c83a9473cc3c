"""Guards against a server that does not start, or keeps quiet, because the file of entries cannot be used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ostinato.cache.types import Tier
from ostinato.cli.prompt_entries import prompt_cache_of
from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.product.entry_file import FILE_NAME, EntryFile

SECRET = b"s" * 32


def engine(*tiers: Tier) -> Any:
    """As much of one as is asked: its block size, and what lies below its pool."""
    below = SimpleNamespace(tiers=[SimpleNamespace(tier=tier) for tier in tiers]) if tiers else None
    return SimpleNamespace(
        limits=SimpleNamespace(block_size=16), stats=lambda: SimpleNamespace(tiers=below)
    )


def place(folder: Path, *tiers: Tier, rules: str = "anthropic-512") -> str | None:
    config = OstinatoConfig.model_validate({"data_dir": folder, "product": {"house_rules": rules}})
    with prompt_cache_of(config, ManualClock(), SECRET, engine(*tiers)) as served:
        assert (served.writer is None) == (served.place is None or "in memory" in served.place)
        return served.place


@pytest.mark.parametrize("lasting", [Tier.DISK, Tier.REMOTE])
def test_entries_are_kept_where_k_v_is(tmp_path: Path, lasting: Tier) -> None:
    said = place(tmp_path, Tier.RAM, lasting)
    assert said == f"{tmp_path / FILE_NAME}; 0 from an earlier start"


@pytest.mark.parametrize("tiers", [(), (Tier.RAM,)])
def test_without_a_lasting_tier_nothing_is_written(tmp_path: Path, tiers: tuple[Tier, ...]) -> None:
    said = place(tmp_path, *tiers)
    assert said is not None
    assert "--disk-tier" in said
    assert list(tmp_path.iterdir()) == []


def test_rules_without_entries_need_no_file_and_no_word(tmp_path: Path) -> None:
    assert place(tmp_path, Tier.DISK, rules="local") is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_server_uses_or_that_is_none_is_told(tmp_path: Path) -> None:
    other = EntryFile(tmp_path / FILE_NAME)
    said = place(tmp_path, Tier.DISK)
    other.close()
    assert said is not None
    assert "another server uses" in said
    (tmp_path / "elsewhere" / FILE_NAME).mkdir(parents=True)
    said = place(tmp_path / "elsewhere", Tier.DISK)
    assert said is not None
    assert "cannot be used" in said
