"""Guards the diagnosis of cache misses: the wrong change named, or a token count that no prompt has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.types import TenantId
from ostinato.clock import ManualClock
from ostinato.product.diagnosis import (
    ANTHROPIC_TYPES,
    LIFETIME,
    MAX_SEGMENTS,
    OPENAI_REASONS,
    Change,
    Fingerprint,
    FingerprintBook,
    Fingerprinter,
    MissCause,
    SegmentContent,
    common_tokens,
    diagnose,
)
from ostinato.product.segments import SegmentKind

ALICE = TenantId("alice")
KINDS = {
    "t": SegmentKind.TOOL,
    "s": SegmentKind.SYSTEM,
    "u": SegmentKind.USER,
    "a": SegmentKind.ASSISTANT,
    "r": SegmentKind.TOOL_RESULT,
}
TOKENS = 10
"""Of every segment here."""


def fingerprint(words: str, tenant: TenantId = ALICE, **settings: Any) -> Fingerprint:
    """Of a prompt written as ``t:search s:be-brief u:hello``; 3 tokens open the answer."""
    segments = [
        SegmentContent(KINDS[word[0]], word[2:], TOKENS * (at + 1))
        for at, word in enumerate(words.split())
    ]
    given_settings = {Change.MODEL: "m", **{Change(name): v for name, v in settings.items()}}
    return Fingerprinter(b"secret").fingerprint(
        tenant, segments, TOKENS * len(segments) + 3, given_settings
    )


BASE = "t:one t:two s:rules u:hello"
SAME, RULES = BASE, 3 * TOKENS

CASES = [
    ("the same request", BASE, {}, None),
    ("longer by a turn", f"{BASE} a:hi u:more", {}, None),
    ("an earlier state of the conversation", "t:one t:two s:rules", {}, None),
    ("another model", BASE, {"model": "n"}, (Change.MODEL, 0)),
    ("another key", BASE, {"cache_key": "k"}, (Change.CACHE_KEY, 0)),
    ("another tier", BASE, {"service_tier": "flex"}, (Change.SERVICE_TIER, 43)),
    ("a changed tool", "t:one t:2 s:rules u:hello", {}, (Change.TOOLS, 10)),
    ("a removed tool", "t:one s:rules u:hello", {}, (Change.TOOLS, 10)),
    ("an added tool", "t:one t:two t:three s:rules u:hello", {}, (Change.TOOLS, 20)),
    ("reordered tools", "t:two t:one s:rules u:hello", {}, (Change.TOOLS, 0)),
    ("another schema", BASE, {"text_format": {"type": "object"}}, (Change.TEXT_FORMAT, 43)),
    ("other effort", BASE, {"reasoning_effort": "high"}, (Change.REASONING_EFFORT, 43)),
    ("other verbosity", BASE, {"verbosity": "low"}, (Change.VERBOSITY, 43)),
    ("a changed system", "t:one t:two s:other u:hello", {}, (Change.SYSTEM, 20)),
    ("a second system", "t:one t:two s:rules s:more u:hello", {}, (Change.SYSTEM, 30)),
    ("no system", "t:one t:two u:hello", {}, (Change.SYSTEM, 20)),
    ("a changed question", "t:one t:two s:rules u:other", {}, (Change.MESSAGES, 30)),
    ("an inserted message", "t:one t:two s:rules u:new a:x u:hello", {}, (Change.MESSAGES, 30)),
    ("another choice of tool", BASE, {"other_settings": "none"}, (Change.OTHER_SETTINGS, 43)),
]


@pytest.mark.parametrize(
    ("words", "settings", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_the_first_change_is_named_with_the_tokens_before_it(
    words: str, settings: dict[str, Any], expected: tuple[Change, int] | None
) -> None:
    current = fingerprint(words, **settings)
    cause = diagnose(fingerprint(BASE), current)
    if expected is None:
        assert cause is None
    else:
        change, reusable = expected
        assert cause == MissCause(change, current.num_tokens - reusable, reusable)


def test_of_several_changes_the_one_that_costs_most_is_named() -> None:
    changed = fingerprint("t:2 s:other u:x", model="n", verbosity="low")
    cause = diagnose(fingerprint(BASE), changed)
    assert cause is not None
    assert cause.change is Change.MODEL
    cause = diagnose(fingerprint(BASE), fingerprint("t:2 s:other u:x", verbosity="low"))
    assert cause is not None
    assert cause.change is Change.TOOLS


LONG = "s:rules u:1 a:1 u:2 a:2 u:3"


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("s:rules u:2 a:2 u:3", Change.COMPACTED),
        ("s:rules u:summary u:2 a:2 u:3 a:3 u:4", Change.MESSAGES),
        ("s:rules u:summary a:2 u:3", Change.COMPACTED),
        ("s:rules u:summary u:4", Change.MESSAGES),
        ("s:rules u:other a:1 u:2 a:2 u:3", Change.MESSAGES),
    ],
)
def test_messages_that_are_gone_before_others_that_stayed_are_a_compaction(
    words: str, change: Change
) -> None:
    cause = diagnose(fingerprint(LONG), fingerprint(words))
    assert cause is not None
    assert (cause.change, cause.reusable_tokens) == (change, TOKENS)


def test_a_template_that_shows_tools_behind_the_system_message_loses_only_what_follows_them() -> (
    None
):
    def qwen(tool: str) -> Fingerprint:
        segments = [
            SegmentContent(SegmentKind.TOOL, tool, 50),
            SegmentContent(SegmentKind.SYSTEM, "rules", 20),
            SegmentContent(SegmentKind.USER, "hello", 60),
            SegmentContent(SegmentKind.USER, "hidden", None),
        ]
        return Fingerprinter(b"secret").fingerprint(ALICE, segments, 65, {})

    assert diagnose(qwen("one"), qwen("two")) == MissCause(Change.TOOLS, 45, 20)


def test_digests_of_two_tenants_or_servers_cannot_be_compared() -> None:
    mine, theirs = fingerprint("u:hello"), fingerprint("u:hello", TenantId("bob"))
    other_server = Fingerprinter(b"other").fingerprint(
        ALICE, [SegmentContent(SegmentKind.USER, "hello", TOKENS)], 13, {}
    )
    digests = {one.segments[0].digest for one in (mine, theirs, other_server)}
    assert len(digests) == 3


def test_a_fingerprint_holds_no_text() -> None:
    assert "hello" not in repr(fingerprint("u:hello", text_format="hello"))


def test_what_lies_behind_the_horizon_is_not_looked_at() -> None:
    segments = [SegmentContent(SegmentKind.USER, n, n + 1) for n in range(MAX_SEGMENTS + 1)]
    taken = Fingerprinter(b"secret").fingerprint(ALICE, segments, 9999, {})
    assert len(taken.segments) == MAX_SEGMENTS
    assert not taken.is_whole


def test_every_change_but_other_settings_has_a_reason_of_openai() -> None:
    assert set(OPENAI_REASONS) == set(Change) - {Change.OTHER_SETTINGS}
    assert len(set(OPENAI_REASONS.values())) == 9
    assert set(ANTHROPIC_TYPES.values()) == {
        "model_changed",
        "system_changed",
        "tools_changed",
        "messages_changed",
    }


def test_a_fingerprint_is_found_by_its_tenant_until_it_expires() -> None:
    clock = ManualClock()
    book = FingerprintBook(clock)
    mine = fingerprint(BASE)
    book.put(ALICE, "resp_1", mine)
    assert book.find(TenantId("bob"), "resp_1") is None
    clock.advance(LIFETIME - 1)
    assert book.find(ALICE, "resp_1") is mine
    clock.advance(1)
    assert book.find(ALICE, "resp_1") is None


def test_a_full_book_forgets_the_oldest() -> None:
    book = FingerprintBook(ManualClock(), max_prints=12)
    for name in ("one", "two", "three"):
        book.put(ALICE, name, fingerprint(BASE))  # 5 each
    assert book.find(ALICE, "one") is None
    assert book.find(ALICE, "two") is not None
    assert book.find(ALICE, "three") is not None


WORDS = st.lists(
    st.sampled_from(["t:a", "t:b", "s:a", "s:b", "u:a", "u:b", "a:a"]), max_size=6
).map(lambda words: " ".join(sorted(words, key=lambda word: word[0] != "t")))


@given(WORDS, WORDS)
def test_reusable_and_missed_tokens_add_up_and_are_common_to_both(one: str, other: str) -> None:
    previous, current = fingerprint(one), fingerprint(other)
    cause = diagnose(previous, current)
    if cause is not None:
        assert cause.reusable_tokens + cause.missed_tokens == current.num_tokens
        assert 0 <= cause.reusable_tokens <= min(previous.num_tokens, current.num_tokens)
    assert common_tokens(previous, current) == common_tokens(current, previous)


@given(WORDS)
def test_equal_requests_never_differ(words: str) -> None:
    assert diagnose(fingerprint(words), fingerprint(words)) is None
