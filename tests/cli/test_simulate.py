"""Guards what a user of ``ostinato simulate`` sees."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benchmarks.traffic import generate
from typer.testing import CliRunner

from ostinato.cli.main import app


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "agents.jsonl"
    lines = [
        {
            "timestamp": 1000 * request.seconds,
            "input_length": request.input_length,
            "output_length": 0,
            "hash_ids": request.blocks.tolist(),
        }
        for request in generate("agents", 60)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_a_trace_gives_a_table_of_policies_by_capacity(trace: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(trace)])
    assert result.exit_code == 0
    for name in ("lru", "lfu", "arc", "reuse_rate", "belady"):
        assert name in result.stdout
    assert "60 requests" in result.stdout


def test_json_holds_the_figures_of_the_chosen_policy_and_capacity(trace: Path) -> None:
    result = CliRunner().invoke(
        app, ["simulate", str(trace), "--policy", "lru", "--blocks", "50", "--skip", "10", "--json"]
    )
    (row,) = json.loads(result.stdout)[str(trace)]
    assert (row["policy"], row["num_blocks"], row["requests"]) == ("lru", 50, 50)
    assert row["hit_rate"] == row["hit_tokens"] / row["prompt_tokens"]


def test_tiers_below_the_device_are_shown_level_by_level(trace: Path) -> None:
    sizes = ["--blocks", "40", "--ram-blocks", "60", "--disk-blocks", "100"]
    result = CliRunner().invoke(app, ["simulate", str(trace), *sizes])
    assert result.exit_code == 0
    for heading in ("… on device", "… on ram", "… on disk", "Blocks evicted from disk"):
        assert heading in result.stdout
    assert "60 blocks of ram and 100 blocks of disk" in result.stdout
    assert "a second" in result.stderr
    result = CliRunner().invoke(app, ["simulate", str(trace), *sizes, "--policy", "lru", "--json"])
    (row,) = json.loads(result.stdout)[str(trace)]
    assert set(row["hits_by_tier"]) == {"device", "ram", "disk"}
    assert row["hit_tokens"] == sum(row["hits_by_tier"].values())
    assert row["hits_by_tier"]["ram"] > 0


def test_with_the_extra_the_picture_is_svg_and_png(trace: Path, tmp_path: Path) -> None:
    options = ["--policy", "lru", "--blocks", "50", "--plot", str(tmp_path / "p")]
    result = CliRunner().invoke(app, ["simulate", str(trace), *options])
    assert result.exit_code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_extra_the_picture_is_svg_and_the_message_says_how_to_get_png(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    result = CliRunner().invoke(
        app,
        [
            "simulate",
            str(trace),
            "--policy",
            "lru",
            "--blocks",
            "50",
            "--plot",
            str(tmp_path / "p"),
        ],
    )
    assert result.exit_code == 2
    assert "ostinato[plots]" in result.stderr
    assert (tmp_path / "p.svg").read_text().startswith("<svg")


def test_a_picture_needs_a_name(trace: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(trace), "--plot", "."])
    assert result.exit_code == 2
    assert "name a file in it" in result.output


def test_an_unknown_policy_is_refused_with_the_names_there_are(trace: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(trace), "--policy", "fifo"])
    assert result.exit_code == 2
    assert "belady" in result.stderr
