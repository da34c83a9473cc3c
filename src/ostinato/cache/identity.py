"""What a block is called outside the device: the one name that every tier, process and restart agrees on."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.cache.hashing import HashChain
from ostinato.cache.types import BlockHash, TenantId, TokenArray


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """Name of a full, published block.

    Attributes:
        key: chain hash; names the whole prefix that ends in this block, its namespace included.
        parent: chain hash of the block before, or None for the first block of a prompt.
        depth: blocks before it.
        tenant: whose budget it counts against.
    """

    key: BlockHash
    parent: BlockHash | None
    depth: int
    tenant: TenantId


def identities(
    hashes: HashChain, token_ids: TokenArray, block_size: int, tenant: TenantId, start: int = 0
) -> list[BlockIdentity]:
    """Names of the full blocks of `token_ids` from block `start` on.

    Args:
        hashes: memo of the sequence.
        token_ids: of the sequence, from its first token.
        block_size: tokens a block.
        tenant: whose they are.
        start: first block that is wanted.
    """
    first = max(start - 1, 0)
    names: list[BlockIdentity] = []
    parent: BlockHash | None = None
    for depth, key in enumerate(hashes.hashes(token_ids, block_size, start=first), first):
        if depth >= start:
            names.append(BlockIdentity(key, parent, depth, tenant))
        parent = key
    return names
