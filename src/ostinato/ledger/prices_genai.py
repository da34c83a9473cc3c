"""Prices from the package ``genai-prices`` (extra ``prices``): its bundled data only, nothing is fetched.

It has no storage prices, no 12-hour writes, neither Qwen nor Doubao, and no days of the week; our own table
is laid over it for those. Its audio, image and search prices are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.ledger.prices import Band, Layer, Period, Rate, Window

if TYPE_CHECKING:
    from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, Provider

FIRST_PARTY = (
    "openai",
    "anthropic",
    "google",
    "deepseek",
    "moonshotai",
    "zai",
    "x-ai",
    "minimax",
    "mistral",
    "cohere",
    "meta",
)
"""Who is asked for a bare model name, in this order. A name with slashes may have any provider in front.
``zhipuai`` is not among them: its prices are derived from those in yuan, ``zai`` has them in dollars."""

_RATES = {
    "input_mtok": Rate.INPUT,
    "output_mtok": Rate.OUTPUT,
    "cache_read_mtok": Rate.READ,
    "cache_write_mtok": Rate.WRITE_SHORT,
    "cache_write_1h_mtok": Rate.WRITE_LONG,
}


@dataclass(frozen=True, slots=True)
class MaintainedModel:
    """A model that the package has prices for."""

    provider: str
    model: str
    layers: tuple[Layer, ...]


class MaintainedPrices:
    """The package's data, in our terms.

    Raises:
        ImportError: if the package is not installed.
    """

    def __init__(self) -> None:
        from importlib.metadata import version

        from genai_prices.data import providers

        self._providers: dict[str, Provider] = {provider.id: provider for provider in providers}
        self._source = f"genai-prices {version('genai-prices')}"

    @property
    def providers(self) -> frozenset[str]:
        """Ids of all providers."""
        return frozenset(self._providers)

    def find(self, provider: str, model: str) -> MaintainedModel | None:
        """The model that this provider means by `model`: an id, an alias or a dated version."""
        known = self._providers.get(provider)
        if known is None:
            return None
        same_id = (info for info in known.models if info.id.lower() == model.lower())
        info = next(same_id, None) or known.find_model(model)
        return None if info is None else self._converted(provider, info)

    def models(self, provider: str) -> Iterator[MaintainedModel]:
        """All models of this provider that are priced by the token."""
        known = self._providers.get(provider)
        for info in known.models if known is not None else ():
            found = self._converted(provider, info)
            if any(Rate.INPUT in p.bands[0].fixed for p in found.layers[0].periods):
                yield found

    def _converted(self, provider: str, info: ModelInfo) -> MaintainedModel:
        return MaintainedModel(provider, info.id, (Layer(_periods(info), self._source),))


def _periods(info: ModelInfo) -> tuple[Period, ...]:
    """As the package resolves them: the last in effect counts; if none is, the first one does."""
    if not isinstance(info.prices, list):
        return (Period(_bands(info.prices)),)
    always = Period(_bands(info.prices[0].prices))
    return (always, *(_conditional(price) for price in info.prices))


def _conditional(price: ConditionalPrice) -> Period:
    from genai_prices.types import StartDateConstraint, TimeOfDateConstraint

    bands = _bands(price.prices)
    match price.constraint:
        case StartDateConstraint(start_date=since):
            return Period(bands, since=since)
        case TimeOfDateConstraint(start_time=start, end_time=end):
            # All of the package's windows are in UTC, and ours have no zone.
            return Period(
                bands, windows=(Window(start.replace(tzinfo=None), end.replace(tzinfo=None)),)
            )
        case _:
            return Period(bands)


def _bands(price: ModelPrice) -> tuple[Band, ...]:
    from genai_prices.types import TieredPrices

    bands: dict[int, Band] = {0: Band()}
    for key, rate in _RATES.items():
        value = getattr(price, key)
        if value is None:
            continue
        steps = [(0, value)]
        if isinstance(value, TieredPrices):
            steps = [(0, value.base), *((tier.start, tier.price) for tier in value.tiers)]
        for above, amount in steps:
            band = bands.get(above, Band(above))
            bands[above] = Band(above, {**band.fixed, rate: amount})
    return tuple(bands[above] for above in sorted(bands))
