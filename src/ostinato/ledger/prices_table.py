"""Price tables as TOML: ours (`data/prices.toml`), and the operator's for models served here.

Ours has four kinds of row:

- ``[[override]]`` is laid over what a price package says: what it lacks (storage, 12-hour writes), or cannot
  say (peak hours on weekdays only), or whole vendors that it does not have;
- ``[[fallback]]`` stands in where the package is not installed or does not know the model;
- ``[[vendor]]`` has the TTLs that the writes buy;
- ``[[multiplier]]`` has factors such as batch.

The operator's has ``[[model]]`` rows only. Each row of ours has its source and the day it was read. A price is
a number of dollars per 1,000,000 tokens, or ``{ times_input = 2 }``. A row's ``period`` rows, of which the last
in effect counts, are laid over the row. Numbers are read as decimals, never as
binary fractions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ostinato.errors import ConfigError
from ostinato.ledger.prices import (
    ALL_WEEK,
    TOKEN_RATES,
    Band,
    Layer,
    Multiplier,
    Period,
    Rate,
    TTLs,
    Window,
)

LOCAL = "local"
"""Provider of the models that are served here."""

Amount = Annotated[Decimal, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[int, Field(gt=0)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _TimesInput(_Row):
    times_input: Amount


class _Prices(_Row):
    input: Amount | None = None
    output: Amount | _TimesInput | None = None
    read: Amount | _TimesInput | None = None
    write_short: Amount | _TimesInput | None = None
    write_long: Amount | _TimesInput | None = None
    storage: Amount | None = None

    def band(self, above: int = 0) -> Band:
        given = {rate: getattr(self, rate.value) for rate in Rate}
        return Band(
            above=above,
            fixed={rate: v for rate, v in given.items() if isinstance(v, Decimal)},
            times_input={r: v.times_input for r, v in given.items() if isinstance(v, _TimesInput)},
        )


class _BandRow(_Prices):
    above: int = Field(gt=0)


class _WindowRow(_Row):
    start: time
    end: time
    weekdays: frozenset[Annotated[int, Field(ge=1, le=7)]] = ALL_WEEK


class _PeriodRow(_Prices):
    since: date | None = None
    windows: tuple[_WindowRow, ...] = ()
    over: tuple[_BandRow, ...] = ()

    def period(self) -> Period:
        higher = sorted(self.over, key=lambda row: row.above)
        return Period(
            bands=(self.band(), *(row.band(row.above) for row in higher)),
            since=self.since,
            windows=tuple(Window(w.start, w.end, w.weekdays) for w in self.windows),
        )


class _ModelRow(_PeriodRow):
    models: tuple[str, ...] = Field(min_length=1)
    period_rows: tuple[_PeriodRow, ...] = Field(default=(), alias="period")
    source: str
    as_of: date | None = None
    note: str = ""

    def layers(self) -> tuple[Layer, ...]:
        """The row's own prices, and its periods laid over them."""
        own = Layer((self.period(),), self.source, self.as_of)
        if not self.period_rows:
            return (own,)
        periods = tuple(row.period() for row in self.period_rows)
        return (own, Layer(periods, self.source, self.as_of))


class _VendorPriceRow(_ModelRow):
    provider: str
    as_of: date


class _LocalRow(_ModelRow):
    source: str = "the operator"
    like: str | None = None
    ttl_short: Seconds | None = None
    ttl_long: Seconds | None = None


class _VendorRow(_Row):
    provider: str
    ttl_short: Seconds | None = None
    ttl_long: Seconds | None = None
    source: str
    as_of: date


class _MultiplierRow(_Row):
    provider: str
    term: str
    factor: Amount
    models: tuple[str, ...] = ("*",)
    rates: frozenset[Rate] = TOKEN_RATES
    source: str
    as_of: date


class _OurFile(_Row):
    override: tuple[_VendorPriceRow, ...] = ()
    fallback: tuple[_VendorPriceRow, ...] = ()
    vendor: tuple[_VendorRow, ...] = ()
    multiplier: tuple[_MultiplierRow, ...] = ()


class _OperatorFile(_Row):
    model: tuple[_LocalRow, ...] = ()


@dataclass(frozen=True, slots=True)
class VendorPrices:
    """One row: the models it is for (names or patterns) and its prices."""

    provider: str
    models: tuple[str, ...]
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Our own table, read."""

    overrides: tuple[VendorPrices, ...]
    fallbacks: tuple[VendorPrices, ...]
    ttls: dict[str, TTLs]
    multipliers: dict[str, tuple[Multiplier, ...]]


@dataclass(frozen=True, slots=True)
class LocalPrices:
    """One row of the operator's.

    Attributes:
        ttls: None where the row does not say.
        place: file and row, for errors.
        like: name of the model whose prices these are laid over, or None.
    """

    models: tuple[str, ...]
    layers: tuple[Layer, ...]
    ttls: TTLs
    place: str
    like: str | None


@cache
def our_table() -> PriceTable:
    """The table that comes with the package."""
    text = files("ostinato.ledger").joinpath("data/prices.toml").read_text(encoding="utf-8")
    table = _read(_OurFile, text, "data/prices.toml")
    multipliers: dict[str, tuple[Multiplier, ...]] = {}
    for row in table.multiplier:
        multiplier = Multiplier(row.term, row.factor, row.models, row.rates)
        multipliers[row.provider] = (*multipliers.get(row.provider, ()), multiplier)
    return PriceTable(
        overrides=_vendor_prices(table.override),
        fallbacks=_vendor_prices(table.fallback),
        ttls={row.provider: TTLs(row.ttl_short, row.ttl_long) for row in table.vendor},
        multipliers=multipliers,
    )


def read_operator_prices(path: Path) -> tuple[LocalPrices, ...]:
    """What the operator charges for the models served here.

    Raises:
        ConfigError: if there is no such file, or it is not such a table; says where.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the price table {path}: {error}") from error
    rows = _read(_OperatorFile, text, str(path)).model
    return tuple(
        LocalPrices(
            row.models,
            row.layers(),
            TTLs(row.ttl_short, row.ttl_long),
            f"{path}: model.{number}",
            row.like,
        )
        for number, row in enumerate(rows)
    )


def _vendor_prices(rows: Iterable[_VendorPriceRow]) -> tuple[VendorPrices, ...]:
    return tuple(VendorPrices(row.provider, row.models, row.layers()) for row in rows)


_File = TypeVar("_File", bound=BaseModel)


def _read(kind: type[_File], text: str, name: str) -> _File:
    try:
        content: dict[str, Any] = tomllib.loads(text, parse_float=Decimal)
        return kind.model_validate(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{name}: {where}: {first['msg']}") from error
