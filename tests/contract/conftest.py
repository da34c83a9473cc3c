"""Tiers of each kind, whole at the end of every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ostinato.cache.tiers.base import KVTier
from tests.cache.tiers.tools import TierMaker


def _maker(request: pytest.FixtureRequest, folder: Path) -> Iterator[TierMaker]:
    url = request.getfixturevalue("redis_server").url if request.param == "remote" else ""
    made = TierMaker(request.param, folder / "kv", url)
    yield made
    for tier in made.made:
        tier.check_integrity()
    made.close()


@pytest.fixture(params=["ram", "disk", "remote"])
def maker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TierMaker]:
    yield from _maker(request, tmp_path)


@pytest.fixture(params=["disk", "remote"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TierMaker]:
    """Makes tiers whose blocks outlive the process."""
    yield from _maker(request, tmp_path)


@pytest.fixture
def tier(maker: TierMaker) -> KVTier:
    return maker.make()
