"""Diagnosis: what about a request keeps it from reading what an earlier one left in the cache.

A `Fingerprint` holds digests and token counts, no text. `diagnose` compares two and names the first difference,
in the order in which a difference costs most:

| change             | what differs                         | OpenAI's reason            | Anthropic's type   |
|--------------------|--------------------------------------|----------------------------|--------------------|
| `MODEL`            | model or speed                       | `model_changed`            | `model_changed`    |
| `CACHE_KEY`        | salt or `prompt_cache_key`           | `prompt_cache_key_changed` | `unavailable`      |
| `SERVICE_TIER`     | service tier                         | `service_tier_changed`     | `unavailable`      |
| `TOOLS`            | tools: names, schemas, order         | `tools_changed`            | `tools_changed`    |
| `TEXT_FORMAT`      | structured output                    | `text_format_changed`      | `unavailable`      |
| `REASONING_EFFORT` | reasoning, thinking                  | `reasoning_effort_changed` | `unavailable`      |
| `VERBOSITY`        | verbosity                            | `verbosity_changed`        | `unavailable`      |
| `SYSTEM`           | system messages at the very start    | `input_changed`            | `system_changed`   |
| `COMPACTED`        | early messages gone, later ones kept | `context_compacted`        | `messages_changed` |
| `MESSAGES`         | any other message                    | `input_changed`            | `messages_changed` |
| `OTHER_SETTINGS`   | tool choice, template variables, …   | `unavailable`              | `unavailable`      |

Two requests of which one begins with all of the other do not differ. Whether the cache was hit is not asked
here: a difference may cost nothing (a schema that only constrains the output), and equal requests may miss
(expiry, eviction).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import Any, NewType

from ostinato.cache.types import TenantId
from ostinato.clock import Clock
from ostinato.product.segments import SegmentKind

LIFETIME = 3600.0
"""Seconds that a fingerprint is kept."""
MAX_PRINTS = 200_000
"""Segments of all fingerprints together; about 40 MB."""
MAX_SEGMENTS = 4096
"""Segments of one request that are looked at; what differs only behind them is not found."""

_DIGEST_BYTES = 16
_FORMAT = b"ostinato-fingerprint-v1"

Digest = NewType("Digest", bytes)
"""16 bytes, under the server's secret and the tenant."""


class Change(StrEnum):
    """The first difference; see the module's table."""

    MODEL = "model"
    CACHE_KEY = "cache_key"
    SERVICE_TIER = "service_tier"
    TOOLS = "tools"
    TEXT_FORMAT = "text_format"
    REASONING_EFFORT = "reasoning_effort"
    VERBOSITY = "verbosity"
    SYSTEM = "system"
    COMPACTED = "compacted"
    MESSAGES = "messages"
    OTHER_SETTINGS = "other_settings"


BEFORE_TOOLS = (Change.MODEL, Change.CACHE_KEY, Change.SERVICE_TIER)
BEHIND_TOOLS = (Change.TEXT_FORMAT, Change.REASONING_EFFORT, Change.VERBOSITY)
_OTHER_CACHE = (Change.MODEL, Change.CACHE_KEY)
"""Nothing that one left can be read by the other, however equal they are."""
SETTINGS = (*BEFORE_TOOLS, *BEHIND_TOOLS, Change.OTHER_SETTINGS)
"""Changes of a setting: the names that `Fingerprinter.fingerprint` takes values of."""

OPENAI_REASONS: Mapping[Change, str] = {
    Change.MODEL: "model_changed",
    Change.CACHE_KEY: "prompt_cache_key_changed",
    Change.SERVICE_TIER: "service_tier_changed",
    Change.TOOLS: "tools_changed",
    Change.TEXT_FORMAT: "text_format_changed",
    Change.REASONING_EFFORT: "reasoning_effort_changed",
    Change.VERBOSITY: "verbosity_changed",
    Change.SYSTEM: "input_changed",
    Change.COMPACTED: "context_compacted",
    Change.MESSAGES: "input_changed",
}
"""``prompt_cache_diagnostics.reason``; for what is not here the type is ``unavailable``."""

ANTHROPIC_TYPES: Mapping[Change, str] = {
    Change.MODEL: "model_changed",
    Change.TOOLS: "tools_changed",
    Change.SYSTEM: "system_changed",
    Change.COMPACTED: "messages_changed",
    Change.MESSAGES: "messages_changed",
}
"""``diagnostics.cache_miss_reason.type``; for what is not here it is ``unavailable``."""


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """A segment as it is fingerprinted.

    Attributes:
        kind: what it is.
        content: all of it that is rendered, as JSON values; order of keys counts.
        end: its boundary in tokens; None where the template does not show it.
    """

    kind: SegmentKind
    content: Any
    end: int | None


@dataclass(frozen=True, slots=True)
class SegmentPrint:
    """A segment without its content."""

    kind: SegmentKind
    digest: Digest
    end: int | None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One request, as far as its place in the cache depends on it.

    Attributes:
        settings: digest of each setting that was given.
        segments: in the vendors' order, the first `MAX_SEGMENTS`.
        num_tokens: of the prompt.
        is_whole: whether `segments` are all.
    """

    settings: Mapping[Change, Digest]
    segments: tuple[SegmentPrint, ...]
    num_tokens: int
    is_whole: bool = True

    def tools(self) -> tuple[SegmentPrint, ...]:
        return tuple(one for one in self.segments if one.kind is SegmentKind.TOOL)

    def system(self) -> tuple[SegmentPrint, ...]:
        """The system messages that the prompt begins with."""
        rest = self.segments[len(self.tools()) :]
        return tuple(takewhile(lambda one: one.kind is SegmentKind.SYSTEM, rest))

    def messages(self) -> tuple[SegmentPrint, ...]:
        """What follows them."""
        return self.segments[len(self.tools()) + len(self.system()) :]


@dataclass(frozen=True, slots=True)
class MissCause:
    """Why a request cannot read all that the earlier one left.

    Attributes:
        change: the first difference.
        missed_tokens: tokens of the request behind the first token that differs.
        reusable_tokens: tokens before it, that both prompts begin with.
    """

    change: Change
    missed_tokens: int
    reusable_tokens: int


class Fingerprinter:
    """Makes fingerprints. Without the secret nobody can compute a digest, or compare those of two tenants.

    Args:
        secret: of the server.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def fingerprint(
        self,
        tenant: TenantId,
        segments: Sequence[SegmentContent],
        num_tokens: int,
        settings: Mapping[Change, Any],
    ) -> Fingerprint:
        """Of one request.

        Args:
            tenant: whose it is.
            segments: tools first, then the parts and calls of each message.
            num_tokens: of the prompt.
            settings: JSON values by what a change of them would be called; an absent one equals None.
        """
        key = hmac.digest(self._secret, _FORMAT + tenant.encode(), hashlib.sha256)
        return Fingerprint(
            settings={
                name: _digest(key, value) for name, value in settings.items() if value is not None
            },
            segments=tuple(
                SegmentPrint(one.kind, _digest(key, one.content), one.end)
                for one in segments[:MAX_SEGMENTS]
            ),
            num_tokens=num_tokens,
            is_whole=len(segments) <= MAX_SEGMENTS,
        )


def _digest(key: bytes, value: Any) -> Digest:
    """Order of keys counts: it does in a rendered prompt."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return Digest(hashlib.blake2b(text.encode(), key=key, digest_size=_DIGEST_BYTES).digest())


def diagnose(previous: Fingerprint, current: Fingerprint) -> MissCause | None:
    """The first difference that keeps `current` from reading what `previous` left; None if there is none."""
    change = _first_change(previous, current)
    if change is None:
        return None
    reusable = 0 if change in _OTHER_CACHE else common_tokens(previous, current)
    return MissCause(change, current.num_tokens - reusable, reusable)


def _first_change(previous: Fingerprint, current: Fingerprint) -> Change | None:
    setting = _changed_setting(previous, current, BEFORE_TOOLS)
    if setting is not None:
        return setting
    if _texts(previous.tools()) != _texts(current.tools()):
        return Change.TOOLS
    setting = _changed_setting(previous, current, BEHIND_TOOLS)
    if setting is not None:
        return setting
    if previous.messages() and _texts(previous.system()) != _texts(current.system()):
        return Change.SYSTEM
    if not previous.messages() and not _begins_with(current.system(), previous.system()):
        return Change.SYSTEM
    earlier, later = previous.messages(), current.messages()
    if not _begins_with(later, earlier) and not _begins_with(earlier, later):
        return Change.COMPACTED if is_compacted(previous, current) else Change.MESSAGES
    return _changed_setting(previous, current, (Change.OTHER_SETTINGS,))


def _changed_setting(
    previous: Fingerprint, current: Fingerprint, names: Sequence[Change]
) -> Change | None:
    changed = (n for n in names if previous.settings.get(n) != current.settings.get(n))
    return next(changed, None)


def is_compacted(previous: Fingerprint, current: Fingerprint) -> bool:
    """Whether messages were taken out, or put into fewer words, before others that stayed.

    That is: behind the first message that differs the request is shorter, and what comes next in the earlier
    one comes again.
    """
    earlier, later = _texts(previous.messages()), _texts(current.messages())
    same = _num_equal(earlier, later)
    kept = set(earlier[same + 1 :])
    shortened = len(later) < len(earlier) or current.num_tokens < previous.num_tokens
    return shortened and any(text in kept for text in later[same:])


def common_tokens(previous: Fingerprint, current: Fingerprint) -> int:
    """Tokens that both rendered prompts begin with, to the end of a segment.

    Segments are compared in the order in which the template shows them, which need not be the vendors'.
    """
    if previous.segments == current.segments:
        return min(previous.num_tokens, current.num_tokens)
    earlier, later = _as_rendered(previous), _as_rendered(current)
    same = 0
    for one, other in zip(earlier, later, strict=False):
        if (one.kind, one.digest, one.end) != (other.kind, other.digest, other.end):
            break
        same += 1
    end = later[same - 1].end if same else 0
    assert end is not None  # `_as_rendered` leaves out what is not shown
    return end


def _as_rendered(fingerprint: Fingerprint) -> list[SegmentPrint]:
    shown = [one for one in fingerprint.segments if one.end is not None]
    return sorted(shown, key=lambda one: one.end or 0)


def _texts(segments: Sequence[SegmentPrint]) -> list[tuple[SegmentKind, Digest]]:
    return [(one.kind, one.digest) for one in segments]


def _begins_with(whole: Sequence[SegmentPrint], start: Sequence[SegmentPrint]) -> bool:
    return _texts(whole[: len(start)]) == _texts(start)


def _num_equal(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(slots=True)
class FingerprintBook:
    """Fingerprints by the id of the response that their request got, each for `LIFETIME` seconds.

    Beyond `max_prints` segments in all the oldest go. Not thread-safe: the event loop owns it.
    """

    clock: Clock
    max_prints: int = MAX_PRINTS
    _kept: OrderedDict[tuple[TenantId, str], tuple[float, Fingerprint]] = field(
        default_factory=OrderedDict
    )
    _prints: int = 0

    def put(self, tenant: TenantId, response_id: str, fingerprint: Fingerprint) -> None:
        """Remember one. The ids are the server's own, so none comes twice."""
        self._kept[tenant, response_id] = (self.clock.monotonic() + LIFETIME, fingerprint)
        self._prints += _size(fingerprint)
        self._sweep()

    def find(self, tenant: TenantId, response_id: str) -> Fingerprint | None:
        """The tenant's own; None if there is none any more."""
        self._sweep()
        found = self._kept.get((tenant, response_id))
        return None if found is None else found[1]

    def _sweep(self) -> None:
        now = self.clock.monotonic()
        while self._kept:
            key, (until, fingerprint) = next(iter(self._kept.items()))
            if until > now and self._prints <= self.max_prints:
                return
            del self._kept[key]
            self._prints -= _size(fingerprint)


def _size(fingerprint: Fingerprint) -> int:
    return len(fingerprint.segments) + 1
