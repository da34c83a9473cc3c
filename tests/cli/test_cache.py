"""``ostinato cache``: what people see, and what programs read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ostinato.cli.main import app
from tests.cache.tiers.tools import BLOCK_BYTES, TierMaker, chain, store


@pytest.fixture
def maker(tmp_path: Path) -> TierMaker:
    maker = TierMaker("disk", tmp_path / "kv")
    tier = maker.make(8)
    store(tier, chain("x", 4))
    tier.close()
    return maker


def run(maker: TierMaker, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(
        app, ["cache", *arguments, "--dir", str(maker.folder)], input=stdin, env={"COLUMNS": "200"}
    )
    return result.exit_code, result.stdout, result.stderr


def damage(maker: TierMaker) -> None:
    with (maker.folder / maker.format.name / "blocks").open("r+b") as file:
        file.seek(BLOCK_BYTES + 3)
        file.write(b"????")


def test_ls_names_model_format_and_size(maker: TierMaker) -> None:
    status, out, _ = run(maker, "ls")
    assert status == 0
    for word in (maker.format.name, "tiny", "fp16", "1.6 KiB"):
        assert word in out
    status, out, _ = run(maker, "ls", "--json")
    (folder,) = json.loads(out)["folders"]
    assert (folder["blocks"], folder["tenants"], folder["readable"]) == (4, {"a": 4}, True)


def test_ls_says_who_uses_the_folder_and_the_others_refuse(maker: TierMaker) -> None:
    maker.make(8)
    status, _, err = run(maker, "ls")
    assert status == 0
    assert "In use by process" in err
    for command in (["verify"], ["prune"], ["clear", "--yes"]):
        status, _, err = run(maker, *command)
        assert status == 2
        assert "in use by process" in err
        assert "stop that" in err
    maker.close()


def test_verify_finds_damage_and_repair_mends_it(maker: TierMaker) -> None:
    assert run(maker, "verify")[0] == 0
    damage(maker)
    status, out, err = run(maker, "verify")
    assert status == 1
    assert "1 damaged, 2 behind them" in out
    assert "--repair" in err
    status, out, _ = run(maker, "verify", "--json")
    assert status == 1
    assert json.loads(out)[0]["damaged_blocks"] == 1
    status, out, _ = run(maker, "verify", "--repair")
    assert status == 0
    assert "(taken out)" in out
    status, out, _ = run(maker, "verify")
    assert status == 0
    assert "1 blocks sound" in out


def test_verify_does_not_pass_over_a_folder_whose_manifest_is_damaged(maker: TierMaker) -> None:
    (maker.folder / maker.format.name / "manifest.json").write_text("{")
    status, out, err = run(maker, "verify")
    assert status == 1
    assert "Nothing is kept" not in out
    assert f"{maker.format.name} cannot be checked" in err
    assert run(maker, "prune")[0] == 0
    assert run(maker, "verify")[0] == 0


def test_prune_shrinks_to_a_size(maker: TierMaker) -> None:
    status, out, _ = run(maker, "prune", "--to", "1KiB", "--json")
    assert status == 0
    assert json.loads(out) == {
        "bytes_before": 4 * maker.slot_bytes,
        "bytes_after": 2 * maker.slot_bytes,
    }


def test_clear_asks_first(maker: TierMaker) -> None:
    assert run(maker, "clear", stdin="n\n")[0] == 1
    assert "4" in run(maker, "ls", "--json")[1]
    status, _, err = run(maker, "clear", "--folder", "nothing", "--yes")
    assert status == 2
    assert "ostinato cache ls" in err
    assert run(maker, "clear", stdin="y\n")[0] == 0
    assert "Nothing is kept" in run(maker, "ls")[1]


def test_a_folder_that_is_not_there_is_an_error_that_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["cache", "ls", "--dir", str(tmp_path / "no")])
    assert result.exit_code == 2
    assert "there is no K/V cache in" in result.stderr


def test_ls_names_a_folder_that_cannot_be_read_and_lists_the_others(maker: TierMaker) -> None:
    broken = TierMaker("disk", maker.folder)
    broken.make().close()
    index = maker.folder / broken.format.name / "index"
    index.unlink()
    index.mkdir()
    status, out, err = run(maker, "ls")
    assert status == 0
    assert maker.format.name in out
    assert "Cannot be read" in err
    assert broken.format.name in err
    assert run(maker, "verify")[0] == 1
