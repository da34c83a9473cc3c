"""``ostinato cost saved``: what caching saved on the requests that the ledger knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ostinato.cli import console
from ostinato.cli.cost_flags import CsvFlag, JsonFlag, PricesFlag
from ostinato.cli.cost_tables import Column, Form, Kind, Value, form_of, show
from ostinato.cli.ledger_access import (
    DataDirFlag,
    LedgerFlag,
    ModelFlag,
    SinceFlag,
    TenantFlag,
    UntilFlag,
    filter_of,
    reading_ledger,
)

if TYPE_CHECKING:
    from ostinato.ledger.cost_savings import ModelBill

_COLUMNS = (
    Column("model", "model", Kind.TEXT),
    Column("requests", "requests", Kind.COUNT),
    Column("unpriced", "unpriced", Kind.COUNT),
    Column("input", "input"),
    Column("write_short", "written, short"),
    Column("write_long", "written, long"),
    Column("read", "read"),
    Column("storage", "storage"),
    Column("output", "output"),
    Column("total", "total"),
    Column("without_caching", "without caching"),
    Column("saved", "saved"),
)


def saved(
    since: SinceFlag = None,
    until: UntilFlag = None,
    tenant: TenantFlag = None,
    model: ModelFlag = None,
    prices: PricesFlag = None,
    ledger: LedgerFlag = None,
    data_dir: DataDirFlag = None,
    as_json: JsonFlag = False,
    as_csv: CsvFlag = False,
) -> None:
    """What the requests in the ledger cost, and what they would have cost without caching."""
    form = form_of(as_json, as_csv)
    which = filter_of(since, until, tenant, model)
    from ostinato.ledger.cost_savings import bills
    from ostinato.ledger.prices_book import load_book
    from ostinato.ledger.query import usage_rows

    book = load_book(prices)
    with reading_ledger(ledger, data_dir) as connection:
        found = bills(usage_rows(connection, which), book)
    rows = [_row(bill) for bill in found]
    columns = _COLUMNS if form is not Form.TABLE else _without_empty(rows)
    show("What caching saved, in dollars", columns, rows, form)
    if any(bill.unpriced for bill in found):
        console.messages().print(
            "Unpriced: the tokens or the price are not known. A model of your own is priced in a TOML file,"
            " given with --prices (see `ostinato cost --help`)."
        )


def _without_empty(rows: Sequence[Mapping[str, Value]]) -> list[Column]:
    """For a table: no column for what nobody did."""
    maybe = {"unpriced", "write_short", "write_long", "storage"}
    return [c for c in _COLUMNS if c.key not in maybe or any(row[c.key] for row in rows)]


def _row(bill: ModelBill) -> dict[str, Value]:
    cost = bill.cost
    return {
        "model": bill.model,
        "requests": bill.priced,
        "unpriced": bill.unpriced,
        "input": cost.input,
        "write_short": cost.write_short,
        "write_long": cost.write_long,
        "read": cost.read,
        "storage": cost.storage,
        "output": cost.output,
        "total": cost.total,
        "without_caching": cost.without_caching,
        "saved": cost.saved,
    }
