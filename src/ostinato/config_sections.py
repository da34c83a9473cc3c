"""The sections of the settings: what can be set about each part and what is allowed. `config.py` reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from ostinato.cache.eviction import DEFAULT_POLICY
from ostinato.cache.layout import KVDtype
from ostinato.cache.tiers.policy import PrefetchStop, WritePolicy
from ostinato.cache.types import tenant_id
from ostinato.errors import ConfigError
from ostinato.product.rules import house_rules
from ostinato.sizes import parse_size

PositiveInt = Annotated[int, Field(ge=1)]


def _bytes(value: object) -> object:
    """A size with a unit, as the command line takes it too; all else is left to pydantic."""
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error


class Section(BaseModel):
    """Frozen; refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CacheConfig(Section):
    """K/V memory and prefix caching."""

    block_size: PositiveInt = 16
    """Tokens a block."""
    kv_dtype: KVDtype = KVDtype.FP16
    """Format of stored K/V. fp8 and int8 take half of fp16, int4 a third; a sequence's newest block stays in
    fp16. fp32 doubles the memory and is bit-exact for tests."""
    kv_memory_bytes: Annotated[PositiveInt, BeforeValidator(_bytes)] | None = None
    """Bytes for the pool, also as a text like ``2GiB``.
    Default: a quarter of the memory that is free, at most what 64 full contexts take."""
    num_blocks: PositiveInt | None = None
    """Blocks in the pool; overrides `kv_memory_bytes`."""
    eviction: Literal["lru", "lfu", "arc", "reuse_rate"] = DEFAULT_POLICY
    """Which cached block goes next, in the pool and in every tier; see docs/eviction.md."""
    expire: Literal["soft", "hard"] = "soft"
    """What becomes of promised K/V after its time: ordinary (soft), or unreadable and then erased (hard)."""
    prefix_index: Literal["radix", "block_hash", "none"] = "radix"
    """radix reuses to the token, block_hash whole blocks only, none switches prefix caching off."""


def _bytes_or_off(value: object) -> object:
    """A size, or ``0`` or ``off`` for none at all."""
    return 0 if str(value).strip().lower() in ("0", "off") else _bytes(value)


OptionalSize = Annotated[int, Field(ge=0), BeforeValidator(_bytes_or_off)]


class TiersConfig(Section):
    """What lies below the device pool. Sizes are bytes, or a text like ``4GiB`` or ``off``.

    The defaults of `ram_bytes` and `disk_bytes` hold for ``ostinato serve``. Elsewhere (the `LLM` class,
    ``chat``, ``demo``) there are no tiers unless they are asked for: a script writes nothing to disk.
    """

    ram_bytes: OptionalSize | None = None
    """Bound of the RAM tier. Default: a quarter of the machine's memory, taken as it is used."""
    disk_bytes: OptionalSize | None = None
    """Bound of the disk tier, files of other models in the folder included. Default: 10 GiB."""
    disk_dir: Path | None = None
    """Its folder, for one process at a time. Default: ``kv`` in the data folder."""
    disk_keep_free: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the file system that stays free, whatever the bound says."""
    remote_url: str | None = Field(default=None, repr=False)
    """A Redis or Valkey server, ``redis://…``, ``rediss://…`` or ``unix://…``. Default: none."""
    remote_bytes: Annotated[PositiveInt, BeforeValidator(_bytes)] = 10 * 2**30
    """Bound of what this process keeps there."""
    kv_dtype: KVDtype | None = None
    """Format of K/V in all tiers; default: the device's own."""
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH_SELECTIVE
    """What is copied before it is evicted: nothing (write_back), everything (write_through), or what a second
    request uses (write_through_selective)."""
    prefetch: PrefetchStop = PrefetchStop.BEST_EFFORT
    """What a request does whose turn comes before its prefetch into RAM has ended."""
    flush_seconds: Annotated[float, Field(ge=0.0)] = 2.0
    """Most that a stop spends on writing what has no copy on disk or a remote server."""


class SchedulerConfig(Section):
    """How requests share the engine."""

    max_num_seqs: PositiveInt = 64
    """Most sequences running at once; the rest wait."""
    max_num_batched_tokens: PositiveInt = 512
    """Token budget of one step, shared by decodes and prefill chunks; at least `max_num_seqs`, so that no
    running sequence ever misses a step."""
    long_prefill_tokens: PositiveInt | None = None
    """Most tokens of a step for one prefill while others want some; default: half the budget."""
    policy: Literal["lpm", "fcfs"] = "lpm"
    """Order of waiting. lpm: longest cached prefix, age, fair share between tenants and priority, weighed
    against each other; fcfs: order of arrival alone."""
    max_waiting: PositiveInt = 1024
    """Most requests waiting beyond those that find a free sequence; one more is refused with 503."""
    watermark: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.01
    """Share of the pool that admission leaves free for running requests to grow into."""
    age_weight: Annotated[float, Field(ge=0.0)] = 64.0
    """Of policy lpm: cached tokens that a second of waiting is worth. At 0 a wait need not end."""

    @model_validator(mode="after")
    def _one_token_each(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), since each running sequence needs a token a step: raise the "
                "first or lower the second"
            )
        return self


def _tenant_name(name: str) -> str:
    """A tenant's name, or ``"*"``."""
    try:
        return name if name == "*" else tenant_id(name)
    except ConfigError as error:
        raise ValueError(str(error)) from error


TenantName = Annotated[str, AfterValidator(_tenant_name)]


class TenantLimits(Section):
    """What one tenant may take of what all share. Budgets are no partitions: what nobody else wants is free."""

    weight: Annotated[float, Field(ge=0.001, le=1000.0)] | None = None
    """Share of the engine beside others that want it at the same time; default: 1."""
    num_blocks: Annotated[int, Field(ge=0)] | None = None
    """Blocks of the pool beyond which its cached ones are evicted first; default: no such bound."""
    ram_bytes: Annotated[int, Field(ge=0), BeforeValidator(_bytes)] | None = None
    """The same for the RAM tier, in bytes or as ``2GiB``."""
    disk_bytes: Annotated[int, Field(ge=0), BeforeValidator(_bytes)] | None = None
    """The same for the disk tier."""


class SharedPrompt(Section):
    """A system prompt that is public among some tenants: computed at start, kept, copied to who sends it."""

    name: Annotated[str, Field(min_length=1)]
    """For messages."""
    tenants: Annotated[tuple[TenantName, ...], Field(min_length=1)]
    """Who may read it; ``"*"`` is everybody."""
    system_prompt: str | None = None
    """Its text, or else"""
    file: Path | None = None
    """a UTF-8 file that holds it, to the last character."""

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if (self.system_prompt is None) == (self.file is None):
            raise ValueError("give one of system_prompt and file")
        return self


class TenantConfig(Section):
    """Who may use the server, and what each may take."""

    api_keys_file: Path | None = None
    """Written by ``ostinato keys``; default: api-keys.jsonl in the data folder, if there is one."""
    limits: dict[TenantName, TenantLimits] = {}
    """By tenant; ``"*"`` holds for everybody, as far as their own entry says nothing else."""
    shared: tuple[SharedPrompt, ...] = ()
    """System prompts that several tenants may read."""


def _house_rules(name: str) -> str:
    """A name of `product.rules.HOUSE_RULES`."""
    try:
        return house_rules(name).name
    except ConfigError as error:
        raise ValueError(str(error)) from error


class ProductConfig(Section):
    """What callers see of caching: counters, lifetimes, minimums."""

    house_rules: Annotated[str, AfterValidator(_house_rules)] = "local"
    """Whose rules for prompt caching hold: local counts exactly what was reused; anthropic-1024, openai-5.6,
    gemini-2048, deepseek and others do as those vendors do."""


def _age_or_forever(value: object) -> object:
    """An age with a unit, or ``forever``. A bare number is refused: days taken for seconds would delete all."""
    if value is None or str(value).strip().lower() == "forever":
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([hd])\s*", str(value))
    if match is None or not float(match[1]):
        raise ValueError("give forever, or an age in days or hours, such as 90d or 36h")
    return float(match[1]) * {"h": 3600.0, "d": 86_400.0}[match[2]]


KeepSeconds = Annotated[float | None, BeforeValidator(_age_or_forever)]


class LedgerConfig(Section):
    """Where a record of each request is kept."""

    url: str | None = Field(default=None, repr=False)
    """``off``, ``sqlite:///FILE`` or ``postgresql://…``. Default: ledger.sqlite3 in the data folder."""
    keep: KeepSeconds = None
    """``forever``, or an age such as ``90d`` or ``36h`` from which on a record is deleted; kept in seconds."""


class ResponsesConfig(Section):
    """Responses that clients may continue and read again (``store``, on by default)."""

    disk_bytes: OptionalSize = 2**30
    """Bound of responses.sqlite3 in the data folder; the oldest go first. 0 or ``off`` keeps responses in
    memory, up to `memory_bytes`, and writes none to disk."""
    memory_bytes: OptionalSize = 64 * 2**20
    """Bound of responses in memory."""
    max_age_days: Annotated[float, Field(gt=0.0)] = 30.0
    """What is older is deleted."""


class ServerConfig(Section):
    """HTTP."""

    host: str = "127.0.0.1"
    """Address to listen on. Without API keys only loopback is allowed; see `TenantConfig`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 lets the system choose a free port."""
