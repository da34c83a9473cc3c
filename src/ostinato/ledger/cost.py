"""What a request cost, split by what was paid for, and what it would have cost without caching.

Exact: no step rounds, or it raises. Rounding is for whoever displays a figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal

from ostinato.ledger.prices import EXACT, ModelPrices, Rate, Rates

SECONDS_PER_HOUR = 3600
_MICRO = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What one request used. The four counters of the prompt are disjoint.

    Attributes:
        uncached: prompt tokens at the ordinary rate.
        read: prompt tokens read from the cache.
        write_short: prompt tokens written under the shorter TTL.
        write_long: prompt tokens written under the longer TTL.
        output: generated tokens, reasoning included.
        token_hours: tokens of a cache object times the hours it was kept; see `token_hours`.
    """

    uncached: int = 0
    read: int = 0
    write_short: int = 0
    write_long: int = 0
    output: int = 0
    token_hours: Decimal = Decimal(0)

    @property
    def prompt(self) -> int:
        """All tokens of the prompt."""
        return self.uncached + self.read + self.write_short + self.write_long

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )


def token_hours(tokens: int, seconds: Decimal) -> Decimal:
    """Storage of `tokens` for `seconds`, to the millionth of a token-hour (the one division there is)."""
    return (tokens * seconds / SECONDS_PER_HOUR).quantize(_MICRO)


@dataclass(frozen=True, slots=True)
class Cost:
    """A bill in dollars. None: the price is not known, so nor is what depends on it.

    Attributes:
        without_caching: the same tokens with all of the prompt at the input price and nothing stored.
    """

    input: Decimal | None = Decimal(0)
    write_short: Decimal | None = Decimal(0)
    write_long: Decimal | None = Decimal(0)
    read: Decimal | None = Decimal(0)
    storage: Decimal | None = Decimal(0)
    output: Decimal | None = Decimal(0)
    without_caching: Decimal | None = Decimal(0)

    @property
    def total(self) -> Decimal | None:
        """The sum of the six parts."""
        return _sum(
            (
                self.input,
                self.write_short,
                self.write_long,
                self.read,
                self.storage,
                self.output,
            )
        )

    @property
    def saved(self) -> Decimal | None:
        """What caching saved; negative where it cost more than it saved."""
        total = self.total
        if total is None or self.without_caching is None:
            return None
        return EXACT.subtract(self.without_caching, total)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            **{
                part.name: _sum((getattr(self, part.name), getattr(other, part.name)))
                for part in fields(self)
            }
        )


def cost_of(counts: TokenCounts, rates: Rates) -> Cost:
    """The bill of one request at these rates."""
    output = _amount(counts.output, rates.of(Rate.OUTPUT))
    return Cost(
        input=_amount(counts.uncached, rates.of(Rate.INPUT)),
        write_short=_amount(counts.write_short, rates.of(Rate.WRITE_SHORT)),
        write_long=_amount(counts.write_long, rates.of(Rate.WRITE_LONG)),
        read=_amount(counts.read, rates.of(Rate.READ)),
        storage=_amount(counts.token_hours, rates.of(Rate.STORAGE)),
        output=output,
        without_caching=_sum((_amount(counts.prompt, rates.of(Rate.INPUT)), output)),
    )


def request_cost(
    counts: TokenCounts, prices: ModelPrices, moment: datetime, terms: Iterable[str] = ()
) -> Cost:
    """The bill of one request begun at `moment`: its hour, its prompt's length and its terms count.

    Raises:
        InvalidRequestError: for a term that is not sold for this model.
    """
    return cost_of(counts, prices.rates_at(moment, counts.prompt, terms))


def _amount(tokens: int | Decimal, per_million: Decimal | None) -> Decimal | None:
    if not tokens:
        return Decimal(0)
    if per_million is None:
        return None
    return EXACT.scaleb(EXACT.multiply(Decimal(tokens), per_million), -6)


def _sum(parts: Iterable[Decimal | None]) -> Decimal | None:
    total = Decimal(0)
    for part in parts:
        if part is None:
            return None
        total = EXACT.add(total, part)
    return total
