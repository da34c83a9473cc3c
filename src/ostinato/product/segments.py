"""Segments: a prompt as the vendors see it, pieces in order, some of which end in a cache breakpoint.

    tools ─► system ─► messages, each part and each call in the order in which it was written

A segment knows nothing of text or tokens; where it ends in the rendered prompt is a *boundary*, a number of
tokens that `models.chat_encoding` finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TTLClass(StrEnum):
    """How long an entry is promised to stay; the seconds come from the house rules."""

    SHORT = "short"
    """Anthropic's 5m; OpenAI's 30m and in_memory."""
    LONG = "long"
    """Anthropic's 1h; OpenAI's 12h and 24h."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A request to cache everything up to the end of a segment.

    Attributes:
        ttl: for how long.
        explicit: the client put it there; else the dialect did, because the client asked for caching in
            general.
    """

    ttl: TTLClass = TTLClass.SHORT
    explicit: bool = True


class SegmentKind(StrEnum):
    """What a segment is, as far as a vendor's rule asks."""

    TOOL = "tool"
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_USE = "tool_use"
    TOOL_RESULT = "tool_result"


@dataclass(frozen=True, slots=True)
class Segment:
    """One tool, one part of a message, or one tool call.

    Attributes:
        kind: what it is.
        path: where it is in the canonical prompt, for messages to people, e.g. ``messages[2].content[0]``.
        message: index of its message; None for a tool.
        breakpoint: set if the prefix that ends with this segment is to be cached.
        is_empty: it has no text, so no breakpoint may lie there.
    """

    kind: SegmentKind
    path: str
    message: int | None = None
    breakpoint: Breakpoint | None = None
    is_empty: bool = False
