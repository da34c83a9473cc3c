"""PrefixLoader: what the lower tiers add to a match of the device, for the scheduler.

    lookup (manager) ──► plan ──► allocate (manager) ──► start ─────► … transfer threads … ─────► finish
                          │                                │                                        │
                          what to load, or None            blocks of the table are the targets      published

The device's match ends inside block i or in front of it. If a tier holds the whole of block i, loading goes on
from there and the part of it that the device has is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostinato.cache.block_table import BlockTable
from ostinato.cache.identity import identities
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.prefix_match import PrefixMatch
from ostinato.cache.report import CacheReport
from ostinato.cache.tiers.cost import LoadDecision, TierRun
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.tiers.loads import Prefetch, PrefixLoad
from ostinato.cache.types import BlockHash, MissReason, Tier, TokenArray


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a request would load if it started now; valid as long as its match.

    Attributes:
        match: of the device; ends at a block boundary if anything is loaded.
        runs: what to load behind it; empty if nothing is, or nothing is worth it.
        decision: the figures behind that.
        is_unsettled: a tier does not know yet whether it has more.
        reason: why reuse ends behind what is loaded.
    """

    match: PrefixMatch
    runs: Sequence[TierRun]
    decision: LoadDecision
    is_unsettled: bool
    reason: MissReason

    @property
    def num_tokens(self) -> int:
        """Tokens that need not be computed."""
        return self.match.num_tokens + self.decision.load_tokens

    def report(self, load: PrefixLoad | None, block_size: int) -> CacheReport:
        """The report of a request that starts with this plan, after `load` if there was one."""
        read = {Tier.DEVICE: self.match.num_tokens} if self.match.num_tokens else {}
        reason = self.reason
        if load is not None:
            for tier, count in load.blocks_by_tier.items():
                if count:
                    read[tier] = count * block_size
            if load.num_arrived < load.num_blocks:
                reason = MissReason.LOAD_FAILED
        return CacheReport(
            prompt_tokens=self.match.prompt_tokens,
            read_by_tier=read,
            copied_tokens=self.match.found.partial_tokens,
            miss_reason=reason,
            load=self.decision,
        )


class PrefixLoader:
    """See the module's docstring.

    Args:
        manager: of the device; its `tiers` are where things are loaded from.
        tiers: the same.
    """

    def __init__(self, manager: KVCacheManager, tiers: TierHierarchy) -> None:
        self._manager = manager
        self._block_size = manager.block_size
        self.tiers = tiers

    def plan(self, match: PrefixMatch, token_ids: TokenArray) -> LoadPlan:
        """Seek what follows `match`, fresh from the manager, in the tiers. Changes nothing.

        Args:
            match: of the same prompt.
            token_ids: the prompt.
        """
        keys = self._keys_behind(match, token_ids)
        runs, is_unsettled = self.tiers.lookup(keys)
        chosen, decision = self.tiers.decide(runs)
        if not chosen:
            reason = MissReason.RECOMPUTED if runs else match.found.reason
            return LoadPlan(match, (), decision, is_unsettled, reason)
        found = replace(match.found, partial=None, partial_tokens=0)
        whole = replace(match, found=found, num_tokens=len(found.blocks) * self._block_size)
        reason = self._reason(whole.num_tokens + decision.load_tokens, len(token_ids))
        if len(chosen) < len(runs):
            reason = MissReason.RECOMPUTED
        return LoadPlan(whole, chosen, decision, is_unsettled, reason)

    def _keys_behind(self, match: PrefixMatch, token_ids: TokenArray) -> list[BlockHash]:
        """Names of the blocks behind those that the device has in full. The last token is always computed."""
        if match.found.reason is MissReason.DISABLED:
            return []
        tokens = token_ids[:-1]
        start = len(match.found.blocks)
        return list(match.hashes.hashes(tokens, self._block_size, start=start))

    def _reason(self, num_tokens: int, prompt_tokens: int) -> MissReason:
        """Why nothing behind `num_tokens`, all in whole blocks, is reused."""
        rest = prompt_tokens - 1 - num_tokens
        if rest == 0:
            return MissReason.NONE
        return MissReason.BELOW_BLOCK if rest < self._block_size else MissReason.NOT_CACHED

    def start(self, table: BlockTable, plan: LoadPlan, load: PrefixLoad) -> None:
        """Load what `plan` says and `load` pins into the blocks of `table`, allocated with ``plan.match``."""
        first = len(plan.match.found.blocks)
        self.tiers.load(load, table.blocks[first : first + load.num_blocks], plan.decision)

    def finish(
        self, table: BlockTable, token_ids: TokenArray, plan: LoadPlan, load: PrefixLoad
    ) -> int:
        """Publish what `load`, which is done, has brought; returns how many tokens need not be computed."""
        first = len(plan.match.found.blocks)
        end = first + load.num_arrived
        self._manager.publish(table, token_ids, end * self._block_size)
        self._manager.keep_promises(table.blocks[first:end], load.promises)
        self.tiers.take_over(load, table.blocks[first:end])
        return end * self._block_size

    def prefetch(self, match: PrefixMatch, token_ids: TokenArray) -> Prefetch | None:
        """Start bringing what lies behind `match` into RAM, for a request that has to wait.

        Returns:
            None if too much is under way, or a tier does not know yet what it has: ask again.
        """
        keys = self._keys_behind(match, token_ids)
        runs, is_unsettled = self.tiers.lookup(keys)
        if is_unsettled:
            return None
        chosen, _ = self.tiers.decide(runs)
        start = len(match.found.blocks)
        end = start + sum(len(run.keys) for run in chosen)
        names = identities(
            match.hashes, token_ids[: end * self._block_size], self._block_size, match.tenant, start
        )
        last = match.found.blocks[-1] if match.found.blocks else None
        return self.tiers.prefetch(chosen, names, last)
