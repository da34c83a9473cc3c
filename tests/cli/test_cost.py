"""Guards ``ostinato cost``: figures for programs keep every digit, those for people are rounded once."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ostinato.cli.cost_tables import dollars, plain
from ostinato.cli.main import app

NOON = ["--at", "2026-11-29T12:00"]


def cost(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cost", *arguments], env={"COLUMNS": "140"})


def test_models_are_listed_with_their_prices() -> None:
    result = cost("models", "claude-opus-5-5", "--provider", "anthropic", *NOON)
    assert result.exit_code == 0
    (row,) = (line for line in result.output.splitlines() if "claude-opus-5-5" in line)
    assert row.split()[2:] == ["$4.00", "$0.20", "$5.00", "$8.00", "$20.00", "–"]


def test_a_long_prompt_s_prices_are_listed_on_request() -> None:
    result = cost("models", "gpt-6.1-sol", "--prompt-tokens", "272001", "--json", *NOON)
    (row,) = json.loads(result.stdout)
    assert (row["input"], row["write_long"], row["storage"]) == ("4", "10", None)
    assert "genai-prices" in row["sources"]
    assert "(2026-11-29)" in row["sources"]


def test_a_provider_that_nobody_knows_is_refused() -> None:
    result = cost("models", "--provider", "nobody")
    assert result.exit_code == 2
    assert "nobody" in result.output


def test_a_request_is_split_by_what_is_paid_for() -> None:
    arguments = ["--read", "90000", "--uncached", "500", "--output-tokens", "800"]
    result = cost("request", "claude-opus-5-5", *arguments, "--json", *NOON)
    parts = {row["part"]: row["dollars"] for row in json.loads(result.stdout)}
    assert parts == {
        "input": "0.002",
        "read": "0.018",
        "write, short": "0",
        "write, long": "0",
        "storage": "0",
        "output": "0.016",
        "total": "0.036",
        "without caching": "0.378",
        "saved": "0.342",
    }


def test_an_unknown_price_is_printed_as_unknown() -> None:
    result = cost("request", "gemini-4-argon", "--token-hours", "5", *NOON)
    assert "unknown" in result.output
    assert result.exit_code == 0


def test_peak_hours_follow_the_given_time_and_its_offset() -> None:
    prices = [
        json.loads(cost("models", "deepseek-flash", "--at", at, "--json").stdout)[0]["input"]
        for at in ("2026-11-30T01:00", "2026-11-30T09:00+08:00", "2026-11-30T04:00")
    ]
    assert prices == ["0.3", "0.3", "0.15"]


def test_break_even_says_from_which_request_on() -> None:
    result = cost("break-even", "claude-opus-5", *NOON)
    rows = {line.split()[0]: line.split() for line in result.output.splitlines() if "write" in line}
    assert rows["short"][2:] == ["1.25×", "0.1×", "2", "$0.1575", "$1.00", "84.2", "%"]
    assert rows["long"][4] == "3"


def test_break_even_as_csv_has_exact_figures() -> None:
    result = cost("break-even", "gemini-2.5-pro", "--hit-probability", "2/3", "--csv", *NOON)
    rows = {row["strategy"]: row for row in csv.DictReader(io.StringIO(result.stdout))}
    # a later request: (2/3)·0.1 + 1/3 = 0.4 of the input; storage 3.6: N > 4.6 / 0.6 = 7.67
    assert rows["cache object"]["pays_from_request"] == "8"
    assert rows["automatic"]["pays_from_request"] == "2"


def test_what_never_pays_says_so() -> None:
    result = cost("break-even", "claude-opus-5", "--hit-probability", "0", *NOON)
    assert "never" in result.output


def test_the_curves_are_drawn(tmp_path: Path) -> None:
    target = tmp_path / "curves.svg"
    result = cost("break-even", "claude-opus-5", "--plot", str(target), *NOON)
    assert result.exit_code == 0
    assert target.read_text(encoding="utf-8").startswith("<svg")


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / "none" / "curves.svg"
    assert cost("break-even", "claude-opus-5", "--plot", str(target)).exit_code == 2


def test_gaps_come_from_the_command_line_or_a_file(tmp_path: Path) -> None:
    listed = tmp_path / "gaps.txt"
    listed.write_text("60\n600\n5400\n", encoding="utf-8")
    flags = ["--prefix-tokens", "1000000", "--json", *NOON]
    typed = cost("ttl", "claude-opus-5", "--gaps", "60,600,5400", *flags).stdout
    assert typed == cost("ttl", "claude-opus-5", "--gaps", str(listed), *flags).stdout
    rows = json.loads(typed)
    assert [row["strategy"] for row in rows] == ["short write", "no caching", "long write"]
    assert [row["cost"] for row in rows] == ["19.25", "20", "21"]


def test_the_operator_s_prices_are_used(tmp_path: Path) -> None:
    table = tmp_path / "prices.toml"
    table.write_text("[[model]]\nmodels = ['mine']\ninput = 1\noutput = 2\nread = 0\n")
    result = cost("request", "mine", "--read", "1000", "--uncached", "10", "--prices", str(table))
    assert "$0.00001" in result.output
    assert "$0.00101" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["request", "claude-opus-55"], "claude-opus-5-5"),
        (["request", "claude-opus-5", "--term", "turbo"], "batch"),
        (["request", "claude-opus-5", "--at", "noon"], "2026-11-30T02:00"),
        (["request", "claude-opus-5", "--token-hours", "-1"], "0"),
        (["break-even", "claude-opus-5", "--hit-probability", "1.5"], "between 0 and 1"),
        (["break-even", "claude-opus-5", "--hit-probability", "often"], "not a number"),
        (["ttl", "claude-opus-5", "--gaps", "no-such-file"], "neither numbers nor a file"),
        (["models", "--json", "--csv"], "not both"),
        (["models", "--prices", "no-such-file"], "cannot read the price table"),
    ],
)
def test_a_mistake_is_answered_with_what_would_be_right(arguments: list[str], words: str) -> None:
    result = cost(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0", "$0.00"),
        ("1234.5", "$1,234.50"),
        ("0.0000005", "< $0.000001"),
        ("0.0000015", "$0.000002"),
        ("0.0000025", "$0.000002"),
        ("-0.09", "-$0.09"),
        ("-0.0000001", "> -$0.000001"),
    ],
)
def test_money_is_rounded_to_the_millionth_half_to_even(value: str, shown: str) -> None:
    assert dollars(Decimal(value)) == shown


def test_money_for_programs_is_not_rounded() -> None:
    assert plain(Decimal("0.00000000012300")) == "0.000000000123"
    assert plain(Decimal("100")) == "100"
    assert plain(Fraction(1, 8)) == "0.125"
    assert plain(Fraction(1, 3)) == "0." + "3" * 28
