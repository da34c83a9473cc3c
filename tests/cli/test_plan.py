"""Guards ``ostinato plan``: the right figure in front of the user, and an error instead of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ostinato.cli.main import app
from tests.cli.conftest import ENDLESS_CONTEXT

LLAMA = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--context", "4096"]
MLA = ["--layers", "61", "--mla-latent", "512", "--mla-rope", "64"]


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "100"})


def test_the_figure_of_the_manual_is_512_mib() -> None:
    result = plan(*LLAMA, "--batch", "1", "--kv-bytes", "2")
    assert result.exit_code == 0
    assert "in all       512 MiB (batch 1)" in result.output


def test_what_fits_in_the_given_memory_is_printed() -> None:
    assert "196,608 tokens, or 48 contexts of 4,096" in plan(*LLAMA, "--memory", "24GiB").output


def test_given_query_heads_the_kinds_of_attention_are_set_side_by_side() -> None:
    rows = plan(*LLAMA, "--heads", "32").output.splitlines()
    assert any("MHA" in row and "2 GiB" in row and "100 %" in row for row in rows)
    assert any("GQA (this one)" in row and "512 MiB" in row and "25 %" in row for row in rows)
    assert any("MQA" in row and "64 MiB" in row for row in rows)


def test_json_has_the_same_figures_in_bytes() -> None:
    result = json.loads(plan(*MLA, "--context", "1000", "--memory", "1GiB", "--json").stdout)
    assert result["elements_per_token"] == (512 + 64) * 61
    assert result["bytes_per_token"] == 70_272
    assert result["bytes_total"] == 70_272_000
    assert result["memory"] == {"bytes": 2**30, "tokens": 15_279, "contexts": 15}


def test_every_format_is_listed_with_what_it_fits_of_fp16() -> None:
    result = plan(*LLAMA, "--memory", "24GiB")
    rows = {row.split()[0]: row.split() for row in result.output.splitlines() if row.strip()}
    assert rows["fp16"][1:] == ["128", "KiB", "1.00", "196,608"]
    assert rows["int8"][1:4] == rows["fp8"][1:4] == ["65", "KiB", "1.97"]
    assert rows["int4"][1:] == ["41", "KiB", "3.12", "613,800"]


def test_larger_blocks_make_int4_cheaper_and_leave_the_rest_as_it_is() -> None:
    result = json.loads(plan(*LLAMA, "--block-size", "64", "--json").stdout)
    sizes = {row["kv_dtype"]: row["bytes_per_token"] for row in result["formats"]}
    assert sizes["int8"] == 65 * 1024
    assert sizes["int4"] == 32 * 8 * ((64 * 64 + 128 * 4) + (64 * 64 + 64 * 4)) / 64


def test_formats_of_heads_are_not_shown_for_mla() -> None:
    assert "int8" not in plan(*MLA).output
    assert "formats" not in json.loads(plan(*MLA, "--json").stdout)


def test_a_format_that_cannot_store_such_heads_is_left_out() -> None:
    odd = ["--layers", "1", "--kv-heads", "1", "--head-dim", "7", "--json"]
    listed = [row["kv_dtype"] for row in json.loads(plan(*odd).stdout)["formats"]]
    assert listed == ["fp32", "fp16", "fp8", "int8"]


def test_a_model_gives_its_own_numbers(tiny_model: Path) -> None:
    result = json.loads(plan("--model", str(tiny_model), "--json").stdout)
    assert result["elements_per_token"] == 2 * 2 * 2 * 16  # K and V, layers, K/V heads, head dim
    assert result["context"] == ENDLESS_CONTEXT
    assert [row["kind"] for row in result["comparison"]] == ["MHA", "GQA", "MQA"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--layers, --kv-heads, --head-dim missing"),
        (["--layers", "2", "--kv-heads", "1"], "--head-dim missing"),
        (["--mla-latent", "512", "--layers", "2"], "--mla-rope missing"),
        ([*MLA, "--kv-heads", "8"], "--kv-heads cannot be used here: MLA has no K/V heads"),
        (
            ["--model", "x", "--layers", "2"],
            "--layers cannot be used here: --model gives the shape",
        ),
        ([*LLAMA, "--memory", "much"], "'much' is not a size"),
        ([*LLAMA, "--kv-bytes", "0"], "kv_bytes must be 0.01 to 100"),
        ([*LLAMA, "--kv-bytes", "1e308", "--memory", "2GiB"], "kv_bytes must be 0.01 to 100"),
        ([*LLAMA, "--kv-bytes", "1e-320", "--memory", "2GiB"], "kv_bytes must be 0.01 to 100"),
        ([*LLAMA, "--batch", "9" * 400], "batch must be 1 to 1,000,000,000,000, not 999"),
        ([*LLAMA, "--layers", "9" * 400], "layers must be at most 1,000,000,000,000, not 999"),
        ([*LLAMA, "--heads", "9" * 400], "must be a multiple"),
        ([*LLAMA, "--heads", "8" + "0" * 400], "kv_heads must be at most 1,000,000,000,000"),
        ([*LLAMA, "--memory", "9" * 400 + "GiB"], "a size must be below"),
        (["--model", ""], "the name of the model is empty"),
        ([*LLAMA, "--heads", "12"], "must be a multiple"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_what_cannot_be_computed_is_an_error_that_says_why(arguments: list[str], said: str) -> None:
    result = plan(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
