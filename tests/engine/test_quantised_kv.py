"""Guards quantised K/V in the engine: reuse, preemption, forks and copies cost no more than the format does.

What a token sees is in full precision if it was computed in the same step or lies in the sequence's newest
block, else sealed. So how a prompt is cut into steps changes its logits a little, by design, and most tests
compare with fp16 within what the format costs. Where two runs seal at the same points they must agree exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.cache.quantised_storage import QuantisedKVStorage
from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.config_sections import SchedulerConfig
from ostinato.engine.build import assemble_core
from ostinato.engine.core import EngineCore
from ostinato.engine.integrity import RaiseViolations
from ostinato.engine.memory import max_open_blocks
from ostinato.models.loader import LoadedModel
from ostinato.ops.reference import ReferenceBackend
from tests.engine.forced import (
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    Rows,
    add,
    drain,
    force_tokens,
    prompt,
    rows_of,
)
from tests.engine.harness import request
from tests.engine.tiny_engine import load_tiny, spy_on, tiny_core

EXACT = 2e-3
"""What is left where two runs see the same: a sum in another order may round a value to its neighbour."""
KL_TOLERANCE = {"int8": 1e-3, "fp8": 1.5e-2, "int4": 1e-1}
"""Mean KL divergence from fp16, in nats; about four times the most that these tests find (2.4e-4, 3.7e-3 and
3.0e-2). They are as far apart as the formats' steps, which enter squared: 1/254 and 1/16 of a value, 1/30 of a
group's range. The random models have logits with a deviation of 1, so unrelated predictions differ by 1 nat."""

FORMATS = ["int8", "fp8", "int4"]
all_formats = pytest.mark.parametrize("kv_dtype", FORMATS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def forced_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    force_tokens(monkeypatch)


def storage_of(core: EngineCore) -> QuantisedKVStorage:
    storage = core._manager.storage
    assert isinstance(storage, QuantisedKVStorage)
    return storage


def make(
    model: LoadedModel, data_dir: Path, kv_dtype: str, scheduler: Any = None, **cache: Any
) -> EngineCore:
    return tiny_core(model, data_dir, cache={"kv_dtype": kv_dtype, **cache}, scheduler=scheduler)


def drain_checked(core: EngineCore) -> None:
    drain(core)
    storage_of(core).check_integrity()


_ALONE: dict[tuple[Path, str, int], Rows] = {}


def alone(model: LoadedModel, data_dir: Path, seed: int, kv_dtype: str = "fp16") -> Rows:
    """No cache, one chunk, no company; computed once a model, format and seed."""
    if (model.path, kv_dtype, seed) not in _ALONE:
        core = make(model, data_dir, kv_dtype, prefix_index="none")
        spy = spy_on(core)
        add(core, seed)
        drain(core)
        rows = rows_of(spy, f"r{seed}")
        assert sorted(rows) == list(range(PROMPT_TOKENS, PROMPT_TOKENS + OUTPUT_TOKENS))
        _ALONE[model.path, kv_dtype, seed] = rows
    return _ALONE[model.path, kv_dtype, seed]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    normal: np.ndarray = shifted - np.log(np.exp(shifted).sum())
    return normal


def divergence(rows: Rows, reference: Rows) -> float:
    """Mean KL divergence of `rows` from `reference`, in nats."""
    assert sorted(rows) == sorted(reference)
    pairs = [(log_softmax(reference[at]), log_softmax(row)) for at, row in rows.items()]
    return float(np.mean([(np.exp(true) * (true - found)).sum() for true, found in pairs]))


def assert_exact(rows: Rows, reference: Rows) -> None:
    assert sorted(rows) == sorted(reference)
    for position, row in rows.items():
        np.testing.assert_allclose(row, reference[position], rtol=0, atol=EXACT)


@all_formats
def test_reuse_of_blocks_that_were_sealed_at_the_same_points_is_exact(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    """In steps of one block, every token sees all blocks but its own sealed, cached or not."""
    block_by_block = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
    core = make(model, tmp_path, kv_dtype, block_by_block, prefix_index="block_hash")
    spy = spy_on(core)
    for name in ("cold", "warm"):
        add(core, 1, name)
        drain_checked(core)
    assert spy.computed["cold"] - spy.computed["warm"] == PROMPT_TOKENS // 16 * 16
    assert_exact(rows_of(spy, "warm"), rows_of(spy, "cold"))


@all_formats
@pytest.mark.parametrize("prefix_index", ["radix", "block_hash", "none"])
@pytest.mark.parametrize("chunk", [7, 512])
def test_chunks_and_cache_cost_no_more_than_the_format(
    model: LoadedModel, tmp_path: Path, kv_dtype: str, prefix_index: str, chunk: int
) -> None:
    scheduler = {"max_num_batched_tokens": chunk, "max_num_seqs": 4}
    core = make(model, tmp_path, kv_dtype, scheduler, prefix_index=prefix_index)
    spy = spy_on(core)
    for name in ("cold", "warm"):
        add(core, 1, name)
        drain_checked(core)
        cost = divergence(rows_of(spy, name), alone(model, tmp_path, 1))
        assert 0 < cost < KL_TOLERANCE[kv_dtype]


@all_formats
def test_a_prompt_computed_in_one_step_is_as_exact_as_fp16(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    first = alone(model, tmp_path, 1, kv_dtype)[PROMPT_TOKENS]
    np.testing.assert_allclose(first, alone(model, tmp_path, 1)[PROMPT_TOKENS], atol=EXACT)


@all_formats
def test_preemption_and_resumption_cost_no_more_than_the_format(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    core = make(model, tmp_path, kv_dtype, num_blocks=31)
    spy = spy_on(core)
    for seed in range(3):
        add(core, seed)
    drain_checked(core)
    assert core.stats().preemptions_total > 0
    for seed in range(3):
        cost = divergence(rows_of(spy, f"r{seed}"), alone(model, tmp_path, seed))
        assert cost < KL_TOLERANCE[kv_dtype]


@all_formats
def test_forked_answers_have_exactly_the_logits_of_a_request_of_their_own(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    """The newest block is copied as it is, in fp16."""
    core = make(model, tmp_path, kv_dtype)
    spy = spy_on(core)
    add(core, 2, "forked", n=3)
    drain_checked(core)
    reference = alone(model, tmp_path, 2, kv_dtype)
    for index in range(3):
        own = rows_of(spy, "forked", index)
        assert len(own) >= OUTPUT_TOKENS - 1
        assert_exact(own, {position: reference[position] for position in own})


@all_formats
def test_a_block_copied_from_its_middle_costs_no_more_than_the_format(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    core = make(model, tmp_path, kv_dtype)
    spy = spy_on(core)
    other = [*prompt(3)[:71], *prompt(4, 40)]
    core.add_request(request("first", other, seed=0, max_tokens=2, ignore_eos=True))
    drain_checked(core)
    add(core, 3)
    drain_checked(core)
    assert spy.computed["r3"] == PROMPT_TOKENS - 71 + OUTPUT_TOKENS - 1
    assert divergence(rows_of(spy, "r3"), alone(model, tmp_path, 3)) < KL_TOLERANCE[kv_dtype]


@all_formats
def test_a_partial_block_that_was_released_and_sealed_is_found_and_continued(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    """165 computed tokens leave the last block partial: the next turn goes on in the middle of it."""
    core = make(model, tmp_path, kv_dtype)
    spy = spy_on(core)
    add(core, 5)
    drain_checked(core)
    storage = storage_of(core)
    assert storage.num_open == 1
    storage.seal(np.arange(storage.num_blocks))
    add(core, 5, "again")
    drain_checked(core)
    assert spy.computed["again"] == 1 + OUTPUT_TOKENS - 1
    assert divergence(rows_of(spy, "again"), alone(model, tmp_path, 5)) < KL_TOLERANCE[kv_dtype]


@all_formats
def test_a_step_that_failed_after_sealing_is_computed_again(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    core = make(model, tmp_path, kv_dtype, {"max_num_batched_tokens": 40, "max_num_seqs": 4})
    spy = spy_on(core)
    failures = iter([False, True])

    def fail_once(scheduled: Any, logits: Any) -> None:
        if next(failures, False):
            raise RuntimeError("lost")

    spy.spoil = fail_once
    for seed in (6, 7):
        add(core, seed)
    drain_checked(core)
    for seed in (6, 7):
        cost = divergence(rows_of(spy, f"r{seed}"), alone(model, tmp_path, seed))
        assert cost < KL_TOLERANCE[kv_dtype]


def test_many_requests_in_a_small_pool_keep_few_blocks_open(tmp_path: Path) -> None:
    model = load_tiny(tmp_path)
    scheduler = SchedulerConfig(max_num_batched_tokens=20, max_num_seqs=6)
    core = make(model, tmp_path, "int8", scheduler.model_dump(), num_blocks=40)
    storage = storage_of(core)
    most = max_open_blocks(scheduler, storage.spec)
    assert len(storage.open) == most == 6 + 6 + 8 // 16
    spy = spy_on(core)
    for seed in range(16):
        add(core, seed)
    drain_checked(core)
    assert core.stats().preemptions_total > 0
    for seed in range(16):
        cost = divergence(rows_of(spy, f"r{seed}"), alone(model, tmp_path, seed))
        assert cost < KL_TOLERANCE["int8"]


def test_the_pool_that_is_announced_is_the_pool_that_is_allocated(
    model: LoadedModel, tmp_path: Path
) -> None:
    config = OstinatoConfig(
        data_dir=tmp_path, cache={"kv_dtype": "int8", "kv_memory_bytes": 3_000_000}
    )
    core = assemble_core(
        model, ReferenceBackend(), config, clock=ManualClock(), integrity=RaiseViolations()
    )
    storage = storage_of(core)
    assert core.limits.kv_pool_bytes == storage.nbytes <= 3_000_000
    assert core.limits.kv_open_bytes == storage.open.nbytes
    assert storage.nbytes + storage.spec.bytes_per_block > 3_000_000
