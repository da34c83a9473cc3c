"""Guards the answers: every figure of every grouping equals what plain Python makes of the same records, on
both databases."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest

from ostinato.api.gemini.cached_contents import DIALECT
from ostinato.cache.types import Tier
from ostinato.ledger.cost import TokenCounts
from ostinato.ledger.group_by import GroupBy
from ostinato.ledger.query import UsageFilter, UsageGroup, usage_by, usage_rows, use_history
from ostinato.ledger.record import LedgerRecord, TokenRecord
from ostinato.ledger.store import LedgerStore
from tests.ledger.samples import NOON, record

DAY = 86_400


def some_records() -> list[LedgerRecord]:
    rng = random.Random(7)
    found = []
    for number in range(300):
        cached = rng.randrange(50)
        split = sorted(rng.randrange(cached + 1) for _ in range(2))
        tokens = TokenRecord(
            input=cached + rng.randrange(50),
            cached_by_tier={Tier.DEVICE: split[0], Tier.RAM: cached - split[0]},
            read=split[1],
            write_short=rng.randrange(3),
            write_long=rng.randrange(3),
            output=rng.randrange(20),
        )
        failed = rng.random() < 0.2
        found.append(
            record(
                number,
                time=NOON + rng.uniform(-2, 2) * DAY,
                tenant=rng.choice(["alpha", "beta"]),
                model=rng.choice(["tiny", "large", None]),
                dialect=rng.choice(["openai_chat", "anthropic"]),
                template_id=rng.choice([None, "greet"]),
                template_version=rng.choice([None, "1", "2"]),
                prompt_cache_key=rng.choice([None, "k1", "k2"]),
                tokens=None if rng.random() < 0.1 else tokens,
                storage_token_seconds=rng.choice([0, 0, 7200]),
                ttft=None if failed else rng.random(),
                error="engine_overloaded" if failed else None,
            )
        )
    return found


RECORDS = some_records()


def stamp(seconds: float, form: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def template(one: LedgerRecord) -> str | None:
    if one.template_id is None or one.template_version is None:
        return one.template_id
    return f"{one.template_id}@{one.template_version}"


KEY: dict[GroupBy, Callable[[LedgerRecord], str | None]] = {
    GroupBy.DAY: lambda one: stamp(one.time, "%Y-%m-%d"),
    GroupBy.HOUR: lambda one: stamp(one.time, "%Y-%m-%d %H:00"),
    GroupBy.MODEL: lambda one: one.model,
    GroupBy.TENANT: lambda one: one.tenant,
    GroupBy.DIALECT: lambda one: one.dialect,
    GroupBy.CACHE_KEY: lambda one: one.prompt_cache_key,
}


def nearest_rank(values: Sequence[float], percentage: int) -> float | None:
    return sorted(values)[math.ceil(percentage * len(values) / 100) - 1] if values else None


def expected(by: Sequence[GroupBy], records: Sequence[LedgerRecord]) -> list[UsageGroup]:
    groups: dict[tuple[str | None, ...], list[LedgerRecord]] = {}
    for one in records:
        groups.setdefault(tuple(KEY[group](one) for group in by), []).append(one)
    found = []
    for keys, members in groups.items():
        known = [one.tokens for one in members if one.tokens is not None]
        ttfts = [one.ttft for one in members if one.ttft is not None]
        found.append(
            UsageGroup(
                keys=keys,
                requests=len(members),
                errors=sum(one.error is not None for one in members),
                input=sum(tokens.input for tokens in known),
                cached=sum(tokens.cached for tokens in known),
                read=sum(tokens.read for tokens in known),
                write_short=sum(tokens.write_short for tokens in known),
                write_long=sum(tokens.write_long for tokens in known),
                output=sum(tokens.output for tokens in known),
                storage_token_seconds=sum(one.storage_token_seconds for one in members),
                ttft_p50=nearest_rank(ttfts, 50),
                ttft_p95=nearest_rank(ttfts, 95),
            )
        )
    return sorted(found, key=lambda group: [(key is None, key or "") for key in group.keys])


@pytest.mark.parametrize(
    "by",
    [
        *([group] for group in KEY),
        [GroupBy.DAY, GroupBy.TENANT],
        [GroupBy.MODEL, GroupBy.DIALECT, GroupBy.CACHE_KEY],
    ],
    ids=lambda by: "+".join(by),
)
def test_every_figure_of_a_grouping_is_right(store: LedgerStore, by: list[GroupBy]) -> None:
    store.write(RECORDS)
    with store.reading() as connection:
        assert usage_by(connection, by) == expected(by, RECORDS)


def test_a_template_is_named_with_its_version(store: LedgerStore) -> None:
    store.write(RECORDS)
    with store.reading() as connection:
        groups = usage_by(connection, [GroupBy.TEMPLATE])
    # Without an id, a version says nothing, but its requests stay apart.
    named = {group.keys[0]: group.requests for group in groups if group.keys[0] is not None}
    assert set(named) == {"greet", "greet@1", "greet@2"}
    for name, requests in named.items():
        assert requests == sum(template(one) == name for one in RECORDS)


def test_filters_select_before_anything_is_counted(store: LedgerStore) -> None:
    store.write(RECORDS)
    which = UsageFilter(since=NOON - DAY, until=NOON + DAY, tenant="alpha", model="tiny")
    selected = [
        one
        for one in RECORDS
        if NOON - DAY <= one.time < NOON + DAY and one.tenant == "alpha" and one.model == "tiny"
    ]
    assert 0 < len(selected) < len(RECORDS)
    with store.reading() as connection:
        assert usage_by(connection, [GroupBy.DAY], which) == expected([GroupBy.DAY], selected)
        assert usage_by(connection, [], which) == expected([], selected)


def storage_bill(number: int) -> LedgerRecord:
    """As the sweeper of cache objects puts it: nobody asked for anything."""
    return record(
        number,
        dialect="gemini_cache",
        tokens=TokenRecord(),
        storage_token_seconds=3600,
        status=None,
        finish_reason=None,
        ttft=None,
        e2e=0.0,
    )


def test_the_bill_for_a_cache_object_that_expired_is_no_request(store: LedgerStore) -> None:
    left = record(3, status=None, error="client_disconnected", ttft=None)
    store.write([record(1), storage_bill(2), left])
    with store.reading() as connection:
        [group] = usage_by(connection, [])
        rows = list(usage_rows(connection))
    assert (group.requests, group.errors) == (2, 1)
    assert (group.storage_token_seconds, group.storage_token_hours) == (3600, 1.0)
    assert [row.requests for row in rows] == [1, 0, 1]


def test_an_empty_ledger_has_one_empty_group_of_everything(store: LedgerStore) -> None:
    with store.reading() as connection:
        [group] = usage_by(connection, [])
        assert usage_by(connection, [GroupBy.DAY]) == []
    assert (group.requests, group.total, group.cached_share, group.ttft_p50) == (0, 0, None, None)


def test_rows_for_the_bill_are_what_was_read_written_and_neither(store: LedgerStore) -> None:
    tokens = TokenRecord(
        input=1000,
        cached_by_tier={Tier.DEVICE: 700},
        read=600,
        write_short=90,
        write_long=10,
        output=5,
    )
    store.write(
        [
            record(2, tokens=tokens, storage_token_seconds=1800),
            record(1, tokens=None, model=None),
            record(3, tokens=TokenRecord(), error="engine_overloaded"),  # cost nothing: no row
        ]
    )
    with store.reading() as connection:
        unknown, known = usage_rows(connection)
    assert (unknown.model, unknown.counts) == ("", None)
    assert known.moment == datetime.fromtimestamp(NOON + 2, UTC)
    assert known.counts == TokenCounts(
        uncached=300, read=600, write_short=90, write_long=10, output=5, token_hours=Decimal("0.5")
    )


def test_what_answers_nothing_is_there_for_the_cache_alone(store: LedgerStore) -> None:
    nothing = TokenRecord(input=10)
    store.write(
        [
            record(0),
            record(1, tokens=nothing),
            record(2, tokens=nothing, error="client_disconnected"),
            record(3, dialect=DIALECT, tokens=TokenRecord(), storage_token_seconds=5),
        ]
    )
    with store.reading() as connection:
        rows = list(usage_rows(connection))
    assert [row.only_for_caching for row in rows] == [False, True, False, True]


def test_gaps_are_those_between_uses_of_one_key_of_one_tenant(store: LedgerStore) -> None:
    uses = [(0, "alpha", "k"), (60, "alpha", "k"), (90, "beta", "k"), (360, "alpha", "k")]
    records = [
        record(number, time=NOON + at, tenant=tenant, prompt_cache_key=key)
        for number, (at, tenant, key) in enumerate(uses)
    ]
    store.write([*records, record(9), record(10, prompt_cache_key="k", tokens=TokenRecord())])
    with store.reading() as connection:
        history = use_history(connection)
    assert sorted(history.gaps) == [Fraction(60), Fraction(300)]
    assert history.prefixes == 2
