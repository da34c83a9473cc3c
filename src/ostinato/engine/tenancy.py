"""From the settings about tenants to what the engine's parts take: weights and budgets."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ostinato.cache.retention import TenantBudgets
from ostinato.cache.types import TenantId
from ostinato.config_sections import TenantConfig
from ostinato.engine.fair_share import TenantService

EVERYBODY = TenantId("*")
"""In the settings: all tenants. Among limits, as far as their own entry says nothing else."""

Place: TypeAlias = Literal["num_blocks", "ram_bytes", "disk_bytes"]
"""The setting that bounds a tenant's part of it."""


def tenant_service(config: TenantConfig) -> TenantService:
    """Fresh counters with the configured weights."""
    weights = {
        TenantId(name): limits.weight
        for name, limits in config.limits.items()
        if limits.weight is not None
    }
    default = weights.pop(EVERYBODY, 1.0)
    return TenantService(weights, default)


def tenant_budgets(config: TenantConfig, place: Place) -> TenantBudgets:
    """Budgets of one place; each place charges its own."""
    limits: dict[TenantId, int] = {}
    for name, bounds in config.limits.items():
        limit: int | None = getattr(bounds, place)
        if limit is not None:
            limits[TenantId(name)] = limit
    default = limits.pop(EVERYBODY, None)
    return TenantBudgets(limits, default)
