"""Deleting old records: what would go, and its going, a part at a time so that no writer waits for long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, select

from ostinato.ledger.query import UsageFilter
from ostinato.ledger.schema import MICROSECONDS, REQUESTS


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """Some records of a ledger.

    Attributes:
        records: how many.
        tenants: of how many tenants.
        first: Unix seconds of the oldest; None if there are none.
        last: of the newest.
    """

    records: int
    tenants: int
    first: float | None
    last: float | None


def span_of(connection: Connection, which: UsageFilter) -> RecordSpan:
    """How many records `which` selects, and of when."""
    table = REQUESTS.c
    figures: tuple[ColumnElement[Any], ...] = (
        func.count(),
        func.count(table.tenant.distinct()),
        func.min(table.time_us),
        func.max(table.time_us),
    )
    records, tenants, first, last = connection.execute(which.apply(select(*figures))).one()
    return RecordSpan(
        int(records),
        int(tenants),
        None if first is None else first / MICROSECONDS,
        None if last is None else last / MICROSECONDS,
    )


def delete_records(connection: Connection, which: UsageFilter, at_most: int) -> int:
    """Delete records that `which` selects; returns how many. Fewer than `at_most`: none is left."""
    chosen = which.apply(select(REQUESTS.c.record_id)).limit(at_most)
    return connection.execute(delete(REQUESTS).where(REQUESTS.c.record_id.in_(chosen))).rowcount
