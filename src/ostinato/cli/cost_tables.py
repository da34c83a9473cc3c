"""Figures about money and use as a table, CSV or JSON. Only the table rounds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any

import typer

from ostinato.cli import console

_DIGITS = Context(prec=28)
_WIDEST = 1000
"""Characters."""
_MICRODOLLAR = Decimal("0.000001")

Value = str | int | float | Decimal | Fraction | None


class Form(StrEnum):
    """How figures are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class Kind(StrEnum):
    """What a column holds: how its table cells are written."""

    TEXT = "text"
    COUNT = "count"
    DOLLARS = "dollars"
    FACTOR = "factor"
    SHARE = "share"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        key: its name in CSV and JSON.
        title: its heading in a table; empty for what a table leaves out.
        absent: what a table shows for None.
    """

    key: str
    title: str
    kind: Kind = Kind.DOLLARS
    absent: str = "–"


def form_of(as_json: bool, as_csv: bool) -> Form:
    """What ``--json`` and ``--csv`` ask for.

    Raises:
        typer.BadParameter: if they ask for both.
    """
    if as_json and as_csv:
        raise typer.BadParameter("give --json or --csv, not both", param_hint="--csv")
    return Form.JSON if as_json else Form.CSV if as_csv else Form.TABLE


def show(
    heading: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Value]],
    form: Form,
    notes: Sequence[str] = (),
) -> None:
    """Print `rows` on standard output; heading and notes belong to the table only."""
    if form is Form.TABLE:
        _show_table(heading, columns, rows)
        for note in notes:
            console.output().print(console.escape(note))
        return
    exact = [{column.key: plain(row[column.key]) for column in columns} for row in rows]
    if form is Form.JSON:
        typer.echo(json.dumps(exact, indent=2, ensure_ascii=False))
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, [column.key for column in columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows(exact)
    typer.echo(text.getvalue(), nl=False)


def plain(value: Value) -> str | int | float | None:
    """For programs: decimals as text with every digit; a fraction that never ends, to 28 digits."""
    if isinstance(value, Fraction):
        value = _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
    if isinstance(value, Decimal):
        return format(value.normalize(Context(prec=100)), "f")
    return value


def dollars(value: Decimal | Fraction) -> str:
    """For people: to the millionth of a dollar, at least two places."""
    if isinstance(value, Fraction):
        value = _DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator))
    rounded = value.quantize(_MICRODOLLAR, ROUND_HALF_EVEN)
    if value and not rounded:
        return "< $0.000001" if value > 0 else "> -$0.000001"
    whole, _, places = format(abs(rounded), "f").partition(".")
    sign = "-" if rounded < 0 else ""
    return f"{sign}${int(whole):,}.{places.rstrip('0').ljust(2, '0')}"


def _show_table(
    heading: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Value]]
) -> None:
    from rich import box
    from rich.table import Table

    shown = [column for column in columns if column.title]
    table = Table(
        title=console.escape(heading), title_justify="left", title_style="", box=box.SIMPLE_HEAD
    )
    for column in shown:
        text = column.kind is Kind.TEXT
        table.add_column(column.title, justify="left" if text else "right", no_wrap=text)
    for row in rows:
        table.add_row(*(console.escape(_cell(column, row[column.key])) for column in shown))
    out = console.output()
    # Figures are never cut to fit a terminal: a wide table runs on.
    natural = out.measure(table, options=out.options.update(max_width=_WIDEST)).maximum
    out.width = max(out.width, natural)
    out.print(table)


def _cell(column: Column, value: Any) -> str:
    if value is None:
        return column.absent
    match column.kind:
        case Kind.DOLLARS:
            return dollars(value)
        case Kind.COUNT:
            return f"{value:,}" if isinstance(value, int) else f"{float(value):,.10g}"
        case Kind.FACTOR:
            return f"{float(value):.4g}×"
        case Kind.SHARE:
            return f"{100 * float(value):.1f} %"
        case Kind.SECONDS:
            return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"
        case _:
            return str(value)
