"""Guards settings: a name that is misspelt is told, not ignored, and the stronger source wins."""

from __future__ import annotations

import os
from pathlib import Path

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


@pytest.mark.parametrize("text", ["notjson", "[1]", ""])
def test_a_section_that_is_no_json_object_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", text)
    with pytest.raises(
        ConfigError, match=r"OSTINATO_CACHE must be a JSON object.*OSTINATO_CACHE__"
    ):
        load_config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[cache]\nblok_size = 8\n",
            r"cache\.blok_size names no setting: did you mean cache\.block_size\?",
        ),
        ("block_size = 8\n", r"block_size names no setting: did you mean cache\.block_size\?"),
        ("[cahce]\nblock_size = 8\n", r"cahce names no setting: did you mean cache\?"),
        ("modle = 'x'\n", r"modle names no setting: did you mean model\?"),
        ("qqqqqq = 1\n", r"qqqqqq names no setting: there are .*cache\.block_size"),
        ("this is no toml", "."),
    ],
)
def test_a_mistake_in_the_file_names_the_file_and_what_was_meant(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "ostinato.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"ostinato\.toml: {said}"):
        load_config(toml_file=file)


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ostinato.toml"
    file.write_bytes(b"model = '\xe9'")
    with pytest.raises(ConfigError, match=r"ostinato\.toml: "):
        load_config(toml_file=file)


def test_memory_may_be_given_with_a_unit_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "ostinato.toml"
    file.write_text("[cache]\nkv_memory_bytes = '1.5GB'\n", encoding="utf-8")
    assert load_config(toml_file=file).cache.kv_memory_bytes == 1_500_000_000
    monkeypatch.setenv("OSTINATO_CACHE__KV_MEMORY_BYTES", "2GiB")
    assert load_config(toml_file=file).cache.kv_memory_bytes == 2**31
    monkeypatch.setenv("OSTINATO_CACHE__KV_MEMORY_BYTES", "1073741824")
    assert load_config().cache.kv_memory_bytes == 2**30
    monkeypatch.setenv("OSTINATO_CACHE__KV_MEMORY_BYTES", "lots")
    with pytest.raises(ConfigError, match=r"cache\.kv_memory_bytes: .*'lots' is not a size"):
        load_config()


@pytest.mark.parametrize("where", ["environment", "file"])
def test_a_flag_for_the_pool_s_size_wins_over_the_other_kind_of_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    file = tmp_path / "ostinato.toml"
    file.write_text("", encoding="utf-8")

    def inherit(name: str, value: int) -> None:
        if where == "file":
            file.write_text(f"[cache]\nblock_size = 8\n{name} = {value}\n", encoding="utf-8")
        else:
            monkeypatch.setenv(f"OSTINATO_CACHE__{name.upper()}", str(value))
            monkeypatch.setenv("OSTINATO_CACHE__BLOCK_SIZE", "8")

    inherit("num_blocks", 50)
    cache = load_config({"cache": {"kv_memory_bytes": 2**20}}, file).cache
    assert (cache.kv_memory_bytes, cache.num_blocks, cache.block_size) == (2**20, None, 8)
    assert load_config({"cache": {"kv_dtype": "fp32"}}, file).cache.num_blocks == 50
    monkeypatch.delenv("OSTINATO_CACHE__NUM_BLOCKS", raising=False)
    inherit("kv_memory_bytes", 2**20)
    cache = load_config({"cache": {"num_blocks": 9}}, file).cache
    assert (cache.kv_memory_bytes, cache.num_blocks) == (None, 9)


@pytest.mark.parametrize(
    ("text", "seconds"), [("forever", None), ("90d", 7_776_000.0), (" 36h ", 129_600.0)]
)
def test_how_long_the_ledger_keeps_records_has_a_unit(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float | None
) -> None:
    monkeypatch.setenv("OSTINATO_LEDGER__KEEP", text)
    assert load_config().ledger.keep == seconds


@pytest.mark.parametrize("text", ["90", "0d", "-1d", "5m", "always", ""])
def test_an_age_that_could_be_misread_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Days that were taken for seconds would delete a ledger."""
    monkeypatch.setenv("OSTINATO_LEDGER__KEEP", text)
    with pytest.raises(ConfigError, match="such as 90d or 36h"):
        load_config()
