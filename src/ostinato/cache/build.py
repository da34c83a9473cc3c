"""A manager from the names that settings use."""

from __future__ import annotations

from typing import Literal

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.eviction import EvictionPolicy
from ostinato.cache.index import BlockHashIndex, PrefixIndex, RadixIndex
from ostinato.cache.layout import KVCacheSpec
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.storage import KVStorage
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.clock import Clock


def build_manager(
    spec: KVCacheSpec,
    storage: KVStorage,
    prefix_index: Literal["radix", "block_hash", "none"],
    tiers: TierHierarchy | None = None,
    *,
    policy: EvictionPolicy[KVCacheBlock] | None = None,
    clock: Clock | None = None,
) -> KVCacheManager:
    """A manager with the index of that name; see `KVCacheManager` for the rest."""
    index: PrefixIndex | None = None
    if prefix_index == "radix":
        index = RadixIndex(spec.block_size)
    elif prefix_index == "block_hash":
        index = BlockHashIndex(spec.block_size)
    return KVCacheManager(spec, storage, index, policy, tiers, clock)
