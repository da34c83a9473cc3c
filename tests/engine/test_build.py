"""Guards start-up: a setting that cannot work is refused with the reason, the pool has a sensible size."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostinato.cache.layout import KVCacheSpec, KVDtype
from ostinato.clock import ManualClock
from ostinato.config import OstinatoConfig
from ostinato.config_sections import CacheConfig, SchedulerConfig
from ostinato.engine.build import build_core, build_engine
from ostinato.engine.memory import (
    MAX_FULL_CONTEXTS,
    available_memory,
    blocks_in,
    max_open_blocks,
    pool_blocks,
    pool_bytes,
    total_memory,
)
from ostinato.errors import ConfigError, ModelNotFoundError, UnsupportedKernelsError
from tests.engine.harness import request
from tests.ops.backends import needs_native
from tests.tiny import TINY_VOCAB_SIZE, write_tiny_model

SPEC = KVCacheSpec(2, 2, 16, KVDtype.FP16, 16)
INT8 = KVCacheSpec(2, 2, 16, KVDtype.INT8, 16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), max_position=256)


def config(model: Path, data_dir: Path, **settings: object) -> OstinatoConfig:
    return OstinatoConfig(model=str(model), data_dir=data_dir, **settings)


def test_the_number_of_blocks_wins_over_bytes() -> None:
    assert pool_blocks(CacheConfig(num_blocks=50, kv_memory_bytes=10**9), SPEC, 512, 0) == 50


def test_bytes_are_turned_into_whole_blocks() -> None:
    size = 100 * SPEC.bytes_per_block + 1
    assert pool_blocks(CacheConfig(kv_memory_bytes=size), SPEC, 512, 0) == 100


def test_the_default_pool_holds_at_most_sixty_four_full_contexts() -> None:
    assert pool_blocks(CacheConfig(), SPEC, 64, 0) == MAX_FULL_CONTEXTS * 4


def test_the_default_pool_takes_at_most_a_quarter_of_the_free_memory() -> None:
    huge = KVCacheSpec(100, 64, 128, KVDtype.FP32, 16)
    blocks = pool_blocks(CacheConfig(), huge, 1_000_000, 0)
    assert 0 < blocks * huge.bytes_per_block <= available_memory() * 0.3


@pytest.mark.parametrize("cache", [CacheConfig(num_blocks=3), CacheConfig(kv_memory_bytes=1)])
def test_a_pool_that_could_serve_nobody_is_refused(cache: CacheConfig) -> None:
    with pytest.raises(ConfigError, match="at least 4 blocks"):
        pool_blocks(cache, SPEC, 512, 0)


@pytest.mark.parametrize(
    "cache", [CacheConfig(num_blocks=10**9), CacheConfig(kv_memory_bytes=2**60)]
)
def test_a_pool_larger_than_the_machine_is_refused_with_what_fits(cache: CacheConfig) -> None:
    with pytest.raises(ConfigError, match=r"this machine has .* of memory: at most [\d,]+ blocks"):
        pool_blocks(cache, SPEC, 512, 0)


def test_more_than_is_free_may_be_asked_for_but_not_more_than_there_is() -> None:
    most = total_memory() // SPEC.bytes_per_block
    assert pool_blocks(CacheConfig(num_blocks=most), SPEC, 512, 0) == most
    with pytest.raises(ConfigError, match="this machine has"):
        pool_blocks(CacheConfig(num_blocks=most + 1), SPEC, 512, 0)


@given(memory=st.integers(0, 10**7), max_open=st.integers(0, 200))
@example(memory=pool_bytes(INT8, 7, 6), max_open=6)
def test_a_pool_with_open_blocks_fills_the_memory_and_no_more(memory: int, max_open: int) -> None:
    blocks = blocks_in(memory, INT8, max_open)
    assert pool_bytes(INT8, blocks, max_open) <= memory < pool_bytes(INT8, blocks + 1, max_open)


def test_plain_formats_have_no_open_blocks() -> None:
    assert max_open_blocks(SchedulerConfig(), SPEC) == 0
    assert pool_bytes(SPEC, 7, 0) == 7 * SPEC.bytes_per_block


@given(data=st.data(), seqs=st.integers(1, 12), block_size=st.integers(1, 9))
def test_no_step_writes_to_more_blocks_than_may_be_open(
    data: st.DataObject, seqs: int, block_size: int
) -> None:
    budget = data.draw(st.integers(seqs, 60))
    spec = KVCacheSpec(1, 1, 2, KVDtype.INT8, block_size)
    config = SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget)
    written, left = 0, budget
    for _ in range(data.draw(st.integers(1, seqs))):
        if left == 0:
            break
        count = data.draw(st.integers(1, left))
        start = data.draw(st.integers(0, block_size - 1))
        written += (start + count - 1) // block_size + 1
        left -= count
    assert written <= max_open_blocks(config, spec)


def test_a_container_s_limit_is_all_the_memory_there_is(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4096\n", encoding="ascii")
    assert total_memory(tmp_path) == 4096
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    assert total_memory(tmp_path) == total_memory(tmp_path / "none") > 1024**2


def test_free_memory_is_read_where_the_system_tells_it(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  900 kB\nMemAvailable:     12 kB\n", encoding="ascii")
    assert available_memory(meminfo) == 12 * 1024
    assert available_memory(tmp_path / "none") > 1024**2


def test_an_engine_knows_its_limits(model: Path, tmp_path: Path) -> None:
    engine = build_engine(
        config(model, tmp_path, max_model_len=200, cache={"num_blocks": 32}), clock=ManualClock()
    )
    limits = engine.limits
    assert (limits.max_model_len, limits.pool_tokens, limits.block_size) == (200, 512, 16)
    assert limits.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert limits.vocab_size == TINY_VOCAB_SIZE
    assert limits.min_cacheable_tokens == 1


@pytest.mark.parametrize("wanted", [257, 1])
def test_a_context_that_the_model_does_not_have_is_refused(
    model: Path, tmp_path: Path, wanted: int
) -> None:
    with pytest.raises(ConfigError, match="256"):
        build_core(config(model, tmp_path, max_model_len=wanted), clock=ManualClock())


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no-such-model"):
        build_core(config(Path("no-such-model"), tmp_path), clock=ManualClock())


def test_the_secret_is_made_once_and_lies_in_the_data_folder(model: Path, tmp_path: Path) -> None:
    build_core(config(model, tmp_path, cache={"num_blocks": 8}), clock=ManualClock())
    secret = (tmp_path / "secret").read_bytes()
    build_core(config(model, tmp_path, cache={"num_blocks": 8}), clock=ManualClock())
    assert (tmp_path / "secret").read_bytes() == secret


def test_tenant_and_salt_decide_what_is_shared(model: Path, tmp_path: Path) -> None:
    core = build_core(config(model, tmp_path, cache={"num_blocks": 32}), clock=ManualClock())
    cached = []
    for number, (tenant, salt) in enumerate((("a", None), ("b", None), ("a", "x"), ("a", None))):
        core.add_request(request(f"r{number}", range(40), tenant=tenant, salt=salt, max_tokens=1))
        (delta,) = core.step()
        cached.append(delta.report.cached_tokens)
    assert cached == [0, 0, 0, 39]


@pytest.fixture(scope="module")
def odd_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 24 elements, for which there are no native kernels."""
    return write_tiny_model(tmp_path_factory.mktemp("odd"), "qwen3", max_position=256)


@needs_native
def test_a_model_that_the_native_kernels_cannot_run_is_served_by_numpy_with_one_warning(
    odd_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        core = build_core(config(odd_model, tmp_path, threads=1), clock=ManualClock())
    assert core.model.decoder.backend.name == "reference"
    (record,) = caplog.records
    assert "multiple of 16, not 24" in record.getMessage()
    assert "NumPy backend runs instead" in record.getMessage()
    core.add_request(request("r", range(20), max_tokens=2, ignore_eos=True))
    assert [len(core.step()) for _ in range(2)] == [1, 1]


@needs_native
def test_asking_for_kernels_that_cannot_run_a_model_is_an_error_that_names_the_way_out(
    odd_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedKernelsError, match=r"not 24; --backend reference"):
        build_core(config(odd_model, tmp_path, backend="cpu", threads=1), clock=ManualClock())
