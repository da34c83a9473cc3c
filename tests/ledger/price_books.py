"""Price books for tests: with the price package, and as if it were not installed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ostinato.ledger.prices_book import PriceBook, load_book
from ostinato.ledger.prices_genai import MaintainedPrices

SUNDAY_NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def not_installed() -> MaintainedPrices:
    raise ImportError("genai_prices")


def book_with_package(operator: Path | None = None) -> PriceBook:
    return load_book(operator)


def book_without_package(operator: Path | None = None) -> PriceBook:
    return load_book(operator, not_installed)


BOOKS = {"with the package": book_with_package(), "without it": book_without_package()}
