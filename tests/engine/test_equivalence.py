"""Guards the answers: whatever cache and scheduler do, the logits of a request are those that it has alone.

Logits are compared and not text, since two nearly equal logits may change places. For the same reason all
runs are forced along the same tokens, in place of the sampled ones. The native kernels run with float32
activations; what they compute depends on the company in a batch only by the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ostinato.engine.core import EngineCore
from ostinato.models.loader import LoadedModel
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
from tests.engine.tiny_engine import load_tiny, spy_on
from tests.engine.tiny_engine import tiny_core as build_tiny_core
from tests.ops.backends import EXACT_BACKENDS, exact_backend

TOLERANCE = 1e-4

CoreFactory = Callable[..., EngineCore]
BACKENDS = ["reference", *EXACT_BACKENDS[-1:]]
"""NumPy, and the best native kernels of this machine where there are any."""


@pytest.fixture(scope="module", params=sorted(set(BACKENDS)))
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "mistral"])
def model(
    request: pytest.FixtureRequest, backend: str, tmp_path_factory: pytest.TempPathFactory
) -> LoadedModel:
    """The Mistral has a sliding window much shorter than the prompts."""
    options = {"head_dim": 32} if request.param == "qwen3" else {}
    if request.param == "mistral":
        options = {"sliding_window": 40}
    folder = tmp_path_factory.mktemp("models")
    return load_tiny(folder, request.param, exact_backend(backend), **options)


@pytest.fixture
def tiny_core(backend: str) -> CoreFactory:
    """Engines on the backend that loaded the model."""
    return partial(build_tiny_core, ops=exact_backend(backend))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(autouse=True)
def forced_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    force_tokens(monkeypatch)


_ALONE: dict[tuple[Path, int], Rows] = {}


def alone(tiny_core: CoreFactory, model: LoadedModel, data_dir: Path, seed: int) -> Rows:
    """No cache, one chunk, no company; computed once a model and seed."""
    if (model.path, seed) not in _ALONE:
        _ALONE[model.path, seed] = _run_alone(tiny_core, model, data_dir, seed)
    return _ALONE[model.path, seed]


def _run_alone(tiny_core: CoreFactory, model: LoadedModel, data_dir: Path, seed: int) -> Rows:
    core = tiny_core(model, data_dir, cache={"prefix_index": "none"})
    spy = spy_on(core)
    add(core, seed)
    drain(core)
    rows = rows_of(spy, f"r{seed}")
    assert sorted(rows) == list(range(PROMPT_TOKENS, PROMPT_TOKENS + OUTPUT_TOKENS))
    return rows


def assert_close(rows: Rows, reference: Rows) -> None:
    assert sorted(rows) == sorted(reference)
    for position, row in rows.items():
        np.testing.assert_allclose(row, reference[position], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("prefix_index", ["radix", "block_hash", "none"])
@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_chunks_and_cache_do_not_change_logits(
    tiny_core: CoreFactory, model: LoadedModel, data_dir: Path, prefix_index: str, chunk: int
) -> None:
    core = tiny_core(
        model,
        data_dir,
        cache={"prefix_index": prefix_index},
        scheduler={"max_num_batched_tokens": chunk, "max_num_seqs": 4},
    )
    spy = spy_on(core)
    reference = alone(tiny_core, model, data_dir, 1)
    for name in ("cold", "warm"):
        add(core, 1, name)
        drain(core)
        assert_close(rows_of(spy, name), reference)
    reused = {"radix": PROMPT_TOKENS - 1, "block_hash": 144, "none": 0}[prefix_index]
    assert spy.computed["cold"] - spy.computed["warm"] == reused


def test_company_in_the_batch_does_not_change_logits(
    tiny_core: CoreFactory, model: LoadedModel, data_dir: Path
) -> None:
    core = tiny_core(model, data_dir, scheduler={"max_num_batched_tokens": 64})
    spy = spy_on(core)
    for seed in range(5):
        add(core, seed)
        core.step()
    drain(core)
    assert max(len(batch) for batch in spy.batches) > 3
    for seed in range(5):
        assert_close(rows_of(spy, f"r{seed}"), alone(tiny_core, model, data_dir, seed))


@pytest.mark.parametrize("prefix_index", ["radix", "none"])
def test_preemption_does_not_change_logits(
    tiny_core: CoreFactory, model: LoadedModel, data_dir: Path, prefix_index: str
) -> None:
    core = tiny_core(model, data_dir, cache={"prefix_index": prefix_index, "num_blocks": 31})
    spy = spy_on(core)
    for seed in range(3):
        add(core, seed)
    drain(core)
    assert core.stats().preemptions_total > 0
    for seed in range(3):
        assert_close(rows_of(spy, f"r{seed}"), alone(tiny_core, model, data_dir, seed))


def test_forked_answers_have_the_logits_of_a_request_of_their_own(
    tiny_core: CoreFactory, model: LoadedModel, data_dir: Path
) -> None:
    core = tiny_core(model, data_dir)
    spy = spy_on(core)
    add(core, 2, "forked", n=3)
    drain(core)
    reference = alone(tiny_core, model, data_dir, 2)
    assert_close(rows_of(spy, "forked"), reference)
    for index in (1, 2):
        own = rows_of(spy, "forked", index)
        assert_close(own, {position: reference[position] for position in own})
        assert len(own) == OUTPUT_TOKENS - 1


def test_a_copied_block_is_as_good_as_a_computed_one(
    tiny_core: CoreFactory, model: LoadedModel, data_dir: Path
) -> None:
    """The second prompt leaves the first in the middle of a block, which is then copied and written on."""
    core = tiny_core(model, data_dir)
    spy = spy_on(core)
    core.add_request(
        request("first", [*prompt(3)[:71], *prompt(4, 40)], seed=0, max_tokens=2, ignore_eos=True)
    )
    drain(core)
    add(core, 3)
    drain(core)
    assert spy.computed["r3"] == PROMPT_TOKENS - 71 + OUTPUT_TOKENS - 1
    assert_close(rows_of(spy, "r3"), alone(tiny_core, model, data_dir, 3))


def test_sixty_four_requests_in_a_pool_too_small_get_the_logits_of_an_unloaded_engine(
    backend: str, tiny_core: CoreFactory, tmp_path: Path
) -> None:
    model = load_tiny(tmp_path, ops=exact_backend(backend))
    core = tiny_core(model, tmp_path, cache={"num_blocks": 40})
    spy = spy_on(core)
    for seed in range(64):
        add(core, seed)
    drain(core)
    assert core.stats().preemptions_total > 0
    assert core.stats().blocks.in_use == 0
    for seed in range(64):
        assert_close(rows_of(spy, f"r{seed}"), alone(tiny_core, model, tmp_path, seed))
