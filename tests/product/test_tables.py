"""Guards the counters that callers are billed by: each vendor's rules, request by request."""

from __future__ import annotations

import pytest

from tests.product import tables_anthropic, tables_deepseek, tables_gemini, tables_openai
from tests.product.shop import Row, Shop

TABLES = {
    "anthropic": tables_anthropic.ROWS,
    "openai": tables_openai.ROWS,
    "gemini": tables_gemini.ROWS,
    "deepseek": tables_deepseek.ROWS,
}
ROWS = [
    pytest.param(row, id=f"{vendor}: {row.name}") for vendor, rows in TABLES.items() for row in rows
]


@pytest.mark.parametrize("row", ROWS)
def test_a_sequence_of_requests_has_the_counters_of_its_vendor(row: Row) -> None:
    Shop(row.rules).run(row.steps)


@pytest.mark.parametrize("vendor", TABLES)
def test_each_vendor_has_its_rows_and_each_row_a_name_of_its_own(vendor: str) -> None:
    names = [row.name for row in TABLES[vendor]]
    assert len(names) >= 25
    assert len(set(names)) == len(names)
