"""Which TTL is cheapest for the gaps between uses of a prefix.

A prefix is used, some seconds pass, it is used again: its *gaps*. An entry lives for its TTL after each use,
so a gap shorter than the TTL is a hit. For one request after a gap g, per prefix token:

    no caching      I
    write           R if g < TTL, else W
    cache object    R + S·g if g < TTL, else S·TTL + I + R: it ran out, and is made again

and the first use of a prefix pays W, or for an object I + R, plus S·TTL when nobody comes any more. The TTL of
an object may be any number of seconds, extended at each use; the cheapest for the given gaps is found exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from ostinato.ledger.break_even import Strategy, Workload, cost_lines
from ostinato.ledger.prices import Rates, TTLs

_HOUR = 3600


@dataclass(frozen=True, slots=True)
class UseHistory:
    """How prefixes were used.

    Attributes:
        gaps: seconds between successive uses of the same prefix, in any order.
        prefixes: how many prefixes these are the gaps of; each had a first use.
    """

    gaps: tuple[Fraction, ...]
    prefixes: int = 1

    @property
    def requests(self) -> int:
        """First uses and later ones."""
        return self.prefixes + len(self.gaps)


def history_of(uses: Iterable[tuple[Hashable, float]]) -> UseHistory:
    """The gaps in a record of uses.

    Args:
        uses: which prefix (a cache key, a conversation, a template) and when, in seconds; in any order.
    """
    times: dict[Hashable, list[Fraction]] = {}
    for prefix, moment in uses:
        times.setdefault(prefix, []).append(Fraction(moment))
    gaps: list[Fraction] = []
    for moments in times.values():
        moments.sort()
        gaps += [later - earlier for earlier, later in pairwise(moments)]
    return UseHistory(tuple(gaps), len(times))


@dataclass(frozen=True, slots=True)
class TTLCost:
    """What a strategy costs over a history.

    Attributes:
        ttl: seconds; None where there is none to choose.
        hits: later uses that find the prefix; for `Strategy.AUTOMATIC` an assumption, not a count.
        total: dollars for all requests.
        per_request: dollars, on average.
    """

    strategy: Strategy
    ttl: int | None
    hits: Fraction
    total: Fraction
    per_request: Fraction


def cost_by_ttl(rates: Rates, ttls: TTLs, workload: Workload, history: UseHistory) -> list[TTLCost]:
    """All strategies that the vendor sells, the cheapest first; ties go to the simpler one.

    Args:
        ttls: of the vendor's writes; a write whose TTL is unknown is left out.
        workload: its hit probability is used for automatic caching only, whose TTL no vendor promises;
            its hours are not used.

    Raises:
        ValueError: if the history has no prefix or a negative gap.
    """
    if history.prefixes < 1 or any(gap < 0 for gap in history.gaps):
        raise ValueError("a history needs at least one prefix, and gaps of 0 seconds or more")
    gaps = sorted(history.gaps)
    found: list[TTLCost] = []
    seconds = {Strategy.SHORT: ttls.short, Strategy.LONG: ttls.long}
    always = _priced(rates, workload, Fraction(1))
    never = _priced(rates, workload, Fraction(0))
    for strategy in always:
        if strategy is Strategy.STORED:
            found.append(_best_object(rates, workload, gaps, history.prefixes))
            continue
        ttl = seconds.get(strategy)
        if strategy in seconds and ttl is None:
            continue
        hits = Fraction(sum(gap < ttl for gap in gaps)) if ttl is not None else Fraction(0)
        if strategy is Strategy.AUTOMATIC:
            hits = workload.hit_probability * len(gaps)
        misses = history.requests - hits
        total = hits * always[strategy] + misses * never[strategy]
        found.append(TTLCost(strategy, ttl, hits, total, total / history.requests))
    return sorted(found, key=lambda cost: cost.total)


def _priced(rates: Rates, workload: Workload, hit: Fraction) -> dict[Strategy, Fraction]:
    """Dollars of one request that surely hits (1) or surely misses (0)."""
    sure = Workload(
        workload.prefix_tokens, workload.new_tokens, workload.output_tokens, hit, Fraction(0)
    )
    lines = cost_lines(rates, sure)
    return {strategy: line.per_request for strategy, line in lines.items()}


def _best_object(
    rates: Rates, workload: Workload, gaps: Sequence[Fraction], prefixes: int
) -> TTLCost:
    """The cheapest TTL in whole seconds for a cache object.

    Between two gaps a longer TTL has no more hits and more storage, so only the shortest TTL that hits
    k of the sorted gaps can be the best, for each k.
    """
    requests = prefixes + len(gaps)
    read = _priced(rates, workload, Fraction(1))[Strategy.STORED]
    made, made_and_kept = (
        cost_lines(rates, Workload(workload.prefix_tokens, hours=Fraction(hours)))[Strategy.STORED]
        for hours in (0, 1)
    )
    second = (made_and_kept.start - made.start) / _HOUR
    hit_seconds = list(accumulate(gaps, initial=Fraction(0)))

    def cost(ttl: int) -> TTLCost:
        hits = bisect_left(gaps, ttl)
        expired = requests - hits
        total = requests * read + expired * (made.start + ttl * second) + hit_seconds[hits] * second
        return TTLCost(Strategy.STORED, ttl, Fraction(hits), total, total / requests)

    return min(map(cost, sorted({1, *(gap // 1 + 1 for gap in gaps)})), key=lambda c: c.total)
