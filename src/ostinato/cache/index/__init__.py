"""Prefix indexes: from token ids to the blocks that hold their K/V."""

from ostinato.cache.index.base import IndexMatch, InsertResult, PrefixIndex, SizeInfo
from ostinato.cache.index.block_hash import BlockHashIndex
from ostinato.cache.index.radix import RadixIndex

__all__ = ["BlockHashIndex", "IndexMatch", "InsertResult", "PrefixIndex", "RadixIndex", "SizeInfo"]
