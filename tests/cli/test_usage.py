"""Guards ``ostinato usage`` and the commands of ``ostinato cost`` that read the ledger: the flags select what
they say, programs get every digit, and what cannot be is said with the fix."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ostinato.cli.main import app
from ostinato.ledger.location import ledger_url
from ostinato.ledger.record import LedgerRecord, TokenRecord
from ostinato.ledger.store import LedgerStore
from tests.ledger.samples import NOON, record

HOUR = 3600
PRICES = '[[model]]\nmodels = ["tiny"]\ninput = 1\nread = 0.1\noutput = 2\n'


def write(folder: Path, *records: LedgerRecord) -> None:
    url = ledger_url(None, folder)
    assert url is not None
    store = LedgerStore(url)
    store.open()
    store.write(records)
    store.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Four requests of two days, two tenants and two models: 100 to 103 input tokens, 30 to 36 cached."""
    write(
        tmp_path,
        record(0, prompt_cache_key="k", template_id="greet", template_version="1"),
        record(1, time=NOON + 60, tenant="acme", prompt_cache_key="k"),
        record(2, time=NOON + HOUR, prompt_cache_key="k", error="client_disconnected"),
        record(3, time=NOON + 24 * HOUR, model="large", ttft=None),
    )
    return tmp_path


def run(folder: Path, *arguments: str) -> Result:
    environment = {"COLUMNS": "80", "OSTINATO_DATA_DIR": str(folder)}
    return CliRunner().invoke(app, list(arguments), env=environment)


def usage(folder: Path, *arguments: str) -> list[dict[str, object]]:
    result = run(folder, "usage", "--json", *arguments)
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


def test_by_default_requests_are_put_together_by_day(ledger: Path) -> None:
    first, second = usage(ledger)
    assert first == {
        "day": "2026-11-30",
        "requests": 3,
        "errors": 1,
        "input_tokens": 303,
        "cached_tokens": 93,
        "cached_share": 93 / 303,
        "cache_read_tokens": 93,
        "cache_write_short_tokens": 0,
        "cache_write_long_tokens": 0,
        "output_tokens": 30,
        "total_tokens": 333,
        "storage_token_seconds": 0,
        "ttft_p50_s": 0.25,
        "ttft_p95_s": 0.25,
    }
    assert (second["day"], second["requests"], second["ttft_p50_s"]) == ("2026-12-01", 1, None)


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        (["--by", "model"], [("large",), ("tiny",)]),
        (["--by", "tenant", "--by", "model"], [("acme", "tiny"), ("default", "large"), ("default", "tiny")]),
        (["--by", "template"], [("greet@1",), (None,)]),
        (["--by", "hour", "--tenant", "acme"], [("2026-11-30 12:00",)]),
        (["--by", "model", "--model", "large"], [("large",)]),
        (["--since", "2026-12-01"], [("2026-12-01",)]),
        (["--until", "2026-11-30T14:30+02:00", "--by", "cache-key"], [("k",)]),
        (["--since", "2030-01-01"], []),
    ],
)  # fmt: skip
def test_flags_choose_groups_and_requests(
    ledger: Path, flags: list[str], keys: list[tuple[str | None, ...]]
) -> None:
    names = [flags[i + 1].replace("-", "_") for i, flag in enumerate(flags) if flag == "--by"]
    rows = usage(ledger, *flags)
    assert [tuple(row[name] for name in names or ["day"]) for row in rows] == keys


def test_the_same_comes_as_csv(ledger: Path) -> None:
    result = run(ledger, "usage", "--by", "model", "--csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["model"], row["total_tokens"]) for row in rows] == [
        ("large", "113"),
        ("tiny", "333"),
    ]


def test_a_table_ends_with_everything_and_cuts_no_figure(ledger: Path) -> None:
    result = run(ledger, "usage")
    assert "…" not in result.output
    *_, last = (line for line in result.output.splitlines() if line.strip())
    assert last.split()[:6] == ["all", "4", "1", "406", "126", "31.0"]
    assert "read" not in result.output  # says nothing that `cached` does not


def test_an_age_counts_back_from_now(tmp_path: Path) -> None:
    from ostinato.clock import SystemClock

    now = SystemClock().time()
    write(tmp_path, record(1, time=now - 30 * 60), record(2, time=now - 3 * HOUR))
    assert sum(int(str(row["requests"])) for row in usage(tmp_path, "--since", "1h")) == 1
    assert sum(int(str(row["requests"])) for row in usage(tmp_path, "--since", "240m")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["usage"], "`ostinato serve` begins one"),
        (["usage", "--ledger", "off"], "switched off"),
        (["usage", "--ledger", "mysql://x"], "sqlite:///FILE or"),
        (["usage", "--since", "yesterday"], "24h"),
        (["usage", "--json", "--csv"], "not both"),
        (["cost", "saved"], "`ostinato serve` begins one"),
        (["cost", "ttl", "claude-opus-5-5"], "`ostinato serve` begins one"),
    ],
)
def test_what_cannot_be_is_said_with_the_fix(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    assert message in text
    assert list(tmp_path.iterdir()) == []


def test_what_caching_saved_is_priced_from_the_ledger(ledger: Path) -> None:
    prices = ledger / "prices.toml"
    prices.write_text(PRICES, encoding="utf-8")
    result = run(ledger, "cost", "saved", "--json", "--prices", str(prices), "--model", "tiny")
    [row] = json.loads(result.stdout)
    # 303 input of which 93 read, 30 output: per million 210 × 1 + 93 × 0.1 + 30 × 2, against 303 + 60.
    assert (row["model"], row["requests"]) == ("tiny", 3)
    assert (row["total"], row["without_caching"], row["saved"]) == (
        "0.0002793",
        "0.000363",
        "0.0000837",
    )


def test_the_cheapest_ttl_follows_from_the_gaps_in_the_ledger(ledger: Path) -> None:
    """Tenant default used k twice, an hour apart; acme's k is another one."""
    flags = ("cost", "ttl", "claude-opus-5-5", "--json")
    recorded = json.loads(run(ledger, *flags, "--tenant", "default").stdout)
    given = json.loads(run(ledger, *flags, "--gaps", "3600").stdout)
    assert recorded == given


def test_without_a_cache_key_nobody_guesses_what_belongs_together(tmp_path: Path) -> None:
    write(tmp_path, record(1))
    result = run(tmp_path, "cost", "ttl", "claude-opus-5-5")
    assert result.exit_code == 2
    assert "prompt_cache_key" in result.output


def test_storage_stands_in_a_column_of_its_own_where_there_is_any(ledger: Path) -> None:
    assert "stored" not in run(ledger, "usage").output
    bill = {"tokens": TokenRecord(), "status": None, "ttft": None, "finish_reason": None}
    write(ledger, record(7, dialect="gemini_cache", storage_token_seconds=9000, **bill))
    table = run(ledger, "usage", "--by", "dialect").output
    assert "stored token-hours" in table
    line = next(line for line in table.splitlines() if "gemini_cache" in line)
    assert (line.split()[1], line.split()[-1]) == ("0", "2.5")


def test_prune_says_what_goes_and_asks_first(ledger: Path) -> None:
    before = ("usage", "prune", "--before", "2026-12-01")
    said = "3 records of 2 tenants, from 2026-11-30 12:00 to 2026-11-30 13:00 UTC"
    result = CliRunner().invoke(
        app, list(before), input="n\n", env={"OSTINATO_DATA_DIR": str(ledger), "COLUMNS": "80"}
    )
    assert result.exit_code == 1
    assert said in result.output
    assert len(usage(ledger)) == 2
    result = run(ledger, *before, "--yes")
    assert said in result.output
    assert "Deleted 3 records." in result.output
    assert [row["day"] for row in usage(ledger)] == ["2026-12-01"]
    assert "No record in" in run(ledger, *before).output


def test_prune_takes_an_age_and_one_tenant_alone(tmp_path: Path) -> None:
    from ostinato.clock import SystemClock

    now = SystemClock().time()
    write(
        tmp_path,
        record(1, time=now - 80 * HOUR, tenant="acme"),
        record(2, time=now - 80 * HOUR),
        record(3, time=now - HOUR, tenant="acme"),
    )
    run(tmp_path, "usage", "prune", "--older-than", "2d", "--tenant", "acme", "--yes")
    assert sum(int(str(row["requests"])) for row in usage(tmp_path)) == 2
    assert sum(int(str(row["requests"])) for row in usage(tmp_path, "--tenant", "acme")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["usage", "prune"], "--before"),
        (["usage", "prune", "--older-than", "long"], "24h"),
        (["usage", "prune", "--before", "2d"], "`ostinato serve` begins one"),
        (
            ["usage", "--ledger", "sqlite:///x", "prune", "--before", "2d"],
            "goes behind the word prune",
        ),
    ],
)
def test_what_prune_cannot_do_is_said(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = run(tmp_path, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
