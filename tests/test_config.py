"""Guards settings from the environment: a name that is misspelt is told, not ignored."""

from __future__ import annotations

import os

import pytest

from ostinato.config import load_config
from ostinato.errors import ConfigError


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("OSTINATO_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OSTINATO_MODLE", "OSTINATO_MODEL"),
        ("OSTINATO_PORT", "OSTINATO_SERVER__PORT"),
        ("OSTINATO_CACHE_BLOCK_SIZE", "OSTINATO_CACHE__BLOCK_SIZE"),
        ("OSTINATO_NUM_BLOCKS", "OSTINATO_CACHE__NUM_BLOCKS"),
        ("OSTINATO_DATADIR", "OSTINATO_DATA_DIR"),
        ("ostinato_modle", "OSTINATO_MODEL"),
    ],
)
def test_a_variable_that_names_no_setting_is_refused_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, "7")
    with pytest.raises(ConfigError, match=rf"{name} names no setting: did you mean {meant}\?"):
        load_config()


def test_a_variable_that_resembles_nothing_is_refused_with_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OSTINATO_QQQQQQ", "7")
    with pytest.raises(ConfigError, match=r"there are .*OSTINATO_CONFIG.*OSTINATO_MODEL"):
        load_config()


def test_a_misspelt_name_inside_a_section_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE__BLOKSIZE", "7")
    with pytest.raises(ConfigError, match=r"cache\.bloksize"):
        load_config()


def test_names_of_settings_are_taken_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ostinato_model", "mine")
    monkeypatch.setenv("OSTINATO_CACHE__BLOCK_SIZE", "32")
    monkeypatch.setenv("OSTINATO_SERVER", '{"port": 9000}')
    config = load_config()
    assert (config.model, config.cache.block_size, config.server.port) == ("mine", 32, 9000)


def test_what_kubernetes_sets_for_a_service_of_our_name_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OSTINATO_PORT", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("OSTINATO_PORT_8000_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("OSTINATO_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("OSTINATO_SERVICE_PORT_HTTP", "8000")
    assert load_config().server.port == 8000
