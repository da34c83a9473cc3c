"""Engines around a tiny random model with real arithmetic: float32 weights and float32 K/V."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.engine.build import assemble_core
from ostinato.engine.core import EngineCore
from ostinato.engine.integrity import RaiseViolations
from ostinato.models.loader import LoadedModel, load_model
from ostinato.ops.base import OpsBackend
from ostinato.ops.reference import ReferenceBackend
from tests.engine.harness import SpyRunner
from tests.tiny import write_tiny_model

MAX_POSITION = 512


def load_tiny(
    folder: Path, architecture: Any = "llama", ops: OpsBackend | None = None, **config: Any
) -> LoadedModel:
    """A model with 2 layers and grouped-query attention, in `ops` or the NumPy backend."""
    path = write_tiny_model(
        folder / architecture, architecture, max_position=MAX_POSITION, **config
    )
    return load_model(path, ops or ReferenceBackend(), folder)


def tiny_core(
    model: LoadedModel,
    data_dir: Path,
    *,
    cache: dict[str, Any] | None = None,
    scheduler: dict[str, Any] | None = None,
    tiers: dict[str, Any] | None = None,
    tenants: dict[str, Any] | None = None,
    ops: OpsBackend | None = None,
) -> EngineCore:
    """An engine that raises when an invariant breaks; `ops` as for `load_tiny`."""
    config = OstinatoConfig(
        data_dir=data_dir,
        cache={"kv_dtype": "fp32", "block_size": 16, "num_blocks": 256, **(cache or {})},
        scheduler=scheduler or {},
        tiers=tiers or {},
        tenants=tenants or {},
    )
    return assemble_core(
        model, ops or ReferenceBackend(), config, clock=ManualClock(), integrity=RaiseViolations()
    )


def spy_on(core: EngineCore) -> SpyRunner:
    """Keep the logits of everything that `core` computes from now on."""
    spy = SpyRunner(core._runner)
    core._runner = spy
    return spy
