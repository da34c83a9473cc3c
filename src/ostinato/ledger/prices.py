"""What a model's tokens cost, and when: rates in US dollars, exact, as `Decimal`.

    ModelPrices ── layers, each laid over the one before
      └── Period ── from a date on, in some hours of the week; the last one in effect counts
            └── Band ── above so many prompt tokens (the whole request pays it, not the excess)
                  └── a price per kind of token, or a multiple of the input price

A layer may say everything (a vendor's price list) or one thing (what storage costs). What no layer says is
None: unknown, which is neither free nor zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow
from enum import StrEnum
from fnmatch import fnmatchcase

from ostinato.errors import InvalidRequestError

EXACT = Context(prec=100, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
"""Arithmetic that raises where it would have to round."""

ALL_WEEK = frozenset(range(1, 8))


class Rate(StrEnum):
    """A kind of token with a price of its own."""

    INPUT = "input"
    """Prompt tokens that the cache has nothing to do with."""
    OUTPUT = "output"
    """Generated tokens, reasoning included."""
    READ = "read"
    """Prompt tokens read from the cache."""
    WRITE_SHORT = "write_short"
    """Prompt tokens written under the shorter TTL (5 minutes; OpenAI: 30)."""
    WRITE_LONG = "write_long"
    """Prompt tokens written under the longer TTL (1 hour; OpenAI: 12)."""
    STORAGE = "storage"
    """Tokens of a cache object, by the hour they are kept."""


TOKEN_RATES = frozenset(Rate) - {Rate.STORAGE}


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices at one moment for one size of prompt.

    Dollars per 1,000,000 tokens; `storage` per 1,000,000 token-hours. None: the price is not known.
    """

    input: Decimal | None = None
    output: Decimal | None = None
    read: Decimal | None = None
    write_short: Decimal | None = None
    write_long: Decimal | None = None
    storage: Decimal | None = None

    @property
    def charges_for_writes(self) -> bool:
        """Whether a write has a price of its own. Where it has not, it costs what plain input costs."""
        return self.write_short is not None or self.write_long is not None

    def of(self, kind: Rate) -> Decimal | None:
        """What a token of this kind is billed at, in dollars per 1,000,000.

        A vendor that sells no write bills a written token as plain input (DeepSeek, Gemini, OpenAI up
        to GPT-5.5). One that sells only the short write has no price for a long one: None.
        """
        price: Decimal | None = getattr(self, kind.value)
        is_write = kind in (Rate.WRITE_SHORT, Rate.WRITE_LONG)
        return self.input if is_write and not self.charges_for_writes else price


FREE = Rates(*([Decimal(0)] * len(Rate)))
"""A local model that its operator has not priced."""


@dataclass(frozen=True, slots=True)
class Window:
    """Hours of the week, in UTC; `end` is outside. One that ends before it starts runs past midnight.

    Attributes:
        weekdays: ISO numbers, Monday is 1, of the days on which it starts.
    """

    start: time
    end: time
    weekdays: frozenset[int] = ALL_WEEK

    def contains(self, moment: datetime) -> bool:
        """Whether `moment`, in UTC, lies within."""
        now, today = moment.time(), moment.isoweekday()
        if self.start <= self.end:
            return self.start <= now < self.end and today in self.weekdays
        yesterday = (moment - timedelta(days=1)).isoweekday()
        begun_today = now >= self.start and today in self.weekdays
        return begun_today or (now < self.end and yesterday in self.weekdays)


@dataclass(frozen=True, slots=True)
class Band:
    """Prices of requests with more than `above` prompt tokens.

    Attributes:
        above: 0 stands for every request.
        fixed: dollars per 1,000,000.
        times_input: prices that are a multiple of the input price then in effect.
    """

    above: int = 0
    fixed: Mapping[Rate, Decimal] = field(default_factory=dict)
    times_input: Mapping[Rate, Decimal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Period:
    """Prices from a date on, in all hours or some.

    Attributes:
        bands: by rising `above`; a higher one is laid over the lower ones.
        since: first day, in UTC; None for always.
        windows: hours in which they hold; none for all.
    """

    bands: tuple[Band, ...]
    since: date | None = None
    windows: tuple[Window, ...] = ()

    def holds_at(self, moment: datetime) -> bool:
        """Whether these prices are in effect at `moment`, in UTC."""
        if self.since is not None and moment.date() < self.since:
            return False
        return not self.windows or any(window.contains(moment) for window in self.windows)


@dataclass(frozen=True, slots=True)
class Layer:
    """One source's word on a model's prices.

    Attributes:
        periods: the last one in effect counts.
        source: where they were read.
        as_of: on which day, or None for a package's bundled data.
    """

    periods: tuple[Period, ...]
    source: str
    as_of: date | None = None

    def period_at(self, moment: datetime) -> Period | None:
        """The prices in effect at `moment`, in UTC."""
        return next((p for p in reversed(self.periods) if p.holds_at(moment)), None)


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A way of serving that changes prices by a factor: batch, a region, a fast mode. Several multiply.

    Attributes:
        models: patterns in the shell's manner.
        rates: which prices it changes.
    """

    term: str
    factor: Decimal
    models: tuple[str, ...] = ("*",)
    rates: frozenset[Rate] = TOKEN_RATES

    def applies_to(self, model: str) -> bool:
        """Whether it is sold for `model`."""
        return any(fnmatchcase(model.lower(), pattern) for pattern in self.models)


@dataclass(frozen=True, slots=True)
class TTLs:
    """How long an entry lives after its last use, in seconds; None where there is no such entry."""

    short: int | None = None
    long: int | None = None


@dataclass(frozen=True, slots=True)
class ModelPrices:
    """All that is known of one model's prices.

    Attributes:
        multipliers: those sold for this model.
    """

    provider: str
    model: str
    layers: tuple[Layer, ...]
    ttls: TTLs = TTLs()
    multipliers: tuple[Multiplier, ...] = ()

    def rates_at(
        self, moment: datetime, prompt_tokens: int = 0, terms: Iterable[str] = ()
    ) -> Rates:
        """Prices of a request.

        Args:
            moment: when it began; any time zone.
            prompt_tokens: all of its prompt, cached or not: what a long-context price goes by.
            terms: ways of serving, such as ``batch``.

        Raises:
            ValueError: if `moment` has no time zone.
            InvalidRequestError: for a term that is not sold for this model.
        """
        if moment.tzinfo is None:
            raise ValueError("a price needs a moment with a time zone")
        moment = moment.astimezone(UTC)
        prices = _resolve(self._bands_at(moment, prompt_tokens))
        for term in terms:
            multiplier = self._multiplier(term)
            for rate in multiplier.rates & prices.keys():
                prices[rate] = EXACT.multiply(prices[rate], multiplier.factor)
        return Rates(**{rate.value: price for rate, price in prices.items()})

    def _bands_at(self, moment: datetime, prompt_tokens: int) -> Iterator[Band]:
        for layer in self.layers:
            period = layer.period_at(moment)
            for band in period.bands if period is not None else ():
                if not band.above or prompt_tokens > band.above:
                    yield band

    def _multiplier(self, term: str) -> Multiplier:
        for multiplier in self.multipliers:
            if multiplier.term == term:
                return multiplier
        known = ", ".join(multiplier.term for multiplier in self.multipliers) or "none"
        raise InvalidRequestError(
            f"{self.provider}/{self.model} has no price for {term!r}; it has: {known}",
            param="terms",
        )


def _resolve(bands: Iterable[Band]) -> dict[Rate, Decimal]:
    """Bands laid over each other; then the multiples are taken, of the input price that came out."""
    fixed: dict[Rate, Decimal] = {}
    times_input: dict[Rate, Decimal] = {}
    for band in bands:
        for rate in band.fixed.keys() | band.times_input.keys():
            fixed.pop(rate, None)
            times_input.pop(rate, None)
        fixed |= band.fixed
        times_input |= band.times_input
    base = fixed.get(Rate.INPUT)
    if base is None:
        return fixed
    return fixed | {rate: EXACT.multiply(base, factor) for rate, factor in times_input.items()}
