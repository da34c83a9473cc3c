"""A request, as the caller states it and as the engine keeps it.

                 add             schedule                  stop, length
    EngineRequest ───► WAITING ───────────► RUNNING ─────────────────────► FINISHED
                                   ▲           │ no block left for it         ▲
                                   │           ▼                              │ abort, from any state
                                   └─────── PREEMPTED ────────────────────────┘

Where K/V is to be loaded from a lower tier, WAITING_FOR_LOAD lies between waiting (or preempted) and running;
see `loading.py`.

There are no phases. `num_computed_tokens` chases `num_tokens`: a step computes some of the missing tokens,
and when none is missing one more is sampled. The token sampled last is therefore never computed yet.

A request for n answers is one `Request` until its prompt is computed; then it is forked into n of them,
which live on independently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from ostinato.cache.block_table import BlockTable
from ostinato.cache.hashing import HashChain
from ostinato.cache.report import CacheReport
from ostinato.cache.types import DEFAULT_TENANT, NamespaceKey, TenantId, TokenArray
from ostinato.engine.sampling_params import SamplingParams
from ostinato.errors import InvalidRequestError

MAX_PRIORITY = 100
"""Largest absolute value of a priority: `order.PRIORITY_TOKENS` turns it into a wait that has an end."""

_NO_TOKENS = f"a prompt of token ids must be a flat list of integers below {2**31:,}"
_INT32 = np.iinfo(np.int32)
_SPARE_TOKENS = 64
_arrivals: Iterator[int] = itertools.count()


def token_array(token_ids: Sequence[int] | npt.NDArray[np.integer]) -> TokenArray:
    """Token ids from whoever calls us, as ``(num_tokens,)`` int32.

    Raises:
        InvalidRequestError: not a flat run of integers that fit int32.
    """
    try:
        given = np.asarray(token_ids)
    except ValueError:  # nested and uneven
        given = np.empty(0, dtype=object)
    if given.shape == (0,) and len(token_ids) == 0:
        return np.empty(0, dtype=np.int32)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise InvalidRequestError(_NO_TOKENS, param="prompt")
    if given.min() < _INT32.min or given.max() > _INT32.max:
        raise InvalidRequestError(_NO_TOKENS, param="prompt")
    return given.astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """What somebody wants generated.

    Attributes:
        request_id: unique among the requests that are not finished.
        prompt_token_ids: ``(num_prompt_tokens,)`` int32, at least one.
        params: how to choose tokens.
        tenant: whose cache it may use; from the operator's side, never from the client.
        cache_salt: narrows sharing within the tenant.
        retain: ``(num_tokens, seconds)``: the K/V of so many leading tokens of the prompt is promised for so
            long, counted from each use.
        priority: lower is served earlier, -`MAX_PRIORITY` to `MAX_PRIORITY`; what a step is worth against
            age and cached tokens is `order.PRIORITY_TOKENS`.
    """

    request_id: str
    prompt_token_ids: TokenArray
    params: SamplingParams
    tenant: TenantId = DEFAULT_TENANT
    cache_salt: str | None = None
    retain: tuple[tuple[int, float], ...] = ()
    priority: int = 0


class RequestStatus(Enum):
    """See the module's docstring for the way from one to the next."""

    WAITING = "waiting"
    WAITING_FOR_LOAD = "waiting for load"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """One sequence of tokens on its way through the engine. Changed by the scheduler only.

    Attributes:
        request_id: of the `EngineRequest`; all n answers share it.
        index: which of the n answers this is.
        num_seqs: sequences it stands for: n until it is forked, then 1.
        namespace: where in the cache its prefix is looked up and published.
        cache_salt: None, or what narrows its namespace within the tenant.
        hashes: memo of its block hashes, for all lookups of its life.
        max_tokens: most tokens to generate; 0: it ends when its prompt is computed.
        argmax_only: see `SamplingParams.argmax_only`.
        retain: see `EngineRequest`; from the moment at which the prompt is computed.
        arrival_time: monotonic seconds.
        arrival_order: total order of arrival; forks keep their leader's place.
        num_prompt_tokens: length of the prompt.
        num_computed_tokens: leading tokens whose K/V is in the block table.
        table: its blocks while it runs or loads, else None.
        report: where its prompt came from; set when it first starts and never changed.
    """

    __slots__ = (
        "_buffer",
        "argmax_only",
        "arrival_order",
        "arrival_time",
        "cache_salt",
        "hashes",
        "index",
        "max_tokens",
        "namespace",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_seqs",
        "num_tokens",
        "priority",
        "report",
        "request_id",
        "retain",
        "status",
        "table",
        "tenant",
    )

    def __init__(
        self, source: EngineRequest, namespace: NamespaceKey, max_tokens: int, arrival_time: float
    ) -> None:
        self.request_id = source.request_id
        self.index = 0
        self.num_seqs = source.params.n
        self.argmax_only = source.params.argmax_only
        self.tenant = source.tenant
        self.cache_salt = source.cache_salt
        self.priority = source.priority
        self.retain = source.retain
        self.namespace = namespace
        self.hashes = HashChain(namespace)
        self.max_tokens = max_tokens
        self.arrival_time = arrival_time
        self.arrival_order: tuple[int, int] = (next(_arrivals), 0)
        self.status = RequestStatus.WAITING
        self.num_prompt_tokens = len(source.prompt_token_ids)
        self.num_tokens = self.num_prompt_tokens
        self.num_computed_tokens = 0
        self.table: BlockTable | None = None
        self.report: CacheReport | None = None
        spare = min(max_tokens, _SPARE_TOKENS)
        self._buffer: TokenArray = np.empty(self.num_prompt_tokens + spare, dtype=np.int32)
        self._buffer[: self.num_prompt_tokens] = source.prompt_token_ids

    @property
    def token_ids(self) -> TokenArray:
        """``(num_tokens,)`` view of prompt and output."""
        return self._buffer[: self.num_tokens]

    @property
    def prompt_token_ids(self) -> TokenArray:
        """``(num_prompt_tokens,)`` view."""
        return self._buffer[: self.num_prompt_tokens]

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_missing_tokens(self) -> int:
        """Tokens that must be computed before the next one can be sampled."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def ends_with_prompt(self) -> bool:
        """Nothing is to be generated: it is there for the K/V of its prompt."""
        return self.max_tokens == 0

    @property
    def is_prefilling(self) -> bool:
        """More is missing than the token that was sampled last."""
        return self.num_missing_tokens > 1

    @property
    def block_table(self) -> BlockTable:
        """The blocks of a running request."""
        if self.table is None:
            raise RuntimeError(f"{self!r} holds no blocks")
        return self.table

    def append(self, token_id: int) -> None:
        """Take a sampled token."""
        if self.num_tokens == len(self._buffer):
            grown = np.empty(2 * len(self._buffer), dtype=np.int32)
            grown[: self.num_tokens] = self._buffer
            self._buffer = grown
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1

    def fork(self, index: int, table: BlockTable) -> Request:
        """A running copy of this request as answer `index`, with blocks of its own in `table`."""
        child = object.__new__(Request)
        for name in self.__slots__:
            setattr(child, name, getattr(self, name))
        child.index = index
        child.num_seqs = 1
        child.table = table
        child.hashes = table.hashes
        child.arrival_order = (self.arrival_order[0], index)
        child._buffer = self._buffer.copy()
        return child

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}[{self.index}], {self.status.value}, "
            f"{self.num_computed_tokens}/{self.num_tokens} tokens)"
        )
