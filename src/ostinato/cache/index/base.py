"""The contract of a prefix index: from token ids to the blocks that hold their K/V.

The index only knows *where* a prefix lies. Who holds a block, and which one is given up next, is the pool's
business: a block's reference count is its lock. Two rules tie the two together, and both implementations and
the eviction policies rely on them:

- *Path rule.* Whoever holds a block holds every block before it in its prefix. `insert` makes it hold: where
  an equal block is indexed already, the caller gives its own up and holds the indexed one instead.
- *Leaf rule.* `evict` is only called for a block that no other indexed block follows.

Blocks between requests are never changed, only read or copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.hashing import HashChain
from ostinato.cache.types import MissReason, NamespaceKey, TokenArray


@dataclass(frozen=True, slots=True)
class IndexMatch:
    """The longest indexed prefix of a query.

    Attributes:
        blocks: full blocks, in order.
        partial: a block whose first `partial_tokens` tokens continue the match, if any.
        partial_tokens: 0 to block_size - 1, or as many as a shorter last block holds.
        reason: why the match ends there.
    """

    blocks: Sequence[KVCacheBlock]
    partial: KVCacheBlock | None
    partial_tokens: int
    reason: MissReason


@dataclass(frozen=True, slots=True)
class InsertResult:
    """What became of the blocks that were offered.

    Attributes:
        blocks: for each block from `start` on, the one that is indexed now: the caller's own or an equal one
            that was there before. Shorter than what was offered if the rest could not be indexed.
        displaced: formerly indexed blocks that one of `blocks` replaces because it holds more tokens.
    """

    blocks: Sequence[KVCacheBlock]
    displaced: Sequence[KVCacheBlock] = field(default=())


@dataclass(frozen=True, slots=True)
class SizeInfo:
    """How much an index holds."""

    num_blocks: int
    num_tokens: int
    num_namespaces: int


class PrefixIndex(ABC):
    """See the module's docstring for the two rules.

    Attributes:
        block_size: tokens a block.
        keeps_partial_blocks: whether a last block that is not full may be inserted.
    """

    block_size: int
    keeps_partial_blocks: bool

    @abstractmethod
    def match(
        self, namespace: NamespaceKey, token_ids: TokenArray, hashes: HashChain | None = None
    ) -> IndexMatch:
        """Find the longest indexed prefix of `token_ids`. Changes nothing.

        The result is valid until the next call of `insert` or `evict`.

        Args:
            namespace: scope of the query.
            token_ids: of the sequence, from its first token.
            hashes: the sequence's memo, so that nothing is hashed twice; unused where nothing is hashed.
        """

    @abstractmethod
    def insert(
        self,
        namespace: NamespaceKey,
        token_ids: TokenArray,
        blocks: Sequence[KVCacheBlock],
        start: int,
        hashes: HashChain | None = None,
    ) -> InsertResult:
        """Make `blocks` findable under the tokens that they hold.

        Args:
            namespace: scope of the blocks.
            token_ids: tokens of all `blocks`, from the first of the prompt.
            blocks: one block per `block_size` tokens; the last may be partial where
                `keeps_partial_blocks` is true. All must be held by the caller.
            start: this many leading blocks are indexed already, as returned by earlier calls.
            hashes: the sequence's memo, as for `match`.

        Raises:
            ValueError: if the number of tokens does not fit the number of blocks.
        """

    @abstractmethod
    def is_leaf(self, block: KVCacheBlock) -> bool:
        """Whether no other indexed block follows `block`.

        Raises:
            CacheIntegrityError: if the block is not indexed.
        """

    @abstractmethod
    def evict(self, block: KVCacheBlock) -> KVCacheBlock | None:
        """Forget `block`; its `entry` becomes None.

        Returns:
            The block before it if that one has become a leaf, else None.

        Raises:
            CacheIntegrityError: if the block is not indexed, or if others follow it (leaf rule).
        """

    @abstractmethod
    def size_info(self) -> SizeInfo:
        """Totals over all namespaces. O(number of nodes)."""

    @abstractmethod
    def chains(self) -> Iterator[tuple[NamespaceKey, TokenArray, Sequence[KVCacheBlock]]]:
        """Every indexed run of blocks that ends in a leaf: its namespace, all its tokens, all its blocks."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Verify the index's own structure and the path rule (a block is held at least as often as all its
        successors together).

        Raises:
            CacheIntegrityError: naming what is wrong.
        """

    def _check_offer(self, token_ids: TokenArray, blocks: Sequence[KVCacheBlock]) -> None:
        full, rest = divmod(len(token_ids), self.block_size)
        wanted = full + (1 if rest and self.keeps_partial_blocks else 0)
        if len(blocks) != wanted or (rest and not self.keeps_partial_blocks):
            raise ValueError(
                f"{len(token_ids)} tokens do not fill {len(blocks)} blocks of {self.block_size}"
            )
