"""TierPromises: what was promised to blocks of the device, said to the tiers that hold copies of them.

A new promise is said of every block. A hit renews a promise on all blocks of a prefix, perhaps many times a
second; of that only the deepest promised block is told, and only what moves its deadline by a second or more.
The blocks before it need no word of their own: whoever used it used them too (`Retention.covering`), which a
tier works out when it is taken up again and when the deepest one is evicted. So a killed process loses at most
the last second of renewals, and a hit costs one record a tier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.retention import Retention
from ostinato.cache.tiers.base import KVTier, TierAnswer
from ostinato.cache.types import BlockHash

RENEWAL_SECONDS = 1.0
"""A renewal that moves a deadline by less is left to a later one."""


class TierPromises:
    """See the module's docstring.

    Args:
        tiers: fastest first.
        resident: findable full blocks of the device by name; kept by the hierarchy.
    """

    def __init__(self, tiers: Sequence[KVTier], resident: Mapping[BlockHash, KVCacheBlock]) -> None:
        self._tiers = tiers
        self._resident = resident
        self._has_any = False

    def make(self, blocks: Sequence[KVCacheBlock]) -> None:
        """What holds for `blocks` on the device holds for their copies; a longer promise there stays."""
        promised = [block for block in blocks if block.retention is not None]
        self._has_any |= bool(promised)
        for tier in self._tiers if promised else ():
            changed: defaultdict[Retention, list[BlockHash]] = defaultdict(list)
            for block in promised:
                known, merged = _promises(block, tier)
                if merged != known:
                    changed[merged].append(_name(block))
            for retention, keys in changed.items():
                tier.retain(keys, retention)

    def renew(self, last: KVCacheBlock) -> None:
        """A hit may have renewed what was promised to the prefix that ends in `last`."""
        if self._has_any:
            self._renew(last)

    def take_over(self, last: KVCacheBlock) -> None:
        """The prefix that ends in `last` came from a tier, with what was promised to it there: a hit, too."""
        self._renew(last)

    def _renew(self, last: KVCacheBlock) -> None:
        promised = next((b for b in self._upwards(last) if b.retention is not None), None)
        if promised is None:
            return
        self._has_any = True
        for tier in self._tiers:
            held = self.deepest(promised, tier)
            if held is not None and held.retention is not None:
                known, merged = _promises(held, tier)
                if known is None or _is_worth_telling(known, merged):
                    tier.retain([_name(held)], merged)

    def deepest(self, last: KVCacheBlock, tier: KVTier) -> KVCacheBlock | None:
        """The deepest block that `tier` has of the prefix that ends in `last`."""
        return next(
            (b for b in self._upwards(last) if tier.lookup(_name(b)) is TierAnswer.HIT), None
        )

    def _upwards(self, last: KVCacheBlock) -> Iterator[KVCacheBlock]:
        """From `last` to the root, as far as blocks have names."""
        block: KVCacheBlock | None = last
        while block is not None and block.identity is not None:
            yield block
            parent = block.identity.parent
            block = None if parent is None else self._resident.get(parent)


def _promises(block: KVCacheBlock, tier: KVTier) -> tuple[Retention | None, Retention]:
    """What `tier` has promised, and what it should, now that the device has promised `block` something."""
    assert block.retention is not None
    known = tier.retention(_name(block))
    return known, block.retention if known is None else block.retention.merged(known)


def _is_worth_telling(known: Retention, merged: Retention) -> bool:
    later = merged.until - known.until >= RENEWAL_SECONDS
    return later or (merged.hard, merged.ttl) != (known.hard, known.ttl)


def _name(block: KVCacheBlock) -> BlockHash:
    assert block.identity is not None
    return block.identity.key
