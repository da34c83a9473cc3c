"""Guards what holds under all house rules: no read beyond what was reused, and every token counted once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ostinato.cache.report import CacheReport
from ostinato.cache.types import TenantId, Tier
from ostinato.clock import ManualClock
from ostinato.product.entries import CacheScope
from ostinato.product.prompt_cache import PromptCache
from ostinato.product.rules import HOUSE_RULES
from ostinato.product.segments import Breakpoint, Segment, SegmentKind, TTLClass

SCOPE = CacheScope(TenantId("us"), "model")
TOKENS = np.arange(400, dtype=np.int32)
marks = st.builds(Breakpoint, st.sampled_from(TTLClass), st.booleans())


@st.composite
def requests(draw: st.DrawFn) -> dict[str, object]:
    """A prompt that begins like all others, in any pieces, with any breakpoints."""
    length = draw(st.integers(1, len(TOKENS)))
    kinds = draw(st.lists(st.sampled_from(SegmentKind), max_size=12))
    segments = [
        Segment(kind, f"block[{at}]", at, draw(st.none() | marks)) for at, kind in enumerate(kinds)
    ]
    ends = draw(st.lists(st.integers(0, length), min_size=len(kinds), max_size=len(kinds)))
    shown = [draw(st.sampled_from([end, end, end, None])) for end in sorted(ends)]
    return {
        "length": length,
        "segments": segments,
        "boundaries": shown,
        "implicit": draw(st.none() | marks),
        "reused": draw(st.integers(0, length - 1)),
        "wait": draw(st.sampled_from([0.0, 1.0, 299.0, 400.0, 4000.0])),
        "output": draw(st.integers(0, 20)),
    }


@given(
    st.sampled_from(sorted(HOUSE_RULES)),
    st.integers(1, 200),
    st.sampled_from([1, 16]),
    st.lists(requests(), min_size=1, max_size=8),
)
def test_no_read_exceeds_what_was_reused_and_the_parts_add_up(
    name: str, least: int, granularity: int, asked: list[dict[str, object]]
) -> None:
    rules = replace(HOUSE_RULES[name], min_tokens=least)
    clock = ManualClock()
    cache = PromptCache(clock, b"s" * 32, rules, granularity)
    for one in asked:
        clock.advance(one["wait"])  # type: ignore[arg-type]
        length, reused = one["length"], one["reused"]
        assert isinstance(length, int)
        assert isinstance(reused, int)
        planned = cache.plan(
            SCOPE,
            TOKENS[:length],
            one["segments"],  # type: ignore[arg-type]
            one["boundaries"],  # type: ignore[arg-type]
            one["implicit"],  # type: ignore[arg-type]
        )
        split = cache.settle(planned, CacheReport(length, {Tier.DEVICE: reused}))
        cache.finish(planned, np.arange(one["output"], dtype=np.int32))  # type: ignore[arg-type]
        assert split.prompt == length
        assert min(split.read, split.write_short, split.write_long, split.uncached) >= 0
        assert split.read <= reused
        assert split.read % rules.rounding == 0
        assert split.read == 0 or split.read >= min(least, rules.rounding) or granularity > 1
        assert rules.bills_writes or split.write_short == split.write_long == 0
        assert all(0 < tokens < length for tokens, _ in planned.plan.retain)


def test_an_entry_that_came_back_without_its_last_partial_block_is_read_as_far_as_it_goes() -> None:
    cache = PromptCache(
        ManualClock(), b"s" * 32, replace(HOUSE_RULES["anthropic-512"], min_tokens=1), 16
    )
    segments = [Segment(SegmentKind.SYSTEM, "block[0]", 0, Breakpoint())]
    splits = []
    for reused in (0, 96, 95):
        planned = cache.plan(SCOPE, TOKENS[:120], segments, [100])
        splits.append(cache.settle(planned, CacheReport(120, {Tier.DISK: reused})))
    assert [(split.read, split.write_short) for split in splits] == [(0, 100), (96, 4), (0, 100)]
