"""Questions to the ledger: tokens and latencies by day, model, tenant and so on; rows for the bill; gaps.

Days and hours are UTC's. Percentiles are by nearest rank: a latency that some request really had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    case,
    func,
    literal,
    or_,
    select,
)

from ostinato.ledger.cost import SECONDS_PER_HOUR, TokenCounts, token_hours
from ostinato.ledger.cost_savings import UsageRow
from ostinato.ledger.group_by import GroupBy
from ostinato.ledger.schema import MICROSECONDS, REQUESTS
from ostinato.ledger.ttl_choice import UseHistory, history_of

_HOUR_US = 3600 * MICROSECONDS
_DAY_US = 24 * _HOUR_US
_ROWS_AT_ONCE = 1000
_IS_REQUEST = or_(REQUESTS.c.status.is_not(None), REQUESTS.c.error.is_not(None))
"""Someone asked for it over HTTP. Else it is the last bill for the storage of a cache object that expired."""

CACHE_OBJECTS = "gemini_cache"
"""Dialect of the records that make cache objects and pay for their storage."""

Column: TypeAlias = ColumnElement[Any]


_COLUMNS: dict[GroupBy, tuple[Column, ...]] = {
    GroupBy.DAY: (REQUESTS.c.time_us // literal(_DAY_US, literal_execute=True),),
    GroupBy.HOUR: (REQUESTS.c.time_us // literal(_HOUR_US, literal_execute=True),),
    GroupBy.MODEL: (REQUESTS.c.model,),
    GroupBy.TENANT: (REQUESTS.c.tenant,),
    GroupBy.TEMPLATE: (REQUESTS.c.template_id, REQUESTS.c.template_version),
    GroupBy.DIALECT: (REQUESTS.c.dialect,),
    GroupBy.CACHE_KEY: (REQUESTS.c.prompt_cache_key,),
}


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which requests count. None: all.

    Attributes:
        since: Unix seconds; requests that arrived then or later.
        until: Unix seconds; requests that arrived before.
    """

    since: float | None = None
    until: float | None = None
    tenant: str | None = None
    model: str | None = None

    def apply(self, statement: Select[Any]) -> Select[Any]:
        """`statement` over these requests only."""
        if self.since is not None:
            statement = statement.where(REQUESTS.c.time_us >= round(self.since * MICROSECONDS))
        if self.until is not None:
            statement = statement.where(REQUESTS.c.time_us < round(self.until * MICROSECONDS))
        if self.tenant is not None:
            statement = statement.where(REQUESTS.c.tenant == self.tenant)
        if self.model is not None:
            statement = statement.where(REQUESTS.c.model == self.model)
        return statement


@dataclass(frozen=True, slots=True)
class UsageGroup:
    """Requests that have something in common. Tokens as in `record.TokenRecord`.

    Attributes:
        keys: what they have in common, in the order that was asked for; None where a request had no such thing.
        requests: how many, failed ones included; not the bill for the storage of a cache object that expired.
        errors: how many of them failed or were broken off.
        storage_token_seconds: tokens of cache objects times the seconds that were paid for.
        ttft_p50: seconds that half of the answers needed at most for their first token; None without answers.
        ttft_p95: seconds, the same for 95 of 100.
    """

    keys: tuple[str | None, ...]
    requests: int
    errors: int
    input: int
    cached: int
    read: int
    write_short: int
    write_long: int
    output: int
    storage_token_seconds: int
    ttft_p50: float | None
    ttft_p95: float | None

    @property
    def total(self) -> int:
        return self.input + self.output

    @property
    def storage_token_hours(self) -> float:
        """To the hundredth."""
        return round(self.storage_token_seconds / SECONDS_PER_HOUR, 2)

    @property
    def cached_share(self) -> float | None:
        """Share of the input that was not computed, 0 to 1; None without input."""
        return self.cached / self.input if self.input else None


def usage_by(
    connection: Connection, by: Sequence[GroupBy], which: UsageFilter = UsageFilter()
) -> list[UsageGroup]:
    """One group for each combination that occurs, in their order; with an empty `by`, one group of all."""
    columns = [column for group in by for column in _COLUMNS[group]]
    table = REQUESTS.c
    sums = (
        func.coalesce(func.sum(case((_IS_REQUEST, 1), else_=0)), 0),
        func.coalesce(func.sum(case((table.error.is_not(None), 1), else_=0)), 0),
        *(
            func.coalesce(func.sum(column), 0)
            for column in (
                table.input_tokens,
                table.cached_tokens,
                table.cache_read_tokens,
                table.cache_write_short_tokens,
                table.cache_write_long_tokens,
                table.output_tokens,
                table.storage_token_seconds,
            )
        ),
    )
    ttfts = _ttft_percentiles(connection, columns, which)
    rows = connection.execute(which.apply(select(*columns, *sums)).group_by(*columns)).all()
    order = sorted(rows, key=lambda row: [(v is None, v or 0) for v in row[: len(columns)]])
    return [_group(by, row, ttfts.get(tuple(row[: len(columns)]), {})) for row in order]


def _ttft_percentiles(
    connection: Connection, columns: Sequence[Column], which: UsageFilter
) -> dict[tuple[Any, ...], dict[int, float]]:
    """By group and percentage."""
    keys = [column.label(f"key_{i}") for i, column in enumerate(columns)]
    ttft = REQUESTS.c.ttft_s
    rank = func.row_number().over(partition_by=columns or None, order_by=ttft)
    count = func.count().over(partition_by=columns or None)
    ranked = which.apply(
        select(*keys, ttft, rank.label("rank"), count.label("count")).where(ttft.is_not(None))
    ).subquery()
    found: dict[tuple[Any, ...], dict[int, float]] = {}
    for percentage in (50, 95):
        nearest = (ranked.c.count * literal(percentage, Integer) + 99) // 100
        for row in connection.execute(select(ranked).where(ranked.c.rank == nearest)):
            key, seconds = tuple(row[: len(columns)]), float(row[len(columns)])
            found.setdefault(key, {})[percentage] = seconds
    return found


def _group(by: Sequence[GroupBy], row: Row[Any], ttfts: dict[int, float]) -> UsageGroup:
    values = iter(row)
    keys = tuple(_key(group, [next(values) for _ in _COLUMNS[group]]) for group in by)
    requests, errors, prompt, cached, read, write_short, write_long, output, stored = map(
        int, values
    )
    return UsageGroup(
        keys=keys,
        requests=requests,
        errors=errors,
        input=prompt,
        cached=cached,
        read=read,
        write_short=write_short,
        write_long=write_long,
        output=output,
        storage_token_seconds=stored,
        ttft_p50=ttfts.get(50),
        ttft_p95=ttfts.get(95),
    )


def _key(group: GroupBy, values: Sequence[Any]) -> str | None:
    first = values[0]
    if group is GroupBy.DAY:
        return datetime.fromtimestamp(int(first) * 86_400, UTC).strftime("%Y-%m-%d")
    if group is GroupBy.HOUR:
        return datetime.fromtimestamp(int(first) * 3600, UTC).strftime("%Y-%m-%d %H:00")
    if group is GroupBy.TEMPLATE and first is not None and values[1] is not None:
        return f"{first}@{values[1]}"
    return None if first is None else str(first)


def usage_rows(connection: Connection, which: UsageFilter = UsageFilter()) -> Iterator[UsageRow]:
    """What `cost_savings.bills` needs, a record at a time, in the order of their arrival.

    The bill counts what was read and written under the house rules; what was neither is plain input.
    """
    table = REQUESTS.c
    statement = select(
        table.time_us,
        table.model,
        table.dialect,
        table.error,
        table.input_tokens,
        table.cache_read_tokens,
        table.cache_write_short_tokens,
        table.cache_write_long_tokens,
        table.output_tokens,
        table.storage_token_seconds,
        case((_IS_REQUEST, 1), else_=0).label("requests"),
    )
    # What was refused or never admitted cost nothing.
    statement = statement.where(
        or_(table.total_tokens.is_(None), table.total_tokens + table.storage_token_seconds > 0)
    ).order_by(table.time_us)
    result = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(which.apply(statement))
    for row in result:
        yield UsageRow(
            model=row.model or "",
            moment=datetime.fromtimestamp(row.time_us / MICROSECONDS, UTC),
            counts=_counts(row),
            requests=row.requests,
            only_for_caching=_is_only_for_caching(row),
        )


def _is_only_for_caching(row: Row[Any]) -> bool:
    """A cache object's, or a pre-warming request: what went well and generated nothing."""
    return row.dialect == CACHE_OBJECTS or (row.error is None and row.output_tokens == 0)


def _counts(row: Row[Any]) -> TokenCounts | None:
    if row.input_tokens is None:
        return None
    read, short, long = (
        row.cache_read_tokens,
        row.cache_write_short_tokens,
        row.cache_write_long_tokens,
    )
    return TokenCounts(
        uncached=row.input_tokens - read - short - long,
        read=read,
        write_short=short,
        write_long=long,
        output=row.output_tokens,
        token_hours=token_hours(row.storage_token_seconds, Decimal(1)),
    )


def use_history(
    connection: Connection, which: UsageFilter = UsageFilter(), by: GroupBy = GroupBy.CACHE_KEY
) -> UseHistory:
    """The gaps between uses of what `by` names; requests that have no such name are left out.

    With `GroupBy.CACHE_KEY` that is one ``prompt_cache_key`` of one tenant: a conversation, by convention.
    """
    columns = _COLUMNS[by]
    statement = which.apply(select(REQUESTS.c.time_us, REQUESTS.c.tenant, *columns))
    result = connection.execute(
        statement.where(columns[0].is_not(None), REQUESTS.c.input_tokens > 0)
    )
    return history_of((tuple(row[1:]), row.time_us / MICROSECONDS) for row in result)
