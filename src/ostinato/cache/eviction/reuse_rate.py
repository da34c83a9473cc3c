"""ReuseRate: our own policy, which learns when which kind of block is used again.

LLM traffic is not what LRU was made for. In a trace of production chats three blocks in four are never used
again; the next turn of a conversation comes after a pause in which hundreds of others are served; one that
came back once is twice as likely to come back again; the head that all prompts share is used all the time; and
the last, partial block of a prompt is almost never asked for. So blocks are told apart by

- *hits*: reuses so far, those of earlier stays included, since a block that had to be computed again and is
  wanted again is part of a live conversation;
- *fan-out*: the end of a prompt (0), the inside of one conversation (1), a head at which prompts part (2);
- *depth* in the prefix: long prompts behave differently from short ones;

and for each kind a `ReuseModel` learns the gaps between uses. The candidate whose room pays least goes: the
fewest expected reuses for the time that it would have to be kept. Cost enters there too: the deeper a block,
the more attention it takes to compute it again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ostinato.cache.eviction.base import E, Evictable
from ostinato.cache.eviction.ranked import Rank, RankedPolicy
from ostinato.cache.eviction.reuse_model import ReuseModel, Sighting

DEPTHS_PER_SAMPLE = 4
SAMPLED_BIT = 1
"""One block in eight is tracked: at one depth in four, if this bit of its name is 0."""

USES_BETWEEN_REFITS = 256
MOST_HITS = 3
DEPTH_LIMITS = (4, 16, 64)


class ReuseRate(RankedPolicy[E]):
    """See the module's docstring. Ranks age: they are computed anew every few uses, O(1) amortised.

    Args:
        attention_depth: depth in blocks at which attention doubles the cost of computing a block; None
            counts all blocks alike, which maximises the tokens that are reused.
    """

    wants_ghost_keys = True

    def __init__(self, attention_depth: float | None = None) -> None:
        super().__init__()
        self._model = ReuseModel(3 * (MOST_HITS + 1) * (len(DEPTH_LIMITS) + 1))
        self._cost_per_depth = 0.0 if attention_depth is None else 1 / attention_depth
        self._earlier_hits: dict[E, int] = {}
        self._now = 0.0
        self._next_refit = 64.0
        self._next_ranking = 8.0

    def rank(self, item: E) -> Rank:
        kind = self._kind(item, item.hits + self._earlier_hits.get(item, 0))
        worth = self._model.worth(kind, self._now - item.last_used)
        cost = 1 + self._cost_per_depth * item.depth
        return worth * cost, item.last_used, -item.depth

    def on_store(self, items: Sequence[E]) -> None:
        now = items[0].last_used
        hits = 0  # what comes before a block was used at least as often
        for at in reversed(_sampled_places(items)):
            name = _sampled_name(items[at])
            if name is not None:
                known = self._model.last_sighting(name, now)
                if known is not None:
                    hits = max(hits, known.hits + 1)
                self._model.track(name, Sighting(now, self._kind(items[at], hits), hits))
            if hits:
                for item in items[max(at - DEPTHS_PER_SAMPLE + 1, 0) : at + 1]:
                    self._earlier_hits[item] = hits
        self._advance(now)

    def on_reuse(self, items: Sequence[E], now: float) -> None:
        for at in _sampled_places(items):
            item = items[at]
            name = _sampled_name(item)
            if name is not None:
                self._model.last_sighting(name, now)
                hits = item.hits + 1 + self._earlier_hits.get(item, 0)
                self._model.track(name, Sighting(now, self._kind(item, hits), hits))
        self._advance(now)

    def on_drop(self, item: E) -> None:
        self._earlier_hits.pop(item, None)

    def _kind(self, item: E, hits: int) -> int:
        fan_out, hits = min(item.fan_out, 2), min(hits, MOST_HITS)
        deep = bisect_right(DEPTH_LIMITS, item.depth)
        return (fan_out * (MOST_HITS + 1) + hits) * (len(DEPTH_LIMITS) + 1) + deep

    def _advance(self, now: float) -> None:
        self._now = now
        if now >= self._next_refit:
            self._next_refit = now + USES_BETWEEN_REFITS
            self._model.refit(now)
        if now >= self._next_ranking:
            # The more candidates, the rarer: a ranking costs about as much as the uses since the last one.
            self._next_ranking = now + max(8, len(self) // 64)
            self.rank_again()


def _sampled_places(items: Sequence[Evictable]) -> range:
    """Of consecutive blocks of one prefix; a block is among them always or never."""
    first = (1 - items[0].depth) % DEPTHS_PER_SAMPLE if items else 0
    return range(first, len(items), DEPTHS_PER_SAMPLE)


def _sampled_name(item: Evictable) -> bytes | None:
    key = item.ghost_key
    return key if isinstance(key, bytes) and not key[0] & SAMPLED_BIT else None
