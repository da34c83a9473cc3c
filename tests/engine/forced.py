"""Requests that take scripted tokens, so that the logits of two engines can be compared row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

from ostinato.engine import core as core_module
from ostinato.engine.core import EngineCore
from ostinato.engine.sampler import SampledToken, SamplerState, sample
from tests.engine.harness import request

PROMPT_TOKENS = 150
OUTPUT_TOKENS = 16

Rows: TypeAlias = dict[int, np.ndarray]
"""Logits by the number of tokens before them."""


def prompt(seed: int, length: int = PROMPT_TOKENS) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def script(seed: int) -> list[int]:
    """The tokens that requests with this seed are made to generate."""
    return prompt(1_000 + seed, OUTPUT_TOKENS)


def force_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample really, then take the token that the script wants: `params.seed` names the script."""

    def sample_forced(
        logits: Any, states: Sequence[SamplerState], kernels: Any
    ) -> list[SampledToken]:
        sample(logits, states, kernels)
        return [
            SampledToken(script(state.params.seed)[state.num_output_tokens]) for state in states
        ]

    monkeypatch.setattr(core_module, "sample", sample_forced)


def add(core: EngineCore, seed: int, name: str | None = None, **options: Any) -> None:
    core.add_request(
        request(
            name or f"r{seed}",
            prompt(seed),
            seed=seed,
            max_tokens=OUTPUT_TOKENS,
            ignore_eos=True,
            **options,
        )
    )


def drain(core: EngineCore) -> None:
    for _ in range(5_000):
        if not core.has_work:
            break
        core.step()
        core.check_integrity()
    assert not core.has_work
    assert core.take_failures() == []


def rows_of(spy: Any, name: str, index: int = 0) -> Rows:
    return {key[2]: row for key, row in spy.logits.items() if key[:2] == (name, index)}
