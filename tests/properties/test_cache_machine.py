"""Drives pool + index + manager against a brute-force model.

Guards against: a block given to two owners, a leak on any exit, a head evicted before its tail, reuse of
foreign or half-written K/V, a match that is shorter or longer than what is really cached, a block that is
reused while it is copied to another tier, K/V of a failed request that can still be found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ostinato.cache.block import KVCacheBlock
from ostinato.cache.block_table import BlockTable
from ostinato.cache.eviction import make_policy
from ostinato.cache.index import BlockHashIndex, PrefixIndex, RadixIndex
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.storage import NullKVStorage
from ostinato.cache.types import BlockId, NamespaceKey
from tests.properties.cache_model import CacheModel, Key, ModelTable, ModelTransfer

NAMESPACES = {name: NamespaceKey(name.encode() * 32) for name in ("a", "b")}


class ContentStorage(NullKVStorage):
    """Instead of K/V, a slot holds the whole prefix that its K/V would depend on."""

    def __init__(self, spec: KVCacheSpec, num_blocks: int) -> None:
        super().__init__(spec, num_blocks)
        self.slots: list[list[Key | None]] = [[None] * spec.block_size for _ in range(num_blocks)]

    def copy_block(self, source: BlockId, target: BlockId) -> None:
        self.slots[target] = list(self.slots[source])


class CacheMachine(RuleBasedStateMachine):
    """Allocate, compute, extend, publish, fork, release, discard, transfer, evict and reset in any order."""

    block_size = 4
    index_type: type[PrefixIndex] = RadixIndex
    policy_name = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[BlockTable, ModelTable]] = []
        self.transfers: list[tuple[list[KVCacheBlock], ModelTransfer]] = []

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        spec = KVCacheSpec(1, 1, 1, KVDtype.FP32, self.block_size)
        self.storage = ContentStorage(spec, capacity)
        self.index = self.index_type(self.block_size)  # type: ignore[call-arg]
        policy = make_policy(self.policy_name)
        self.manager = KVCacheManager(spec, self.storage, self.index, policy)
        self.model = CacheModel(capacity, self.block_size, self.index.keeps_partial_blocks)
        if self.policy_name != "lru":
            self.model.victims = deque()
            self._follow_victims(self.model.victims)

    def _follow_victims(self, victims: deque[Key]) -> None:
        """Tell the model what the pool gives up."""
        forget = self.manager._pool._forget

        def note_and_forget(block: KVCacheBlock) -> KVCacheBlock | None:
            key = self._key_of_source(block)
            assert key is not None
            victims.append(key)
            return forget(block)

        self.manager._pool._forget = note_and_forget

    @rule(name=st.sampled_from(sorted(NAMESPACES)), data=st.data())
    def allocate(self, name: str, data: st.DataObject) -> None:
        self._allocate(name, self._draw_prompt(data))

    @rule(name=st.sampled_from(sorted(NAMESPACES)), data=st.data())
    def serve(self, name: str, data: st.DataObject) -> None:
        """A request from its beginning to its end, so that there is much to find and to evict."""
        tokens = self._draw_prompt(data)
        if self._allocate(name, tokens):
            table, mirror = self.pairs.pop()
            self._compute(table, mirror, len(tokens))
            self._release(table, mirror)

    @rule(data=st.data())
    def press(self, data: st.DataObject) -> None:
        """Somebody takes almost all there is and computes nothing: what is cached has to go."""
        available = self.manager.num_available_blocks
        if not available:
            return
        wanted = data.draw(st.integers(max(1, available - 2), available))
        # No prompt holds a 9, so that nothing is reused.
        assert self._allocate("a", [9] * (wanted * self.block_size))
        self._release(*self.pairs.pop())

    def _allocate(self, name: str, tokens: list[int]) -> bool:
        array = np.array(tokens, dtype=np.int32)
        match = self.manager.lookup(NAMESPACES[name], array)
        full, _, partial = self.model.match(name, tokens)
        assert match.num_tokens == len(full) * self.block_size + partial
        assert match.num_tokens < len(tokens)
        source = self._key_of_source(match.found.partial)
        table = self.manager.allocate(match, len(tokens))
        idle = [key for key in (*full, source) if key in self.model.cached()]
        fresh = -(-len(tokens) // self.block_size) - len(full)
        lacking = fresh + len(idle) - self.model.free() - len(self.model.cached())
        takes_over = lacking == 1 and source is not None and source in idle
        assert (table is None) == (lacking > 0 and not takes_over)
        if table is None:
            return False
        if takes_over:
            assert source is not None
            mirror = self.model.allocate_in_place(name, tokens, source, partial)
            if self.model.victims:
                assert self.model.victims.popleft() == source
        else:
            mirror = self.model.allocate(name, tokens, source, partial)
        self.pairs.append((table, mirror))
        self._check_content(table, mirror)
        return True

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        table, mirror = data.draw(st.sampled_from(self.pairs))
        self._compute(table, mirror, data.draw(st.integers(mirror.computed, len(mirror.tokens))))

    def _compute(self, table: BlockTable, mirror: ModelTable, target: int) -> None:
        if not self._extend(table, mirror, target):
            return
        for position in range(mirror.computed, target):
            block = table.block_ids[position // self.block_size]
            value = (mirror.namespace, tuple(mirror.tokens[: position + 1]))
            self.storage.slots[block][position % self.block_size] = value
        mirror.computed = target
        self.manager.publish(table, np.array(mirror.tokens, dtype=np.int32), target)
        self.model.publish(mirror)
        self._check_content(table, mirror)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data(), more=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def generate(self, data: st.DataObject, more: list[int]) -> None:
        table, mirror = data.draw(st.sampled_from(self.pairs))
        if self._extend(table, mirror, len(mirror.tokens) + len(more)):
            mirror.tokens.extend(more)

    @precondition(lambda self: 0 < len(self.pairs) < 6)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, mirror = data.draw(st.sampled_from(self.pairs))
        twin = ModelTable(
            mirror.namespace,
            list(mirror.tokens),
            mirror.computed,
            list(mirror.blocks),
            mirror.published,
        )
        self.model.tables.append(twin)
        self.pairs.append((self.manager.fork(table), twin))

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.pairs) - 1))
        self._release(*self.pairs.pop(at))

    def _release(self, table: BlockTable, mirror: ModelTable) -> None:
        self.manager.release(table, np.array(mirror.tokens, dtype=np.int32), mirror.computed)
        self.model.release(mirror)

    @precondition(lambda self: self.pairs)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.pairs) - 1))
        table, mirror = self.pairs.pop(at)
        self.manager.discard(table)
        self.model.discard(mirror)

    @precondition(lambda self: self.pairs and len(self.transfers) < 4)
    @rule(data=st.data())
    def begin_transfer_of_held_blocks(self, data: st.DataObject) -> None:
        table, mirror = data.draw(st.sampled_from(self.pairs))
        count = data.draw(st.integers(1, len(mirror.blocks)))
        self._begin_transfer(table.blocks[:count], mirror.blocks[:count])

    @precondition(lambda self: self.model.entries and len(self.transfers) < 4)
    @rule(data=st.data())
    def begin_transfer_of_a_cached_prefix(self, data: st.DataObject) -> None:
        name, tokens = data.draw(st.sampled_from(sorted(self.model.entries)))
        for namespace, chain, blocks in self.index.chains():
            if namespace == NAMESPACES[name] and tuple(chain[: len(tokens)].tolist()) == tokens:
                count = -(-len(tokens) // self.block_size)
                keys = [self._key(name, tokens, at) for at in range(count)]
                if keys[-1] in self.model.entries:
                    self._begin_transfer(list(blocks[:count]), keys)
                return

    @precondition(lambda self: self.transfers)
    @rule(data=st.data())
    def end_transfer(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.transfers) - 1))
        blocks, mirror = self.transfers.pop(at)
        self.manager._pool.end_transfer(blocks)
        self.model.end_transfer(mirror)

    @precondition(lambda self: self.model.cached())
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        """The least recently used go, in the order in which the model says."""
        count = data.draw(st.integers(1, len(self.model.cached())))
        before = self.manager.stats().evicted_total
        for _ in range(count):
            self.manager._pool.evict_one()
            self.model.evict_one()
        assert self.manager.stats().evicted_total == before + count

    @rule()
    def reset(self) -> None:
        if self.manager.reset():
            assert not self.pairs
            assert not self.transfers
            self.model.entries.clear()
            if self.model.victims is not None:
                self.model.victims.clear()
        else:
            assert self.pairs or self.transfers

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity([table for table, _ in self.pairs])
        stats = self.manager.stats()
        assert stats.free == self.model.free()
        assert stats.in_use == self.model.in_use()
        assert stats.cached == len(self.model.cached())
        assert stats.in_transfer == self.model.in_transfer()
        assert stats.free + stats.in_use + stats.cached + stats.in_transfer == stats.total
        assert self._findable() == set(self.model.entries)

    def _begin_transfer(self, blocks: list[KVCacheBlock], keys: Sequence[Key | object]) -> None:
        self.manager._pool.begin_transfer(blocks)
        self.transfers.append((blocks, self.model.begin_transfer(keys)))

    def _key(self, name: str, tokens: tuple[int, ...], at: int) -> Key:
        return name, tokens[: (at + 1) * self.block_size]

    def _extend(self, table: BlockTable, mirror: ModelTable, num_tokens: int) -> bool:
        before = list(table.blocks)
        done = self.manager.extend(table, mirror.computed, num_tokens)
        assert done == self.model.extend(mirror, num_tokens)
        if not done:
            assert table.blocks == before
        else:
            writable = table.blocks[mirror.computed // self.block_size :]
            assert all(block.ref_cnt == 1 for block in writable)
        return done

    def _draw_prompt(self, data: st.DataObject) -> list[int]:
        """Often the beginning of something that was seen before, so that there is something to reuse."""
        known = sorted(tokens for _, tokens in self.model.entries)
        head: list[int] = []
        if known and data.draw(st.booleans()):
            base = data.draw(st.sampled_from(known))
            head = list(base[: data.draw(st.integers(0, len(base)))])
        tail = st.lists(st.integers(0, 2), min_size=1, max_size=2 * self.block_size + 1)
        return head + data.draw(tail)

    def _findable(self) -> set[Key]:
        names = {key: name for name, key in NAMESPACES.items()}
        found: set[Key] = set()
        for namespace, tokens, blocks in self.index.chains():
            for at in range(len(blocks)):
                end = min((at + 1) * self.block_size, len(tokens))
                found.add((names[namespace], tuple(tokens[:end].tolist())))
        return found

    def _key_of_source(self, block: object) -> Key | None:
        if block is None:
            return None
        names = {key: name for name, key in NAMESPACES.items()}
        for namespace, tokens, blocks in self.index.chains():
            if block in blocks:
                end = min((list(blocks).index(block) + 1) * self.block_size, len(tokens))
                return names[namespace], tuple(tokens[:end].tolist())
        raise AssertionError("the match names a block that cannot be found")

    def _check_content(self, table: BlockTable, mirror: ModelTable) -> None:
        """Every computed slot holds exactly the K/V of this namespace and this prefix."""
        for position in range(mirror.computed):
            block = table.block_ids[position // self.block_size]
            stored = self.storage.slots[block][position % self.block_size]
            assert stored == (mirror.namespace, tuple(mirror.tokens[: position + 1]))


@pytest.mark.parametrize("index_type", [RadixIndex, BlockHashIndex])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_the_cache_agrees_with_a_brute_force_model(
    index_type: type[PrefixIndex], block_size: int
) -> None:
    machine = type(
        f"Machine{index_type.__name__}{block_size}",
        (CacheMachine,),
        {"block_size": block_size, "index_type": index_type},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=80, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("index_type", [RadixIndex, BlockHashIndex])
@pytest.mark.parametrize("policy_name", ["lfu", "arc", "reuse_rate"])
def test_with_every_policy_what_goes_is_a_leaf_and_all_else_is_as_in_the_model(
    index_type: type[PrefixIndex], policy_name: str
) -> None:
    machine = type(
        f"Machine{index_type.__name__}{policy_name}",
        (CacheMachine,),
        {"index_type": index_type, "policy_name": policy_name},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=30, stateful_step_count=40, deadline=None),
    )
