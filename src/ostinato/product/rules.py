"""House rules: whose minimums, rounding, lifetimes and look-ups hold for the models that are served here.

| name                | reads                      | minimum     | rounding | lifetimes     | writes counted |
|---------------------|----------------------------|-------------|----------|---------------|----------------|
| `local` (default)   | what the engine reused     | 1           | exact    | 5 min, 1 h    | at breakpoints |
| `anthropic-512` …   | entries, 20 positions back | 512 … 4,096 | exact    | 5 min, 1 h    | at breakpoints |
| `openai-5.6`        | entries, 80 positions      | 1,024       | exact    | 30 min, 12 h  | at breakpoints |
| `openai-5.6-guide`  | entries, 2 + 50 + 20       | 1,024       | exact    | 30 min, 12 h  | at breakpoints |
| `openai-5.5`        | entries every 2,048 tokens | 2,048       | 128      | 24 h          | no             |
| `openai-classic`    | entries every 128 tokens   | 1,024       | 128      | 10 min, 24 h  | no             |
| `gemini-2048` …     | what the engine reused     | 2,048, 4,096| exact    | 1 h           | no             |
| `deepseek`          | stored units, in full      | 64          | 64       | 24 h          | no             |

A dialect says *where* breakpoints lie; the house rules say what becomes of them. So any dialect works under any
house rules. Where vendors' sources disagree, ``docs/prompt-caching.md`` says which one is followed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ostinato.errors import ConfigError
from ostinato.product.lookup import (
    EveryUnit,
    FirstAndLatest,
    LatestBreakpoints,
    LookBack,
    LookUp,
)
from ostinato.product.segments import TTLClass

MINUTE = 60.0
HOUR = 3600.0


class ReadRule(StrEnum):
    """What is billed as a read; in no case more than the engine reused."""

    REUSED = "reused"
    """All that the engine reused, wherever it ends."""
    ENTRIES = "entries"
    """The longest prefix that an earlier request has written as an entry and this one looks up."""


class Automatic(StrEnum):
    """Which entries come to be without a breakpoint of the client's."""

    NONE = "none"
    MESSAGE_END = "message end"
    """One at the end of the latest eligible message, where the dialect asks for an implicit breakpoint."""
    UNITS = "units"
    """At every multiple of the unit, from the minimum on."""
    FULL_UNITS = "full units"
    """DeepSeek's: at the end of the user's input and of the answer, where two prompts part, and at
    intervals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseRules:
    """One vendor's rules for one class of models. Tokens and seconds.

    Attributes:
        name: in settings, usage records and messages.
        read_rule: what counts as a read.
        min_tokens: a shorter prefix is neither written nor read.
        rounding: a read is rounded down to a multiple of this.
        ttl_seconds: lifetimes; counted from the start of the request that writes or reads.
        max_lifetime: an entry ends so long after it was written, however often it is read; absent: never.
        lookup: where entries are looked for; only with `ReadRule.ENTRIES`.
        automatic: entries that nobody asks for.
        unit_tokens: grid of `Automatic.UNITS` and `Automatic.FULL_UNITS`.
        interval_tokens: distance of the units that `Automatic.FULL_UNITS` stores inside a long prompt.
        max_writes: most breakpoints of a request that are written, the latest ones.
        bills_writes: whether writes are counted apart from ordinary input.
    """

    name: str
    read_rule: ReadRule = ReadRule.ENTRIES
    min_tokens: int = 1
    rounding: int = 1
    ttl_seconds: Mapping[TTLClass, float]
    max_lifetime: Mapping[TTLClass, float] = field(default_factory=dict)
    lookup: LookUp | None = None
    automatic: Automatic = Automatic.NONE
    unit_tokens: int = 1
    interval_tokens: int = 0
    max_writes: int = 4
    bills_writes: bool = True

    @property
    def has_entries(self) -> bool:
        """Whether what was written decides what may be read."""
        return self.read_rule is ReadRule.ENTRIES


def _lifetimes(short: float, long: float) -> dict[TTLClass, float]:
    return {TTLClass.SHORT: short, TTLClass.LONG: long}


def _anthropic(min_tokens: int) -> HouseRules:
    return HouseRules(
        name=f"anthropic-{min_tokens}",
        min_tokens=min_tokens,
        ttl_seconds=_lifetimes(5 * MINUTE, HOUR),
        lookup=LookBack(20),
        automatic=Automatic.MESSAGE_END,
    )


def _openai_5_6(name: str, lookup: LookUp) -> HouseRules:
    return HouseRules(
        name=name,
        min_tokens=1024,
        ttl_seconds=_lifetimes(30 * MINUTE, 12 * HOUR),
        lookup=lookup,
        automatic=Automatic.MESSAGE_END,
    )


def _gemini(min_tokens: int) -> HouseRules:
    return HouseRules(
        name=f"gemini-{min_tokens}",
        read_rule=ReadRule.REUSED,
        min_tokens=min_tokens,
        ttl_seconds=_lifetimes(HOUR, HOUR),
        bills_writes=False,
    )


LOCAL = HouseRules(
    name="local", read_rule=ReadRule.REUSED, ttl_seconds=_lifetimes(5 * MINUTE, HOUR)
)
"""The default: nothing is hidden, rounded or forgotten; a read is what was not computed."""

_ALL = (
    LOCAL,
    *(_anthropic(least) for least in (512, 1024, 2048, 4096)),
    _openai_5_6("openai-5.6", LatestBreakpoints(80)),
    _openai_5_6("openai-5.6-guide", FirstAndLatest(first=2, latest=50, endings=20)),
    HouseRules(
        name="openai-5.5",
        min_tokens=2048,
        rounding=128,
        ttl_seconds=_lifetimes(24 * HOUR, 24 * HOUR),
        max_lifetime=_lifetimes(24 * HOUR, 24 * HOUR),
        lookup=EveryUnit(2048),
        automatic=Automatic.UNITS,
        unit_tokens=2048,
        bills_writes=False,
    ),
    HouseRules(
        name="openai-classic",
        min_tokens=1024,
        rounding=128,
        ttl_seconds=_lifetimes(10 * MINUTE, 24 * HOUR),
        max_lifetime=_lifetimes(HOUR, 24 * HOUR),
        lookup=EveryUnit(128),
        automatic=Automatic.UNITS,
        unit_tokens=128,
        bills_writes=False,
    ),
    *(_gemini(least) for least in (2048, 4096)),
    HouseRules(
        name="deepseek",
        min_tokens=64,
        rounding=64,
        ttl_seconds=_lifetimes(24 * HOUR, 24 * HOUR),
        lookup=EveryUnit(64),
        automatic=Automatic.FULL_UNITS,
        unit_tokens=64,
        interval_tokens=4096,
        bills_writes=False,
    ),
)

HOUSE_RULES: Mapping[str, HouseRules] = {rules.name: rules for rules in _ALL}
"""All house rules by name."""


def house_rules(name: str) -> HouseRules:
    """The rules of that name.

    Raises:
        ConfigError: there are none; lists what there is.
    """
    try:
        return HOUSE_RULES[name]
    except KeyError:
        raise ConfigError(
            f"there are no house rules {name!r}; there are {', '.join(HOUSE_RULES)}"
        ) from None
