"""The rules about where breakpoints may lie, a function each; dialects call those that are theirs.

| vendor    | rule                                                         | function                     |
|-----------|--------------------------------------------------------------|------------------------------|
| Anthropic | at most 4, the automatic one included                        | `require_at_most_four`       |
| Anthropic | the automatic one is no fifth                                | `require_room_for_automatic` |
| Anthropic | 1h before 5m                                                 | `require_long_before_short`  |
| Anthropic | a top-level `cache_control` marks the last segment that may  | `place_automatic`            |
|           | be marked                                                    |                              |
| OpenAI    | entries may end with: user messages, runs of tool outputs,   | `eligible_message_endings`   |
|           | the developer messages that the prompt begins with           |                              |
| OpenAI    | of more than may be written, the latest are                  | `latest_explicit`            |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from ostinato.errors import InvalidRequestError
from ostinato.product.segments import Breakpoint, Segment, SegmentKind, TTLClass

MAX_BREAKPOINTS = 4


class MayBeMarked(Protocol):
    """A segment, or a mark as the client set it: two of these may lie on one segment."""

    @property
    def path(self) -> str: ...

    @property
    def breakpoint(self) -> Breakpoint | None: ...


def marked(segments: Sequence[MayBeMarked]) -> list[int]:
    """Indices of those with a breakpoint, in order."""
    return [at for at, segment in enumerate(segments) if segment.breakpoint is not None]


def require_at_most_four(segments: Sequence[MayBeMarked]) -> None:
    """Anthropic's limit.

    Raises:
        InvalidRequestError: there are more; names the fifth.
    """
    places = marked(segments)
    if len(places) > MAX_BREAKPOINTS:
        path = segments[places[MAX_BREAKPOINTS]].path
        raise InvalidRequestError(
            f"at most {MAX_BREAKPOINTS} blocks may have cache_control, but {len(places)} have; the fifth "
            f"is {path}",
            param=f"{path}.cache_control",
        )


def require_long_before_short(segments: Sequence[MayBeMarked]) -> None:
    """Anthropic's order: a 1h breakpoint never follows a 5m one.

    Raises:
        InvalidRequestError: one does; names it.
    """
    short: str | None = None
    for segment in segments:
        if segment.breakpoint is None:
            continue
        if segment.breakpoint.ttl is TTLClass.SHORT:
            short = segment.path
        elif short is not None:
            raise InvalidRequestError(
                f"a cache_control with ttl '1h' must not come after one with ttl '5m': {segment.path} "
                f"comes after {short}",
                param=f"{segment.path}.cache_control.ttl",
            )


def place_automatic(segments: Sequence[Segment], wanted: Breakpoint) -> tuple[Segment, ...]:
    """Anthropic's automatic caching: `wanted` on the last segment that may carry one.

    No place at all, or one that is marked so already, changes nothing.

    Raises:
        InvalidRequestError: the place is marked with another lifetime, or four others are marked.
    """
    places = [at for at, segment in enumerate(segments) if not segment.is_empty]
    if not places:
        return tuple(segments)
    last = places[-1]
    known = segments[last].breakpoint
    if known is not None:
        if known.ttl is not wanted.ttl:
            raise InvalidRequestError(
                f"the top-level cache_control and the one of {segments[last].path}, where it would go, "
                "have different ttls",
                param="cache_control.ttl",
            )
        return tuple(segments)
    require_room_for_automatic(len(marked(segments)))
    placed = replace(segments[last], breakpoint=replace(wanted, explicit=False))
    return (*segments[:last], placed, *segments[last + 1 :])


def require_room_for_automatic(num_marks: int) -> None:
    """Anthropic's limit, for the automatic breakpoint where it is one more.

    Args:
        num_marks: that the client has set on blocks.

    Raises:
        InvalidRequestError: they are as many as there may be.
    """
    if num_marks >= MAX_BREAKPOINTS:
        raise InvalidRequestError(
            f"the top-level cache_control would be one more than the {MAX_BREAKPOINTS} blocks that may "
            "have one: remove one of theirs",
            param="cache_control",
        )


def eligible_message_endings(segments: Sequence[Segment]) -> list[int]:
    """Indices of the segments that end a message at which OpenAI's implicit entries may end, in order."""
    return [
        at
        for at, segment in enumerate(segments)
        if _ends_message(segments, at)
        and (
            segment.kind is SegmentKind.USER
            or (segment.kind is SegmentKind.TOOL_RESULT and _ends_run(segments, at))
            or at == end_of_initial_developer_block(segments)
        )
    ]


def end_of_initial_developer_block(segments: Sequence[Segment]) -> int | None:
    """Index of the last segment of the system messages that the prompt begins with, tools aside."""
    last: int | None = None
    for at, segment in enumerate(segments):
        if segment.kind is SegmentKind.SYSTEM:
            last = at
        elif segment.kind is not SegmentKind.TOOL:
            break
    return last


def latest_explicit(segments: Sequence[Segment], limit: int) -> list[int]:
    """Indices of the last `limit` segments that the client has marked, in order."""
    places = marked(segments)
    return places[-limit:] if limit > 0 else []


def _ends_message(segments: Sequence[Segment], at: int) -> bool:
    return at + 1 == len(segments) or segments[at + 1].message != segments[at].message


def _ends_run(segments: Sequence[Segment], at: int) -> bool:
    return at + 1 == len(segments) or segments[at + 1].kind is not segments[at].kind
