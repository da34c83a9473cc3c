"""PrefixMatch: the answer to a lookup, with all that is needed to act upon it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.cache.hashing import HashChain
from ostinato.cache.index import IndexMatch
from ostinato.cache.report import CacheReport
from ostinato.cache.types import DEFAULT_TENANT, NamespaceKey, TenantId, Tier


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What `lookup` found; valid until the next call that changes the cache.

    Attributes:
        namespace: that was asked.
        prompt_tokens: length of the query.
        found: the index's answer, at most `prompt_tokens` - 1 tokens long, since at least one token must be
            computed for there to be logits.
        num_tokens: tokens that can be reused.
        hashes: the sequence's memo of block hashes.
        tenant: whose prompt it is.
    """

    namespace: NamespaceKey
    prompt_tokens: int
    found: IndexMatch
    num_tokens: int
    hashes: HashChain
    tenant: TenantId = DEFAULT_TENANT

    def report(self) -> CacheReport:
        """The report of a request that is admitted with this match."""
        return CacheReport(
            prompt_tokens=self.prompt_tokens,
            read_by_tier={Tier.DEVICE: self.num_tokens} if self.num_tokens else {},
            copied_tokens=self.found.partial_tokens,
            miss_reason=self.found.reason,
        )
