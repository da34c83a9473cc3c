"""Where a vendor looks for entries that earlier requests have written.

A look-up rule names prefixes of the prompt, in tokens; whether there is an entry is the book's affair. A
segment that the model's template does not show has no boundary: it counts as a position and can hold no entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ostinato.product.breakpoints import (
    eligible_message_endings,
    end_of_initial_developer_block,
    marked,
)
from ostinato.product.segments import Segment, SegmentKind

_RUNS = (SegmentKind.TOOL_USE, SegmentKind.TOOL_RESULT)
"""Consecutive ones of a kind are one position of Anthropic's look-back."""


@dataclass(frozen=True, slots=True)
class PromptView:
    """A prompt, as the rules see it.

    Attributes:
        segments: in order.
        boundaries: for each its end in tokens, never more than can be cached; None where it is not shown.
        num_tokens: of the whole prompt.
        implicit: the segment at whose end the dialect's implicit breakpoint lies; None without one.
    """

    segments: Sequence[Segment]
    boundaries: Sequence[int | None]
    num_tokens: int
    implicit: int | None = None

    def tokens_at(self, places: Sequence[int]) -> set[int]:
        """The boundaries of those segments that have one."""
        ends = (self.boundaries[at] for at in places)
        return {end for end in ends if end is not None}


class LookUp(Protocol):
    """Where entries are looked for."""

    def prefixes(self, view: PromptView) -> set[int]:
        """Lengths of the prefixes that are looked up, in tokens."""
        ...


@dataclass(frozen=True, slots=True)
class LookBack:
    """Anthropic's: from each breakpoint so many positions back, the breakpoint being the first.

    A position is a segment, or a whole run of tool calls or of tool results.
    """

    positions: int

    def prefixes(self, view: PromptView) -> set[int]:
        position_of = _positions(view.segments)
        starts = marked(view.segments)
        if view.implicit is not None:
            starts.append(view.implicit)
        reached: set[int] = set()
        for start in starts:
            first = position_of[start] - self.positions + 1
            at = start
            while at >= 0 and position_of[at] >= first:
                reached.add(at)
                at -= 1
        return view.tokens_at(sorted(reached))


@dataclass(frozen=True, slots=True)
class LatestBreakpoints:
    """OpenAI's, as its SDK has it: the latest so many breakpoints, implicit ones of earlier turns included."""

    limit: int

    def prefixes(self, view: PromptView) -> set[int]:
        places = set(marked(view.segments))
        if view.implicit is not None:
            places.update(eligible_message_endings(view.segments))
        return view.tokens_at(sorted(places)[-self.limit :])


@dataclass(frozen=True, slots=True)
class FirstAndLatest:
    """OpenAI's, as its guide has it: the first explicit breakpoints, the latest, the implicit one, some message
    endings before it, and the end of the initial developer block."""

    first: int
    latest: int
    endings: int

    def prefixes(self, view: PromptView) -> set[int]:
        explicit = marked(view.segments)
        places = {*explicit[: self.first], *explicit[-self.latest :]}
        if view.implicit is not None:
            before = [at for at in eligible_message_endings(view.segments) if at < view.implicit]
            places |= {view.implicit, *before[-self.endings :]}
            developer = end_of_initial_developer_block(view.segments)
            if developer is not None:
                places.add(developer)
        return view.tokens_at(sorted(places))


@dataclass(frozen=True, slots=True)
class EveryUnit:
    """At every multiple of a unit, whatever the segments."""

    unit: int

    def prefixes(self, view: PromptView) -> set[int]:
        return set(range(self.unit, view.num_tokens, self.unit))


def _positions(segments: Sequence[Segment]) -> list[int]:
    """For each segment the number of its position, from 0."""
    numbers: list[int] = []
    for at, segment in enumerate(segments):
        same = at > 0 and segment.kind in _RUNS and segments[at - 1].kind is segment.kind
        numbers.append(numbers[-1] + (not same) if numbers else 0)
    return numbers
