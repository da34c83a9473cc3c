"""Engines to be compared: one loaded model, a K/V pool each, driven in this process without HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from ostinato.cache.report import CacheReport
from ostinato.cache.types import TokenArray
from ostinato.clock import SystemClock
from ostinato.config import OstinatoConfig, load_config
from ostinato.config_sections import CacheConfig, TiersConfig
from ostinato.engine.async_engine import STALL_SECONDS
from ostinato.engine.build import assemble_core
from ostinato.engine.core import EngineCore
from ostinato.engine.integrity import RaiseViolations
from ostinato.engine.request import EngineRequest
from ostinato.engine.sampling_params import SamplingParams
from ostinato.models.loader import LoadedModel, load_model
from ostinato.models.registry import resolve_model
from ostinato.ops.base import OpsBackend
from ostinato.ops.select import select_backend

CLOCK = SystemClock()
_request_ids = count()


@dataclass(frozen=True, slots=True)
class Bench:
    """A model in memory, from which engines are made."""

    model: LoadedModel
    ops: OpsBackend
    config: OstinatoConfig

    @classmethod
    def load(cls, model: str | None = None, backend: str = "auto") -> Bench:
        config = load_config({"backend": backend, **({"model": model} if model else {})})
        ops = select_backend(config.backend)
        path = resolve_model(config.model, config.data_dir)
        return cls(load_model(path, ops, config.data_dir), ops, config)

    @property
    def backend(self) -> str:
        """Name and facts of the kernels."""
        return str(self.ops.info)

    def engine(
        self,
        prefix_index: Literal["radix", "block_hash", "none"],
        pool_tokens: int,
        tiers: TiersConfig | None = None,
    ) -> EngineCore:
        """An engine with an empty pool of its own, over `tiers` if there are any."""
        cache = CacheConfig(prefix_index=prefix_index, num_blocks=-(-pool_tokens // 16))
        update = {"cache": cache, "tiers": tiers or TiersConfig()}
        config = self.config.model_copy(update=update)
        return assemble_core(self.model, self.ops, config, clock=CLOCK, integrity=RaiseViolations())

    def prompt(self, rng: np.random.Generator, length: int) -> TokenArray:
        """Random token ids; what they mean costs nothing and changes nothing."""
        return rng.integers(1000, self.model.config.vocab_size, length).astype(np.int32)


@dataclass(slots=True)
class Timing:
    """What one request experienced. Seconds."""

    ttft: float = 0.0
    total: float = 0.0
    output_tokens: int = 0
    report: CacheReport | None = None


def run_together(
    core: EngineCore, prompts: Sequence[TokenArray], max_tokens: int
) -> tuple[float, list[Timing]]:
    """Add all requests at once and run the engine until they are done; wall time and each one's timing."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    timings: dict[str, Timing] = {}
    start = CLOCK.monotonic()
    for prompt in prompts:
        request_id = f"bench-{next(_request_ids)}"
        timings[request_id] = Timing()
        core.add_request(
            EngineRequest(request_id=request_id, prompt_token_ids=prompt, params=params)
        )
    while core.has_work:
        if core.is_stalled:
            core.tiers.wait(STALL_SECONDS)
        for delta in core.step():
            timing = timings[delta.request_id]
            now = CLOCK.monotonic() - start
            timing.ttft = timing.ttft or now
            timing.total = now
            timing.output_tokens = delta.num_output_tokens
            timing.report = delta.report
        core.tiers.tend()
    core.check_integrity()
    return CLOCK.monotonic() - start, list(timings.values())
