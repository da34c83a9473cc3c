"""plan_request: before a request runs, what it may read and what it will write.

segments, boundaries ──► rules ──► prefixes to look up ──► book ──► reads: live entries, longest first
                              └──► prefixes to write  ─────────────► writes, and K/V to be retained
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostinato.product.breakpoints import eligible_message_endings, latest_explicit
from ostinato.product.entries import Entry, EntryBook, EntryKey, PrefixDigests
from ostinato.product.lookup import PromptView
from ostinato.product.rules import Automatic, HouseRules, ReadRule
from ostinato.product.segments import Breakpoint, Segment, SegmentKind, TTLClass


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """A prefix that will be an entry once the response has begun.

    Attributes:
        num_tokens: its length.
        ttl: its lifetime class.
        key: names it.
        explicit: asked for; else it comes to be by an automatic rule.
    """

    num_tokens: int
    ttl: TTLClass
    key: EntryKey
    explicit: bool


@dataclass(frozen=True, slots=True)
class CachePlan:
    """What one request may read and will write.

    Attributes:
        rules: under which it was made.
        num_tokens: of the prompt.
        started: seconds of `Clock.time()` at which the request began; lifetimes count from here.
        reads: live entries that the rules let it look up, longest first.
        writes: shortest first.
        retain: for the engine: ``(num_tokens, seconds)`` whose K/V is to outlive plain eviction.
        digests: of the prompt's prefixes.
    """

    rules: HouseRules
    num_tokens: int
    started: float
    reads: tuple[Entry, ...]
    writes: tuple[PlannedWrite, ...]
    retain: tuple[tuple[int, float], ...]
    digests: PrefixDigests


def plan_request(
    rules: HouseRules,
    segments: Sequence[Segment],
    boundaries: Sequence[int | None],
    num_tokens: int,
    *,
    book: EntryBook,
    digests: PrefixDigests,
    started: float,
    implicit: Breakpoint | None = None,
) -> CachePlan:
    """Look entries up and lay down what is written.

    Args:
        rules: of the house.
        segments: of the prompt; those with a breakpoint are to be cached.
        boundaries: for each segment its end in tokens, or None.
        num_tokens: of the prompt.
        book: of entries.
        digests: of the prompt.
        started: seconds of `Clock.time()` at which the request began.
        implicit: the dialect's breakpoint at the latest eligible message, if the client did not switch it off.
    """
    view = _view(rules, segments, boundaries, num_tokens, implicit)
    wanted = _writes(rules, view, implicit)
    looked_up = _lookups(rules, view)
    keys = digests.keys({*looked_up, *wanted})
    writes = tuple(
        PlannedWrite(length, mark.ttl, keys[length], mark.explicit)
        for length, mark in sorted(wanted.items())
    )
    found = (book.find(keys[length]) for length in sorted(looked_up, reverse=True))
    return CachePlan(
        rules=rules,
        num_tokens=num_tokens,
        started=started,
        reads=tuple(entry for entry in found if entry is not None),
        writes=writes,
        retain=_retained(rules, writes),
        digests=digests,
    )


def cacheable_end(boundary: int | None, num_tokens: int) -> int | None:
    """A boundary as a length that can be cached: a prompt's last token is always computed, so a prefix that
    is the whole prompt counts one token less."""
    return None if boundary is None else min(boundary, num_tokens - 1)


def at_least_minimum(rules: HouseRules, lengths: Iterable[int]) -> set[int]:
    """Of these prefixes, those long enough to be cached; nothing is said about the others."""
    return {length for length in lengths if length >= max(rules.min_tokens, 1)}


def _view(
    rules: HouseRules,
    segments: Sequence[Segment],
    boundaries: Sequence[int | None],
    num_tokens: int,
    implicit: Breakpoint | None,
) -> PromptView:
    ends = [cacheable_end(boundary, num_tokens) for boundary in boundaries]
    place: int | None = None
    if implicit is not None and rules.automatic is Automatic.MESSAGE_END:
        eligible = eligible_message_endings(segments)
        place = eligible[-1] if eligible else None
    return PromptView(segments, ends, num_tokens, place)


def _lookups(rules: HouseRules, view: PromptView) -> set[int]:
    if rules.read_rule is not ReadRule.ENTRIES or rules.lookup is None:
        return set()
    return at_least_minimum(rules, rules.lookup.prefixes(view))


def _writes(
    rules: HouseRules, view: PromptView, implicit: Breakpoint | None
) -> dict[int, Breakpoint]:
    """By length of the prefix. Where two breakpoints end at one token, the later and then the longer counts."""
    if rules.automatic is Automatic.UNITS:
        mark = implicit or Breakpoint(explicit=False)
        grid = range(rules.unit_tokens, view.num_tokens, rules.unit_tokens)
        return dict.fromkeys(at_least_minimum(rules, grid), mark)
    if rules.automatic is Automatic.FULL_UNITS:
        ends = at_least_minimum(rules, full_units(rules, view))
        return dict.fromkeys(ends, Breakpoint(explicit=False))
    room = rules.max_writes - (view.implicit is not None)
    marks: dict[int, Breakpoint] = {}
    if view.implicit is not None and implicit is not None:
        for end in view.tokens_at([view.implicit]):
            marks[end] = implicit
    for at in latest_explicit(view.segments, room):
        asked = view.segments[at].breakpoint
        assert asked is not None  # `latest_explicit` returns marked ones only
        for end in view.tokens_at([at]):
            if end not in marks or asked.ttl is TTLClass.LONG or not marks[end].explicit:
                marks[end] = asked
    allowed = at_least_minimum(rules, marks)
    return {end: mark for end, mark in marks.items() if end in allowed}


def full_units(rules: HouseRules, view: PromptView) -> set[int]:
    """Where DeepSeek stores a unit by the prompt alone: at the end of the user's input, and at intervals."""
    users = [at for at, segment in enumerate(view.segments) if segment.kind is SegmentKind.USER]
    ends = view.tokens_at(users[-1:]) or {view.num_tokens - 1}
    intervals = range(rules.interval_tokens, view.num_tokens, rules.interval_tokens)
    return {end - end % rules.unit_tokens for end in (*ends, *intervals)}


def _retained(rules: HouseRules, writes: Sequence[PlannedWrite]) -> tuple[tuple[int, float], ...]:
    """What a vendor promises to keep: breakpoints, not what is stored on the off chance."""
    if rules.automatic in (Automatic.UNITS, Automatic.FULL_UNITS):
        return ()
    return tuple((write.num_tokens, rules.ttl_seconds[write.ttl]) for write in writes)
