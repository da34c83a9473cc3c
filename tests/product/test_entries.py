"""Guards the book of entries: keys nobody else can make, lifetimes to the second, and a bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.report import CacheReport
from ostinato.cache.types import TenantId, Tier
from ostinato.clock import ManualClock
from ostinato.errors import ConfigError
from ostinato.product.entries import (
    CacheScope,
    Entry,
    EntryBook,
    EntryKey,
    NoJournal,
    PrefixDigests,
)
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import HOUSE_RULES, house_rules
from ostinato.product.segments import Breakpoint, Segment, SegmentKind, TTLClass

SECRET = b"s" * 32
SCOPE = CacheScope(TenantId("us"), "model")
TOKENS = np.arange(100, dtype=np.int32)
OTHERS = [
    CacheScope(TenantId("us"), "model", ""),
    CacheScope(TenantId("us"), "model", None, ""),
    CacheScope(TenantId("us"), "mode", "l"),
    CacheScope(TenantId("usm"), "odel"),
    CacheScope(TenantId("them"), "model"),
    CacheScope(TenantId("us"), "other"),
]


def key(scope: CacheScope = SCOPE, length: int = 50, secret: bytes = SECRET) -> EntryKey:
    return PrefixDigests(secret, scope, TOKENS).keys([length])[length]


def entry(name: bytes, until: float, **more: float) -> Entry:
    made = Entry(EntryKey(name), 10, TTLClass.SHORT, 300.0, until, None, TenantId("us"))
    return replace(made, **more)  # type: ignore[arg-type]


def test_whatever_narrows_a_scope_changes_its_keys() -> None:
    assert len({key(scope) for scope in [SCOPE, *OTHERS]}) == len(OTHERS) + 1
    assert key(secret=b"t" * 32) != key()


@given(st.sets(st.integers(1, 100), min_size=1))
def test_a_key_is_that_of_the_prefix_alone(lengths: set[int]) -> None:
    keys = PrefixDigests(SECRET, SCOPE, TOKENS).keys(lengths)
    assert keys == {length: key(length=length) for length in lengths}
    shorter = PrefixDigests(SECRET, SCOPE, TOKENS[: max(lengths)]).keys(lengths)
    assert shorter == keys
    halves = PrefixDigests(SECRET, SCOPE, TOKENS[:30]).extended(TOKENS[30:])
    assert halves.keys(lengths) == keys


def test_an_entry_ends_at_its_second_and_a_refresh_moves_that() -> None:
    clock = ManualClock(0.0)
    book = EntryBook(clock)
    book.put(entry(b"a", 300.0))
    clock.advance(299.0)
    book.refresh(EntryKey(b"a"), clock.time())
    clock.advance(299.0)
    assert book.find(EntryKey(b"a")) is not None
    clock.advance(1.0)
    assert book.find(EntryKey(b"a")) is None
    book.refresh(EntryKey(b"a"), clock.time())
    assert len(book) == 0


def test_no_refresh_moves_it_beyond_its_bound() -> None:
    clock = ManualClock(0.0)
    book = EntryBook(clock)
    book.put(entry(b"a", 300.0, ends_at=350.0))
    clock.advance(200.0)
    book.refresh(EntryKey(b"a"), clock.time())
    clock.advance(149.0)
    assert len(book) == 1
    clock.advance(1.0)
    assert len(book) == 0


def test_what_was_written_under_other_rules_is_not_read() -> None:
    clock = ManualClock(0.0)
    book = EntryBook(clock)
    segments = (Segment(SegmentKind.USER, "messages[0]", 0, Breakpoint()),)
    for name, read in (("anthropic-512", 0), ("anthropic-1024", 0), ("anthropic-512", 1900)):
        cache = PromptCache(clock, SECRET, house_rules(name), book=book)
        asked = cache.plan(SCOPE, np.arange(2000, dtype=np.int32), segments, [1900])
        assert cache.settle(asked, CacheReport(2000, {Tier.DEVICE: 1999})).read == read


def test_a_book_that_has_kept_too_much_lets_go_of_what_ends_first_and_says_so() -> None:
    told: list[EntryKey] = []

    class Journal(NoJournal):
        def forget(self, key: EntryKey) -> None:
            told.append(key)

    kept = [entry(b"a", 900.0), entry(b"b", 300.0), entry(b"c", 600.0)]
    book = EntryBook(ManualClock(0.0), max_entries=2, journal=Journal(), kept=kept)
    assert len(book) == 2
    assert told == [b"b"]


def test_a_full_book_lets_go_of_what_ends_first() -> None:
    book = EntryBook(ManualClock(0.0), max_entries=2)
    for name, until in ((b"a", 900.0), (b"b", 300.0), (b"c", 600.0)):
        book.put(entry(name, until))
    assert book.find(EntryKey(b"b")) is None
    assert len(book) == 2


def test_writing_it_again_with_a_shorter_lifetime_takes_nothing_away() -> None:
    book = EntryBook(ManualClock(0.0))
    book.put(entry(b"a", 3600.0, ttl=3600.0))
    book.put(entry(b"a", 300.0))
    found = book.find(EntryKey(b"a"))
    assert found is not None
    assert (found.expires_at, found.ttl) == (3600.0, 3600.0)


def test_of_two_writers_the_one_that_began_later_counts_in_whatever_order_they_settle() -> None:
    book = EntryBook(ManualClock(0.0))
    book.put(entry(b"a", 310.0))
    book.put(entry(b"a", 300.0))
    found = book.find(EntryKey(b"a"))
    assert found is not None
    assert found.expires_at == 310.0


def test_forgetting_is_final_and_may_be_repeated() -> None:
    book = EntryBook(ManualClock(0.0))
    book.put(entry(b"a", 300.0))
    book.forget(EntryKey(b"a"))
    book.forget(EntryKey(b"a"))
    assert book.find(EntryKey(b"a")) is None


def test_unknown_house_rules_are_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no house rules 'gpt'; there are local, anthropic-512"):
        house_rules("gpt")


def test_house_rules_are_found_by_the_name_they_bear() -> None:
    assert all(rules.name == name for name, rules in HOUSE_RULES.items())
    assert all(rules.read_rule == "reused" or rules.lookup for rules in HOUSE_RULES.values())
