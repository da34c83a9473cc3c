"""What caching saved over many requests, by model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from ostinato.ledger.cost import Cost, TokenCounts, request_cost
from ostinato.ledger.prices_book import PriceBook


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What a bill needs of one usage record.

    Attributes:
        model: as the record has it, with its provider in front if that is known.
        moment: when the request began, with a time zone.
        counts: None where the server reported nothing: unknown, not zero.
        served_here: whether this machine computed it; a vendor did otherwise.
        terms: ways of serving with a factor, such as ``batch``.
        requests: 1, or 0 where storage alone is billed and nobody asked for anything.
        only_for_caching: it filled or kept the cache and answered nothing; without caching nobody had sent it.
    """

    model: str
    moment: datetime
    counts: TokenCounts | None
    served_here: bool = True
    terms: tuple[str, ...] = ()
    requests: int = 1
    only_for_caching: bool = False


@dataclass(frozen=True, slots=True)
class ModelBill:
    """All requests of one model, and the storage of its cache objects.

    Attributes:
        priced: requests whose cost is known; `cost` and `counts` are theirs and of the storage.
        unpriced: requests, and bills for storage, whose tokens or prices are not known.
    """

    model: str
    priced: int
    unpriced: int
    counts: TokenCounts
    cost: Cost


def bills(rows: Iterable[UsageRow], book: PriceBook) -> list[ModelBill]:
    """One bill a model, by name. Each request is priced at its own hour and length.

    Raises:
        InvalidRequestError: for a term that is not sold for a row's model.
    """
    found: dict[str, ModelBill] = {}
    for row in rows:
        before = found.get(row.model, ModelBill(row.model, 0, 0, TokenCounts(), Cost()))
        found[row.model] = _with(before, row, _cost(row, book))
    return [found[model] for model in sorted(found)]


def _cost(row: UsageRow, book: PriceBook) -> Cost | None:
    prices = book.served_here(row.model) if row.served_here else book.get(row.model)
    if prices is None or row.counts is None:
        return None
    cost = request_cost(row.counts, prices, row.moment, row.terms)
    if row.only_for_caching:
        cost = replace(cost, without_caching=Decimal(0))
    return cost if cost.saved is not None else None


def _with(bill: ModelBill, row: UsageRow, cost: Cost | None) -> ModelBill:
    if cost is None or row.counts is None:
        return ModelBill(bill.model, bill.priced, bill.unpriced + 1, bill.counts, bill.cost)
    return ModelBill(
        bill.model,
        bill.priced + row.requests,
        bill.unpriced,
        bill.counts + row.counts,
        bill.cost + cost,
    )
