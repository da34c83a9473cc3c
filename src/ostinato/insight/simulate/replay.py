"""Replaying a trace through the cache that the server runs, with blocks that hold nothing.

Index, pool, eviction, manager and the bookkeeping of the tiers are the real ones. A trace names blocks, not
tokens; so a block of the trace is a block of one token here, its id the token, and counts for as many tokens
as it stands for. Requests are served one after the other, each in no time: it looks its prompt up, holds all
its blocks at once, loads what the tiers have, publishes them and gives them back; then all copies that are due
are made. Answers are not replayed: what becomes part of a later prompt is named there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.block_table import BlockTable
from ostinato.cache.eviction import EvictionPolicy, make_policy
from ostinato.cache.index import BlockHashIndex, PrefixIndex, RadixIndex
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.prefix_loader import PrefixLoader
from ostinato.cache.prefix_match import PrefixMatch
from ostinato.cache.storage import NullKVStorage
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.tiers.policy import WritePolicy
from ostinato.cache.types import NamespaceKey, Tier, TokenArray
from ostinato.clock import ManualClock
from ostinato.insight.simulate.null_tiers import InstantTransfers, NullCarrier, NullTier
from ostinato.insight.simulate.optimum import Belady, next_uses
from ostinato.insight.simulate.trace import TOKENS_PER_BLOCK, TraceRequest

_NAMESPACE = NamespaceKey(b"simulated".ljust(32, b"\0"))
_SPEC = KVCacheSpec(1, 1, 1, KVDtype.FP32, 1)
OPTIMUM = "belady"
INDEXES: dict[str, Callable[[int], PrefixIndex]] = {
    "radix": RadixIndex,
    "block_hash": BlockHashIndex,
}


@dataclass(frozen=True, slots=True)
class TierSizes:
    """What lies below the device.

    Attributes:
        blocks: capacity of each level in blocks of the trace, fastest first; empty for the device alone.
        write_policy: what is copied down when.
    """

    blocks: Mapping[Tier, int] = field(default_factory=dict)
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH_SELECTIVE


DEVICE_ALONE = TierSizes()


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one policy made of a trace at one capacity.

    Attributes:
        policy: its name; every level has its own instance.
        num_blocks: capacity of the device.
        requests: replayed.
        prompt_tokens: of all requests.
        hits_by_tier: prompt tokens found, by where; every level that there is.
        evicted_by_tier: blocks that gave way to others, by where.
        written_by_tier: blocks that were copied into each level below the device.
        refused: requests larger than the whole device; nothing of them is reused or kept.
    """

    policy: str
    num_blocks: int
    requests: int
    prompt_tokens: int
    hits_by_tier: Mapping[Tier, int]
    evicted_by_tier: Mapping[Tier, int]
    written_by_tier: Mapping[Tier, int]
    refused: int

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that were not computed."""
        return sum(self.hits_by_tier.values())

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were not computed."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def hit_rate_of(self, tier: Tier) -> float:
        """Share of the prompt tokens that were found in `tier`."""
        return self.hits_by_tier[tier] / self.prompt_tokens if self.prompt_tokens else 0.0


class Replay:
    """One cache that requests pass through.

    Args:
        name: of the policy, for the result.
        make: a new policy; called once for each level.
        num_blocks: capacity of the device, in blocks of the trace.
        block_tokens: tokens of such a block.
        index: which prefix index, "radix" or "block_hash".
        below: the tiers.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], EvictionPolicy[KVCacheBlock]],
        num_blocks: int,
        block_tokens: int = TOKENS_PER_BLOCK,
        index: str = "radix",
        below: TierSizes = DEVICE_ALONE,
    ) -> None:
        self._name = name
        self._policy = make()
        self._block_tokens = block_tokens
        storage = NullKVStorage(_SPEC, num_blocks)
        self.tiers = _hierarchy(name, below) if below.blocks else None
        self.manager = KVCacheManager(_SPEC, storage, INDEXES[index](1), self._policy, self.tiers)
        self._loader = None if self.tiers is None else PrefixLoader(self.manager, self.tiers)
        self._hits = Counter(dict.fromkeys((Tier.DEVICE, *below.blocks), 0))
        self._requests = self._prompt_tokens = self._refused = 0

    def serve(self, request: TraceRequest, foreseen: Sequence[int] | None = None) -> None:
        """Replay one request.

        Args:
            request: of the trace.
            foreseen: when its blocks are needed next, for `Belady`.
        """
        manager = self.manager
        # The last token of a prompt is never looked up; here that must not be a whole block.
        prompt: TokenArray = np.append(request.blocks, np.int32(-1))
        length = len(request.blocks)
        self._requests += 1
        self._prompt_tokens += request.input_length
        table, found = self._admit(manager.lookup(_NAMESPACE, prompt), prompt, length)
        if table is None:
            self._refused += 1
            return
        self._count(found, request.input_length)
        manager.publish(table, prompt, length)
        if foreseen is not None and isinstance(self._policy, Belady):
            self._policy.foresee(table.blocks, foreseen)
        manager.release(table, prompt, length)
        self._settle()

    def _admit(
        self, match: PrefixMatch, prompt: TokenArray, length: int
    ) -> tuple[BlockTable | None, Mapping[Tier, int]]:
        """The table of a request that holds and has loaded what there is, and the blocks found, by tier."""
        loader, tiers = self._loader, self.tiers
        if loader is None or tiers is None:
            return self.manager.allocate(match, length), {Tier.DEVICE: match.num_tokens}
        plan = loader.plan(match, prompt)
        load = tiers.pin(
            plan.runs
        )  # making room on the device must not push out what is about to be read
        table = self.manager.allocate(plan.match, length)
        if table is None:
            tiers.unpin(load)
            return None, {}
        if plan.runs:
            loader.start(table, plan, load)
            tiers.poll()
            loader.finish(table, prompt, plan, load)
        return table, plan.report(load if plan.runs else None, 1).read_by_tier

    def _count(self, found: Mapping[Tier, int], input_length: int) -> None:
        """Count what was `found`, in blocks, as tokens: the last one may be partial, and is computed anyway."""
        left = input_length - 1
        for tier, blocks in found.items():
            tokens = min(blocks * self._block_tokens, left)
            self._hits[tier] += tokens
            left -= tokens

    def _settle(self) -> None:
        """Make all copies that are due."""
        while self.tiers is not None and not self.tiers.is_quiet:
            self.tiers.poll()

    def result(self) -> ReplayResult:
        """So far."""
        levels = () if self.tiers is None else self.tiers.stats().tiers
        evicted = {level.tier: level.evicted_blocks for level in levels}
        return ReplayResult(
            policy=self._name,
            num_blocks=self.manager.num_blocks,
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            hits_by_tier=dict(self._hits),
            evicted_by_tier={Tier.DEVICE: self.manager.stats().evicted_total, **evicted},
            written_by_tier={level.tier: level.stored_blocks for level in levels},
            refused=self._refused,
        )


def _hierarchy(policy: str, below: TierSizes) -> TierHierarchy:
    clock = ManualClock()
    return TierHierarchy(
        [
            NullTier(tier, blocks, make_policy(policy), clock)
            for tier, blocks in below.blocks.items()
        ],
        NullCarrier(),
        InstantTransfers(),
        block_size=1,
        write_policy=below.write_policy,
        clock=clock,
    )


def replay(
    requests: Sequence[TraceRequest],
    policy: str,
    num_blocks: int,
    *,
    block_tokens: int = TOKENS_PER_BLOCK,
    index: str = "radix",
    below: TierSizes = DEVICE_ALONE,
    advance: Callable[[int], None] = lambda count: None,
) -> ReplayResult:
    """A whole trace through one cache.

    Args:
        requests: in the order of their arrival.
        policy: a name of `POLICIES`, or "belady": then all levels are one, so that nothing can find more.
        num_blocks: capacity of the device, in blocks of the trace.
        block_tokens: tokens of such a block.
        index: which prefix index.
        below: the tiers.
        advance: told how many more requests are done, now and then.
    """
    capacity, levels, foreseen = num_blocks, below, None
    make: Callable[[], EvictionPolicy[KVCacheBlock]] = partial(make_policy, policy)
    if policy == OPTIMUM:
        capacity, levels = num_blocks + sum(below.blocks.values()), DEVICE_ALONE
        make, foreseen = partial(Belady, capacity), next_uses(requests)
    cache = Replay(policy, make, capacity, block_tokens, index, levels)
    for number, request in enumerate(requests, 1):
        cache.serve(request, None if foreseen is None else foreseen[number - 1])
        if number % 500 == 0:
            advance(500)
    advance(len(requests) % 500)
    return replace(cache.result(), num_blocks=num_blocks)
