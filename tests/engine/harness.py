"""An engine around a model that can be predicted exactly, for tests of everything but arithmetic.

`EchoModel` writes token ids where a real model writes K/V. The logits of a token are a function of all
token ids of its sequence, read back through the block table. One wrong slot, one block shared that should
have been copied, one block reused too early, and the tokens differ from `expected_tokens`.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from ostinato.cache.build import build_manager
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.prefix_loader import PrefixLoader
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.types import NamespaceKey, TenantId
from ostinato.clock import Clock, ManualClock
from ostinato.config_sections import SchedulerConfig
from ostinato.engine.core import EngineCore
from ostinato.engine.fair_share import TenantService
from ostinato.engine.integrity import IntegrityPolicy, RaiseViolations
from ostinato.engine.limits import EngineLimits
from ostinato.engine.order import LongestPrefixFirst, OpenGate, PrefixGate, SharedPrefixGate
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.request import EngineRequest
from ostinato.engine.runner import ModelRunner
from ostinato.engine.sampling_params import SamplingParams
from ostinato.engine.scheduler import ScheduledRequest, Scheduler
from ostinato.engine.tier_care import TierCare
from ostinato.ops.base import BatchMetadata, Float32Array

VOCAB_SIZE = 64
EOS = 0
EMPTY_SLOT = -1
PrefixIndexName = Literal["radix", "block_hash", "none"]


class EchoStorage:
    """Block memory that holds a token id a slot."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.spec = KVCacheSpec(1, 1, 1, KVDtype.FP32, block_size)
        self.num_blocks = num_blocks
        self.slots = np.full((num_blocks, block_size), EMPTY_SLOT, dtype=np.int32)

    def copy_block(self, source: int, target: int) -> None:
        self.slots[target] = self.slots[source]

    def wipe_block(self, block_id: int) -> None:
        self.slots[block_id] = EMPTY_SLOT

    def block_bytes(self, block_id: int) -> np.ndarray[Any, Any]:
        return self.slots[block_id].view(np.uint8)

    def block_bytes_to_overwrite(self, block_id: int) -> np.ndarray[Any, Any]:
        return self.block_bytes(block_id)


class EchoModel:
    """See the module's docstring."""

    def forward(self, batch: BatchMetadata, kv: Any) -> Float32Array:
        flat = kv.slots.reshape(-1)
        flat[batch.slot_mapping] = batch.token_ids
        owners = np.searchsorted(batch.query_start, batch.logits_indices, side="right") - 1
        rows = [
            echo_logits(self._read(batch, kv, int(owner), int(batch.positions[token]) + 1))
            for owner, token in zip(owners, batch.logits_indices, strict=True)
        ]
        return np.array(rows, dtype=np.float32).reshape(len(rows), VOCAB_SIZE)

    @staticmethod
    def _read(batch: BatchMetadata, kv: Any, owner: int, length: int) -> np.ndarray[Any, Any]:
        blocks = batch.block_tables[owner, : -(-length // kv.spec.block_size)]
        return kv.slots[blocks].reshape(-1)[:length]


def echo_logits(token_ids: np.ndarray[Any, Any]) -> Float32Array:
    """``(VOCAB_SIZE,)`` logits after a sequence."""
    seed = zlib.crc32(np.asarray(token_ids, dtype="<i4").tobytes())
    return np.random.default_rng(seed).standard_normal(VOCAB_SIZE).astype(np.float32)


def expected_tokens(
    prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False
) -> list[int]:
    """What greedy decoding gives when nothing disturbs it."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens:
        tokens.append(int(np.argmax(echo_logits(np.array(tokens)))))
        if tokens[-1] == EOS and not ignore_eos:
            break
    return tokens[len(prompt) :]


class EchoTokenizer:
    """Token i is the i-th character from "@" on; token 0 ends a text."""

    vocab_size = VOCAB_SIZE
    bos_token_id = None
    eos_token_ids = frozenset({EOS})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([64 + token_id])

    def token_text(self, token_id: int) -> str:
        return chr(64 + token_id)

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS

    def encode(self, text: str) -> list[int]:
        return [ord(character) - 64 for character in text]

    encode_prompt = encode

    def text(self, token_ids: Iterable[int]) -> str:
        return "".join(self.token_text(one) for one in token_ids if one != EOS)


class SpyRunner:
    """Keeps what every step computed.

    Attributes:
        batches: the parts of each step.
        before: called before each step, e.g. to raise.
    """

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.batches: list[list[ScheduledRequest]] = []
        self.logits: dict[tuple[str, int, int], Float32Array] = {}
        self.before: Callable[[Sequence[ScheduledRequest]], None] = lambda scheduled: None
        self.spoil: Callable[[Sequence[ScheduledRequest], Float32Array], None] = (
            lambda scheduled, logits: None
        )

    def run(self, scheduled: Sequence[ScheduledRequest]) -> Float32Array:
        self.before(scheduled)
        self.batches.append(list(scheduled))
        logits = self._runner.run(scheduled)
        self.spoil(scheduled, logits)
        wanted = [part for part in scheduled if part.wants_logits]
        for part, row in zip(wanted, logits, strict=True):
            key = (part.request.request_id, part.request.index, part.end)
            self.logits[key] = row.copy()
        return logits

    @property
    def computed(self) -> dict[str, int]:
        """Tokens computed for each request id."""
        totals: dict[str, int] = {}
        for part in (part for batch in self.batches for part in batch):
            name = part.request.request_id
            totals[name] = totals.get(name, 0) + part.num_tokens
        return totals


class Engine:
    """A core with its parts at hand."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        prefix_index: PrefixIndexName = "radix",
        max_model_len: int = 1024,
        max_waiting: int = 1024,
        clock: Clock | None = None,
        integrity: IntegrityPolicy | None = None,
        weights: Mapping[str, float] | None = None,
        tiers: Callable[[EchoStorage, Clock], TierHierarchy] | None = None,
        expire: Literal["soft", "hard"] = "soft",
        **scheduler: Any,
    ) -> None:
        scheduler.setdefault("watermark", 0.0)
        budget = scheduler.get("max_num_batched_tokens", 64)
        scheduler.setdefault("max_num_seqs", min(64, budget))
        config = SchedulerConfig(max_waiting=max_waiting, **scheduler)
        self.clock = clock or ManualClock()
        self.storage = EchoStorage(num_blocks, block_size)
        below = None if tiers is None else tiers(self.storage, self.clock)
        self.manager = build_manager(
            self.storage.spec, self.storage, prefix_index, below, clock=self.clock
        )
        loader = None if below is None else PrefixLoader(self.manager, below)
        gate: PrefixGate = OpenGate() if prefix_index == "none" else SharedPrefixGate(block_size)
        order = LongestPrefixFirst(config.age_weight)
        service = TenantService({TenantId(name): one for name, one in (weights or {}).items()})
        self.scheduler = Scheduler(
            self.manager, config, self.clock, order, gate, service, loader, expire
        )
        self.spy = SpyRunner(ModelRunner(EchoModel(), self.storage))
        self.tokenizer = EchoTokenizer()
        self.core = EngineCore(
            model=SimpleNamespace(tokenizer=self.tokenizer, chat_template=None, name="echo"),
            manager=self.manager,
            scheduler=self.scheduler,
            runner=self.spy,
            limits=EngineLimits(
                max_model_len=max_model_len,
                num_blocks=num_blocks,
                block_size=block_size,
                kv_bytes_per_token=self.storage.spec.bytes_per_token,
                kv_pool_bytes=num_blocks * self.storage.spec.bytes_per_block,
                kv_open_bytes=0,
                min_cacheable_tokens=self.manager.min_cacheable_tokens,
                max_num_seqs=config.max_num_seqs,
                vocab_size=VOCAB_SIZE,
            ),
            namespace_of=namespace_of,
            max_waiting=max_waiting,
            clock=self.clock,
            integrity=integrity or RaiseViolations(),
        )

    def add(self, name: str, prompt: Iterable[int], **options: Any) -> None:
        self.core.add_request(request(name, prompt, **options))

    def step(self) -> list[OutputDelta]:
        """One step, invariants checked."""
        deltas = self.core.step()
        self.core.check_integrity()
        return deltas

    def run(self, max_steps: int = 10_000) -> dict[tuple[str, int], Collected]:
        """Step until nothing is left to do."""
        answers: dict[tuple[str, int], Collected] = {}
        for _ in range(max_steps):
            if not self.core.has_work:
                return answers
            if self.core.is_stalled:
                self.core.tiers.wait(0.0)
            collect(self.step(), answers)
            self.core.tiers.tend()
        raise AssertionError(f"not finished after {max_steps} steps: {self.core.stats()}")

    def assert_idle(self) -> None:
        """Nothing is held: free + cached = total."""
        stats = self.core.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert stats.blocks.free + stats.blocks.cached == stats.blocks.total
        self.core.check_integrity()


class CountingCare(TierCare):
    """Of no tiers; counts how often they are seen to."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(None, clock)
        self.tended = threading.Semaphore(0)
        self.times = 0

    def tend(self) -> None:
        super().tend()
        self.times += 1
        self.tended.release()


class Collected:
    """All deltas of one answer, put together."""

    def __init__(self) -> None:
        self.deltas: list[OutputDelta] = []

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def last(self) -> OutputDelta:
        return self.deltas[-1]

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.last.finish_reason


def collect(deltas: Iterable[OutputDelta], into: dict[tuple[str, int], Collected]) -> None:
    """Sort deltas by answer."""
    for delta in deltas:
        answer = into.setdefault((delta.request_id, delta.index), Collected())
        assert not answer.deltas or answer.finish_reason is None, "a delta after the last one"
        answer.deltas.append(delta)


def namespace_of(asked: EngineRequest) -> NamespaceKey:
    return NamespaceKey(f"{asked.tenant}/{asked.cache_salt}".encode().ljust(32, b"."))


def request(
    name: str,
    prompt: Iterable[int],
    *,
    tenant: str = "default",
    salt: str | None = None,
    priority: int = 0,
    **params: Any,
) -> EngineRequest:
    """Greedy unless `params` say otherwise."""
    params.setdefault("temperature", 0.0)
    return EngineRequest(
        request_id=name,
        prompt_token_ids=np.array(list(prompt), dtype=np.int32),
        params=SamplingParams(**params),
        tenant=TenantId(tenant),
        cache_salt=salt,
        priority=priority,
    )


def tokens(length: int, seed: int = 0) -> list[int]:
    """Some token ids, none of them end-of-sequence."""
    return np.random.default_rng(seed).integers(1, VOCAB_SIZE, length).tolist()
