"""SharedPrefixes: K/V of public system prompts, which several tenants may read and none can write.

    at start    the server computes each prompt of `tenants.shared` itself and holds its blocks for good
    admission   a request of a listed tenant that begins with those tokens gets a copy of their K/V

The copy lies in the tenant's own namespace, and the rest of the request follows it there. So nothing that a
tenant sends ever enters what is shared, the tails of two tenants never meet in one tree, and the index, the
tiers and eviction know of no second namespace. The price is one copy of the prompt for each tenant that uses
it, and a memcpy at its first request in place of a prefill. Held blocks are never evicted: whether another
tenant has used the prompt lately changes no answer's time.

A request with a `cache_salt` asked to share with nobody but its like, and is left alone.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from ostinato.cache.block_table import BlockTable
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.report import CacheReport
from ostinato.cache.tokens import common_prefix
from ostinato.cache.types import MissReason, NamespaceKey, TenantId, Tier, TokenArray
from ostinato.engine.request import Request
from ostinato.engine.tenancy import EVERYBODY
from ostinato.errors import CacheIntegrityError

SERVER = TenantId("~server")
"""Whose namespace shared prefixes are computed in; no API key can name it."""


@dataclass(frozen=True, slots=True)
class _Shared:
    token_ids: TokenArray
    table: BlockTable
    readers: Set[TenantId]


@dataclass(frozen=True, slots=True)
class SharedMatch:
    """A prompt that begins like a shared prefix.

    Attributes:
        table: of the shared prefix; only read.
        num_tokens: leading tokens that they have in common; at least one of the prompt is left.
        reason: why they end there.
    """

    table: BlockTable
    num_tokens: int
    reason: MissReason

    def report(self, prompt_tokens: int, own_blocks: int, block_size: int) -> CacheReport:
        """For a request whose first `own_blocks` blocks were its tenant's already."""
        return CacheReport(
            prompt_tokens=prompt_tokens,
            read_by_tier={Tier.DEVICE: self.num_tokens},
            copied_tokens=self.num_tokens - own_blocks * block_size,
            miss_reason=self.reason,
        )


class SharedPrefixes:
    """See the module's docstring.

    Args:
        manager: of the K/V cache.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._shared: list[_Shared] = []

    @property
    def tables(self) -> list[BlockTable]:
        """What is held."""
        return [shared.table for shared in self._shared]

    def hold(
        self, namespace: NamespaceKey, token_ids: TokenArray, readers: Set[TenantId]
    ) -> BlockTable:
        """Keep a prefix that has just been computed in `namespace`, for as long as this object lives.

        Raises:
            CacheIntegrityError: it is not in the cache, in full.
        """
        # One token more than is wanted: a lookup always leaves the last one to be computed.
        match = self._manager.lookup(namespace, np.append(token_ids, np.int32(0)))
        full = match.num_tokens - match.num_tokens % self._manager.block_size
        if len(token_ids) - full >= self._manager.block_size:
            raise CacheIntegrityError(f"only {full} of {len(token_ids)} shared tokens are cached")
        table = self._manager.allocate(match, match.num_tokens + 1)
        if table is None:
            raise CacheIntegrityError("there is no room to hold what has just been computed")
        self._shared.append(_Shared(token_ids[: match.num_tokens], table, readers))
        return table

    def match(self, request: Request) -> SharedMatch | None:
        """The longest shared prefix that `request` begins with and may read."""
        if request.cache_salt is not None:
            return None
        own = request.token_ids[:-1]
        longest: SharedMatch | None = None
        for shared in self._shared:
            if request.tenant not in shared.readers and EVERYBODY not in shared.readers:
                continue
            length = common_prefix(own, shared.token_ids)
            if length and (longest is None or length > longest.num_tokens):
                parts = length < min(len(own), len(shared.token_ids))
                ends = MissReason.NONE if length == len(own) else MissReason.NOT_CACHED
                reason = MissReason.DIVERGED if parts else ends
                longest = SharedMatch(shared.table, length, reason)
        return longest

    def fill(self, request: Request, match: SharedMatch) -> None:
        """Copy what `match` has and `request` lacks into the request's own, fresh blocks."""
        size = self._manager.block_size
        first = request.num_computed_tokens // size
        for at in range(first, -(-match.num_tokens // size)):
            source, target = match.table.blocks[at], request.block_table.blocks[at]
            self._manager.storage.copy_block(source.block_id, target.block_id)
        request.num_computed_tokens = match.num_tokens
