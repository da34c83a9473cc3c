"""From a configuration to an engine that is ready: the only place where the parts meet."""

from __future__ import annotations

from ostinato.cache.build import build_manager
from ostinato.cache.eviction import Retaining, make_policy
from ostinato.cache.manager import KVCacheManager
from ostinato.cache.namespace import CacheNamespace, NamespaceFactory, load_or_create_secret
from ostinato.cache.prefix_loader import PrefixLoader
from ostinato.cache.types import NamespaceKey
from ostinato.clock import Clock
from ostinato.config import OstinatoConfig
from ostinato.engine.async_engine import AsyncEngine
from ostinato.engine.core import EngineCore, NamespaceOf
from ostinato.engine.integrity import CountViolations, IntegrityPolicy
from ostinato.engine.limits import EngineLimits
from ostinato.engine.memory import max_open_blocks, pool_blocks, pool_bytes
from ostinato.engine.order import (
    FirstComeFirstServed,
    LongestPrefixFirst,
    OpenGate,
    PrefixGate,
    SharedPrefixGate,
    WaitingOrder,
)
from ostinato.engine.public_prompts import share_prompts
from ostinato.engine.request import EngineRequest
from ostinato.engine.runner import build_runner
from ostinato.engine.scheduler import Scheduler
from ostinato.engine.tenancy import tenant_budgets, tenant_service
from ostinato.engine.tiers import build_tiers
from ostinato.errors import ConfigError, UnsupportedKernelsError
from ostinato.models.loader import LoadedModel, load_model
from ostinato.models.registry import resolve_model
from ostinato.ops.base import LoadProgress, OpsBackend
from ostinato.ops.select import KernelOptions, fallback_backend, select_backend


def build_engine(
    config: OstinatoConfig, *, clock: Clock, progress: LoadProgress | None = None
) -> AsyncEngine:
    """An engine for many callers; not started yet.

    Raises:
        ConfigError: settings that cannot work.
        ModelError: no such model, or not one that can be run.
    """
    return AsyncEngine(build_core(config, clock=clock, progress=progress), config)


def build_core(
    config: OstinatoConfig, *, clock: Clock, progress: LoadProgress | None = None
) -> EngineCore:
    """Load the model, size the pool and put the synchronous engine together.

    Raises:
        ConfigError: settings that cannot work.
        ModelError: no such model, or not one that can be run.
    """
    model, ops = _load(config, progress)
    core = assemble_core(model, ops, config, clock=clock, integrity=CountViolations())
    share_prompts(core, config.tenants.shared)
    return core


def assemble_core(
    model: LoadedModel,
    ops: OpsBackend,
    config: OstinatoConfig,
    *,
    clock: Clock,
    integrity: IntegrityPolicy,
) -> EngineCore:
    """Put the engine together around a loaded model.

    Args:
        model: loaded by `ops`.
        ops: allocates the K/V memory.
        config: `model` and `backend` are not read.
        clock: for the age of waiting requests.
        integrity: what to do about a broken invariant.

    Raises:
        ConfigError: settings that cannot work.
    """
    max_model_len = _max_model_len(config, model)
    spec = model.config.kv_spec(config.cache.kv_dtype, config.cache.block_size)
    max_open = max_open_blocks(config.scheduler, spec)
    num_blocks = pool_blocks(config.cache, spec, max_model_len, max_open)
    max_open = min(max_open, num_blocks)
    storage = ops.allocate_kv(spec, num_blocks, max_open)
    tiers = build_tiers(config, model, spec, storage, clock)
    manager = build_manager(
        spec,
        storage,
        config.cache.prefix_index,
        tiers,
        policy=Retaining(
            make_policy(config.cache.eviction),
            clock,
            tenant_budgets(config.tenants, "num_blocks"),
            capacity=num_blocks,
        ),
        clock=clock,
    )
    return EngineCore(
        model=model,
        manager=manager,
        scheduler=_scheduler(manager, config, clock),
        runner=build_runner(model.decoder, storage),
        limits=EngineLimits(
            max_model_len=max_model_len,
            num_blocks=num_blocks,
            block_size=spec.block_size,
            kv_bytes_per_token=spec.bytes_per_token,
            kv_pool_bytes=pool_bytes(spec, num_blocks, max_open),
            kv_open_bytes=max_open * spec.bytes_per_open_block,
            min_cacheable_tokens=manager.min_cacheable_tokens,
            max_num_seqs=config.scheduler.max_num_seqs,
            vocab_size=model.config.vocab_size,
        ),
        namespace_of=_namespaces(config, model, spec.digest()),
        max_waiting=config.scheduler.max_waiting,
        clock=clock,
        integrity=integrity,
        sampling=ops.sampling(),
    )


def _load(config: OstinatoConfig, progress: LoadProgress | None) -> tuple[LoadedModel, OpsBackend]:
    options = KernelOptions(config.threads, config.weight_dtype, config.activation_dtype)
    ops = select_backend(config.backend, options)
    path = resolve_model(config.model, config.data_dir)

    def load() -> LoadedModel:
        return load_model(
            path, ops, config.data_dir, max_model_len=config.max_model_len, progress=progress
        )

    try:
        return load(), ops
    except UnsupportedKernelsError as error:
        ops = fallback_backend(config.backend, error)
    return load(), ops


def _max_model_len(config: OstinatoConfig, model: LoadedModel) -> int:
    own = model.config.max_position
    wanted = config.max_model_len
    if wanted is None:
        return own
    if not 2 <= wanted <= own:
        raise ConfigError(
            f"max_model_len must be between 2 and {own}, the context of {model.name}, not {wanted}"
        )
    return wanted


def _scheduler(manager: KVCacheManager, config: OstinatoConfig, clock: Clock) -> Scheduler:
    gate: PrefixGate = OpenGate()
    if config.cache.prefix_index != "none":
        gate = SharedPrefixGate(manager.block_size)
    order: WaitingOrder = LongestPrefixFirst(config.scheduler.age_weight)
    if config.scheduler.policy == "fcfs":
        order = FirstComeFirstServed()
    service = tenant_service(config.tenants)
    loader = None if manager.tiers is None else PrefixLoader(manager, manager.tiers)
    return Scheduler(
        manager, config.scheduler, clock, order, gate, service, loader, config.cache.expire
    )


def _namespaces(config: OstinatoConfig, model: LoadedModel, kv_digest: bytes) -> NamespaceOf:
    factory = NamespaceFactory(load_or_create_secret(config.secret_file))

    def namespace_of(request: EngineRequest) -> NamespaceKey:
        return factory.key(
            CacheNamespace(
                tenant=request.tenant,
                model_digest=model.digest,
                kv_digest=kv_digest,
                salt=request.cache_salt,
            )
        )

    return namespace_of
