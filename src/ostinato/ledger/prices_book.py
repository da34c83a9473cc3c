"""Looking a model's prices up: the operator's table, then ours laid over a maintained package's.

A name is a model's own (``claude-opus-5-5``, dated versions included) or has its provider in front
(``anthropic/claude-opus-5-5``, ``azure/gpt-5.4``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ostinato.errors import ConfigError, ModelNotFoundError
from ostinato.ledger.prices import FREE, Band, Layer, ModelPrices, Period, Rate, TTLs
from ostinato.ledger.prices_genai import FIRST_PARTY, MaintainedModel, MaintainedPrices
from ostinato.ledger.prices_table import (
    LOCAL,
    LocalPrices,
    PriceTable,
    VendorPrices,
    our_table,
    read_operator_prices,
)

_DATED = re.compile(r"-\d{8}$|-\d{4}-\d{2}-\d{2}$")
_LOCAL_TTLS = TTLs(short=300, long=3600)
_FREE_OF_CHARGE = Layer(
    (
        Period(
            (Band(fixed={rate: price for rate in Rate if (price := FREE.of(rate)) is not None}),)
        ),
    ),
    "not priced by the operator: free",
)


class PriceBook:
    """Everything that is known of prices.

    Args:
        table: our own.
        operator: prices of the models served here; the first row that matches a name counts.
        maintained: the package's, or None where it is not installed.

    Raises:
        ConfigError: an operator's row is `like` a model without prices; names file and row.
    """

    def __init__(
        self,
        table: PriceTable,
        operator: Sequence[LocalPrices] = (),
        maintained: MaintainedPrices | None = None,
    ) -> None:
        self._table = table
        self._operator = operator
        self._maintained = maintained
        rows = (*table.overrides, *table.fallbacks)
        self._providers = {row.provider for row in rows}
        if maintained is not None:
            self._providers |= maintained.providers
        self._found: dict[str, ModelPrices | None] = {}
        self._likes = {
            row.like: self._like(row.like, row.place) for row in operator if row.like is not None
        }

    def get(self, name: str) -> ModelPrices | None:
        """The prices of a model, or None where they are not known."""
        name = name.strip().lower()
        if name not in self._found:
            self._found[name] = self._operators(name) or self._vendors(name)
        return self._found[name]

    def require(self, name: str) -> ModelPrices:
        """As `get`.

        Raises:
            ModelNotFoundError: where they are not known; names the models with similar names.
        """
        prices = self.get(name)
        if prices is not None:
            return prices
        raise ModelNotFoundError(
            f"no prices are known for {name!r}; {self._near(name, self.models())}. `ostinato cost models`"
            " lists all; for a model of your own give --prices FILE"
        )

    def served_here(self, name: str) -> ModelPrices:
        """The prices of a model served on this machine: the operator's, or free of charge."""
        return self._operators(name.strip().lower()) or ModelPrices(
            LOCAL, name, (_FREE_OF_CHARGE,), _LOCAL_TTLS
        )

    def models(self, providers: Iterable[str] | None = None) -> Iterator[ModelPrices]:
        """All models with prices, by provider and name.

        Args:
            providers: default: the models' own vendors, and the operator's models.
        """
        wanted = {*FIRST_PARTY, *self._table_providers(), LOCAL}
        if providers is not None:
            wanted = {provider.lower() for provider in providers}
        found: dict[tuple[str, str], ModelPrices] = {}
        for provider in sorted(wanted & self._providers):
            for base in self._maintained.models(provider) if self._maintained is not None else ():
                found[provider, base.model.lower()] = self._prices(base)
            for name in self._names_of(provider):
                prices = self._of_provider(provider, name)
                if prices is not None:
                    found.setdefault((provider, prices.model.lower()), prices)
        if LOCAL in wanted:
            for row in self._operator:
                for name in filter(_is_a_name, row.models):
                    found[LOCAL, name] = self.served_here(name)
        yield from (found[key] for key in sorted(found))

    @property
    def providers(self) -> frozenset[str]:
        """Ids of all providers with prices."""
        return frozenset(self._providers)

    def _operators(self, name: str) -> ModelPrices | None:
        for row in self._operator:
            if not any(fnmatchcase(name, pattern.lower()) for pattern in row.models):
                continue
            if row.like is None:
                return ModelPrices(LOCAL, name, row.layers, _ttls(row.ttls, _LOCAL_TTLS))
            model = self._likes[row.like]
            layers = (*model.layers, *row.layers)
            return ModelPrices(LOCAL, name, layers, _ttls(row.ttls, model.ttls), model.multipliers)
        return None

    def _like(self, name: str, place: str) -> ModelPrices:
        """The prices that an operator's row, which is at `place`, is laid over."""
        prices = self._vendors(name.strip().lower())
        if prices is None:
            near = self._near(name, self.models({*FIRST_PARTY, *self._table_providers()}))
            raise ConfigError(f"{place}: like is {name!r}, which has no prices; {near}")
        return prices

    def _near(self, name: str, models: Iterable[ModelPrices]) -> str:
        """Up to five names of `models` that look like `name`, as errors say it."""
        names = {prices.model.lower() for prices in models}
        wanted = name.lower().rpartition("/")[2]
        near = ", ".join(difflib.get_close_matches(wanted, names, n=5, cutoff=0.6)) or "none"
        hint = "" if self._maintained is not None else " (more with: pip install ostinato[prices])"
        return f"near names: {near}{hint}"

    def _vendors(self, name: str) -> ModelPrices | None:
        provider, slash, model = name.partition("/")
        if slash and provider in self._providers:
            return self._of_provider(provider, model)
        if slash:
            return None
        order = dict.fromkeys((*FIRST_PARTY, *self._table_providers()))
        answers = (self._of_provider(provider, name) for provider in order)
        return next((prices for prices in answers if prices is not None), None)

    def _of_provider(self, provider: str, model: str) -> ModelPrices | None:
        base = self._maintained.find(provider, model) if self._maintained is not None else None
        if base is not None:
            return self._prices(base)
        row = self._row(self._table.fallbacks, provider, model)
        if row is not None:
            return self._prices(MaintainedModel(provider, _undated(model), row.layers))
        if self._row(self._table.overrides, provider, model) is not None:
            return self._prices(MaintainedModel(provider, _undated(model), ()))
        return None

    def _prices(self, base: MaintainedModel) -> ModelPrices:
        name = base.model.lower()
        overrides = [
            layer
            for row in self._table.overrides
            if row.provider == base.provider and any(fnmatchcase(name, m) for m in row.models)
            for layer in row.layers
        ]
        multipliers = self._table.multipliers.get(base.provider, ())
        return ModelPrices(
            base.provider,
            base.model,
            (*base.layers, *overrides),
            self._table.ttls.get(base.provider, TTLs()),
            tuple(multiplier for multiplier in multipliers if multiplier.applies_to(name)),
        )

    def _row(self, rows: Sequence[VendorPrices], provider: str, model: str) -> VendorPrices | None:
        """The row that has this very model, by name and not by pattern."""
        names = (model, _undated(model))
        return next(
            (
                row
                for row in rows
                if row.provider == provider and any(n in row.models for n in names)
            ),
            None,
        )

    def _names_of(self, provider: str) -> Iterator[str]:
        for row in (*self._table.overrides, *self._table.fallbacks):
            if row.provider == provider:
                yield from filter(_is_a_name, row.models)

    def _table_providers(self) -> list[str]:
        rows = (*self._table.overrides, *self._table.fallbacks)
        return list(dict.fromkeys(row.provider for row in rows))


def _ttls(given: TTLs, otherwise: TTLs) -> TTLs:
    short = given.short if given.short is not None else otherwise.short
    return TTLs(short, given.long if given.long is not None else otherwise.long)


def load_book(
    operator_file: Path | None = None,
    maintained: Callable[[], MaintainedPrices] = MaintainedPrices,
) -> PriceBook:
    """The book of this installation.

    Args:
        operator_file: prices of the models served here.
        maintained: gives the package's prices; an ImportError means that it is not installed.

    Raises:
        ConfigError: if the operator's file is wrong, or a row of it is `like` a model without prices.
    """
    operator = read_operator_prices(operator_file) if operator_file is not None else ()
    try:
        package: MaintainedPrices | None = maintained()
    except ImportError:
        package = None
    return PriceBook(our_table(), operator, package)


def _is_a_name(pattern: str) -> bool:
    return not any(sign in pattern for sign in "*?[")


def _undated(model: str) -> str:
    return _DATED.sub("", model)
