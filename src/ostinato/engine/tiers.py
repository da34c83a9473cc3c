"""From the settings to what lies below the device pool."""

from __future__ import annotations

import hashlib
import logging

from ostinato.cache.eviction import make_policy
from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.cache.storage import KVStorage
from ostinato.cache.tiers.base import KVTier
from ostinato.cache.tiers.carrier import BlockCarrier, BlockMemory, EncodingCarrier, RawCarrier
from ostinato.cache.tiers.disk import DiskTier
from ostinato.cache.tiers.disk_folder import TierFormat
from ostinato.cache.tiers.hierarchy import TierHierarchy
from ostinato.cache.tiers.ram import RamTier
from ostinato.cache.tiers.transfer import ThreadedTransfers
from ostinato.clock import Clock
from ostinato.config import OstinatoConfig
from ostinato.config_sections import TiersConfig
from ostinato.engine.memory import total_memory
from ostinato.engine.tenancy import tenant_budgets
from ostinato.errors import ConfigError
from ostinato.models.loader import LoadedModel
from ostinato.sizes import format_size

_log = logging.getLogger(__name__)

RAM_SHARE = 4
"""By default the RAM tier may take one part in this many of the machine's memory."""
DEFAULT_DISK_BYTES = 10 * 2**30
NUM_THREADS = 2
"""Transfer threads: copies are bound by memory and devices, not by CPUs, and compute wants those."""


def with_serving_tiers(config: OstinatoConfig) -> OstinatoConfig:
    """`config` of a server: the sizes of tiers that are not set get their defaults."""
    tiers = config.tiers
    if config.cache.prefix_index == "none":
        return config
    sizes = {
        "ram_bytes": total_memory() // RAM_SHARE if tiers.ram_bytes is None else tiers.ram_bytes,
        "disk_bytes": DEFAULT_DISK_BYTES if tiers.disk_bytes is None else tiers.disk_bytes,
    }
    # `model_copy` does not mark the defaults as set by somebody: see `_disk`.
    filled = TiersConfig.model_construct(
        _fields_set=tiers.model_fields_set, **{**dict(tiers), **sizes}
    )
    return config.model_copy(update={"tiers": filled})


def build_tiers(
    config: OstinatoConfig,
    model: LoadedModel,
    spec: KVCacheSpec,
    storage: KVStorage,
    clock: Clock,
) -> TierHierarchy | None:
    """The hierarchy that `config` asks for, or None if it asks for nothing.

    Raises:
        ConfigError: a tier cannot be had as it was asked for, or there is no index that could use it.
    """
    if not (config.tiers.ram_bytes or config.tiers.disk_bytes or config.tiers.remote_url):
        return None
    carrier = _carrier(config.tiers, spec, storage)
    kind = _format(model, spec, config.tiers.kv_dtype or spec.dtype, carrier.block_bytes)
    tiers = [
        tier
        for tier in (
            _ram(config, kind, clock),
            _disk(config, kind, clock),
            _remote(config, kind, clock),
        )
        if tier is not None
    ]
    if not tiers:
        return None
    if config.cache.prefix_index == "none":
        raise ConfigError(
            "tiers keep prefixes for later prompts, and prefix caching is off (prefix_index none): "
            "switch one of them the other way"
        )
    return TierHierarchy(
        tiers,
        carrier,
        ThreadedTransfers(NUM_THREADS, clock),
        block_size=spec.block_size,
        write_policy=config.tiers.write_policy,
        prefetch_stop=config.tiers.prefetch,
        flush_seconds=config.tiers.flush_seconds,
        clock=clock,
    )


def _carrier(config: TiersConfig, spec: KVCacheSpec, storage: KVStorage) -> BlockCarrier:
    if not isinstance(storage, BlockMemory):
        raise ConfigError(
            "this backend keeps K/V where tiers cannot reach it: switch the tiers off"
        )
    if config.kv_dtype is None or config.kv_dtype is spec.dtype:
        return RawCarrier(storage, spec.bytes_per_block)
    return EncodingCarrier(storage, spec, config.kv_dtype)


def _format(
    model: LoadedModel, spec: KVCacheSpec, tier_dtype: KVDtype, block_bytes: int
) -> TierFormat:
    """What is stored says nothing to another model, device format or tier format."""
    parts = (model.digest, spec.digest(), tier_dtype.value.encode())
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return TierFormat(
        model=model.name,
        digest=hashlib.sha256(digests).digest(),
        block_bytes=block_bytes,
        details={
            "kv_dtype": tier_dtype.value,
            "device_kv_dtype": spec.dtype.value,
            "num_layers": spec.num_layers,
            "num_kv_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "block_size": spec.block_size,
        },
    )


def _ram(config: OstinatoConfig, kind: TierFormat, clock: Clock) -> KVTier | None:
    size = config.tiers.ram_bytes
    if not size:
        return None
    if size > (total := total_memory()):
        raise ConfigError(
            f"tiers.ram_bytes is {format_size(size)}, and this machine has {format_size(total)} of memory"
        )
    policy = make_policy(config.cache.eviction)
    budgets = tenant_budgets(config.tenants, "ram_bytes")
    return RamTier(kind.block_bytes, size, policy, budgets, clock)


def _disk(config: OstinatoConfig, kind: TierFormat, clock: Clock) -> KVTier | None:
    size = config.tiers.disk_bytes
    if not size:
        return None
    policy = make_policy(config.cache.eviction)
    budgets = tenant_budgets(config.tenants, "disk_bytes")
    keep_free = config.tiers.disk_keep_free
    try:
        return DiskTier(config.disk_tier_dir, kind, size, policy, budgets, clock, keep_free)
    except ConfigError as error:
        if {"disk_bytes", "disk_dir"} & config.tiers.model_fields_set:
            raise
        # Nobody asked for it: a second server on this machine is better without than not at all.
        _log.warning("no disk tier: %s", error)
        return None


def _remote(config: OstinatoConfig, kind: TierFormat, clock: Clock) -> KVTier | None:
    if config.tiers.remote_url is None:
        return None
    from ostinato.cache.tiers.remote import RemoteTier  # needs an extra

    policy = make_policy(config.cache.eviction)
    budgets = tenant_budgets(config.tenants, "disk_bytes")
    url, size = config.tiers.remote_url, config.tiers.remote_bytes
    return RemoteTier(url, kind, size, policy, budgets, clock)
