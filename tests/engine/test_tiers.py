"""Guards K/V that comes back: from RAM, from disk, after a restart and in a tier's own format, logits are those
of an engine without a past; and what the settings about tiers mean: sensible defaults, reasons for refusals.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ostinato.cache.types import Tier
from ostinato.config import OstinatoConfig, load_config
from ostinato.engine.build import build_engine
from ostinato.engine.core import EngineCore
from ostinato.engine.llm import LLM
from ostinato.engine.memory import total_memory
from ostinato.engine.sampling_params import SamplingParams
from ostinato.engine.tiers import DEFAULT_DISK_BYTES, with_serving_tiers
from ostinato.errors import ConfigError
from ostinato.models.loader import LoadedModel
from tests.engine.harness import Collected, collect, request
from tests.engine.tiny_engine import load_tiny, spy_on, tiny_core

PROMPT = np.random.default_rng(7).integers(0, 250, 200).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_tiny(tmp_path_factory.mktemp("model"))


def serve(core: EngineCore, name: str, prompt: list[int] = PROMPT) -> Collected:
    core.add_request(request(name, prompt, max_tokens=4, ignore_eos=True))
    answers: dict[tuple[str, int], Collected] = {}
    while core.has_work:
        if core.is_stalled:
            core.tiers.wait(5.0)
        collect(core.step(), answers)
        core.check_integrity()
    return answers[name, 0]


def settle(core: EngineCore) -> None:
    tiers = core._manager.tiers
    assert tiers is not None
    core.step()
    while tiers.num_in_flight:
        core.tiers.wait(5.0)
        core.step()


def logits_of(core: EngineCore, name: str) -> tuple[Collected, np.ndarray[Any, Any]]:
    spy = spy_on(core)
    answer = serve(core, name)
    return answer, np.array([spy.logits[name, 0, len(PROMPT) + step] for step in range(4)])


@pytest.mark.parametrize("kv_dtype", ["fp32", "fp16", "int8"])
def test_logits_after_ram_disk_and_a_restart_are_those_of_an_engine_without_a_past(
    model: LoadedModel, tmp_path: Path, kv_dtype: str
) -> None:
    cache = {"kv_dtype": kv_dtype}
    fresh = tiny_core(model, tmp_path / "fresh", cache=cache)
    expected_answer, expected = logits_of(fresh, "fresh")
    # A cold prefill reads what it computes in full precision, a warm one reads sealed blocks.
    tolerance = {"fp32": 1e-4, "fp16": 0.01, "int8": 0.15}[kv_dtype]
    tiers = {"ram_bytes": "8MiB", "disk_bytes": "8MiB", "flush_seconds": 10}
    core = tiny_core(model, tmp_path, cache=cache, tiers=tiers)
    serve(core, "first")
    for source in ("ram", "disk", "restart"):
        settle(core)
        if source == "restart":
            core.close()
            core = tiny_core(model, tmp_path, cache=cache, tiers=tiers)
        else:
            assert core._manager.reset()
        if source == "disk":
            settle(core)
            core._manager.tiers._stores.write_all_down()  # type: ignore[union-attr]
            settle(core)
            core._manager.tiers._tiers[0].erase([e.key for e in ram_entries(core)])  # type: ignore[union-attr]
        answer, logits = logits_of(core, source)
        report = answer.last.report
        assert report is not None
        tier = Tier.RAM if source == "ram" else Tier.DISK
        assert dict(report.read_by_tier) == {tier: 192}
        np.testing.assert_allclose(logits, expected, atol=tolerance)
        if kv_dtype == "fp32":
            assert answer.tokens == expected_answer.tokens
    core.close()


def ram_entries(core: EngineCore) -> list[Any]:
    tiers = core._manager.tiers
    assert tiers is not None
    return list(tiers._tiers[0]._directory.entries())  # type: ignore[attr-defined]


@pytest.mark.parametrize("tier_dtype", ["fp16", "int8", "fp8"])
def test_a_tier_may_keep_k_v_in_a_format_of_its_own(
    model: LoadedModel, tmp_path: Path, tier_dtype: str
) -> None:
    expected = logits_of(tiny_core(model, tmp_path / "fresh"), "fresh")[1]
    core = tiny_core(model, tmp_path, tiers={"ram_bytes": "8MiB", "kv_dtype": tier_dtype})
    serve(core, "first")
    assert core._manager.reset()
    answer, logits = logits_of(core, "again")
    assert answer.last.report is not None
    assert answer.last.report.read_by_tier == {Tier.RAM: 192}
    assert not np.array_equal(logits, expected)
    np.testing.assert_allclose(logits, expected, atol=0.2)
    stats = core.stats().tiers
    assert stats is not None
    fp32_bytes = core._manager.spec.bytes_per_block
    assert stats.tiers[0].used_bytes / stats.tiers[0].num_blocks <= fp32_bytes / 1.9
    core.close()


def test_a_server_has_tiers_by_default_and_a_script_has_not(tmp_path: Path) -> None:
    config = OstinatoConfig(data_dir=tmp_path)
    assert (config.tiers.ram_bytes, config.tiers.disk_bytes) == (None, None)
    served = with_serving_tiers(config)
    assert served.tiers.ram_bytes == total_memory() // 4
    assert served.tiers.disk_bytes == DEFAULT_DISK_BYTES
    chosen = OstinatoConfig(data_dir=tmp_path, tiers={"ram_bytes": "off", "disk_bytes": "1GiB"})
    served = with_serving_tiers(chosen)
    assert (served.tiers.ram_bytes, served.tiers.disk_bytes) == (0, 2**30)


def test_without_an_index_there_are_no_tiers_and_asking_for_one_is_refused(
    model: LoadedModel, tmp_path: Path
) -> None:
    off = {"prefix_index": "none"}
    config = with_serving_tiers(OstinatoConfig(data_dir=tmp_path, cache=off))
    assert not config.tiers.ram_bytes
    with pytest.raises(ConfigError, match="prefix caching is off"):
        tiny_core(model, tmp_path, cache=off, tiers={"ram_bytes": "1MiB"})


def test_a_ram_tier_larger_than_the_machine_is_refused(model: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this machine has"):
        tiny_core(model, tmp_path, tiers={"ram_bytes": 2**50})


def test_a_folder_in_use_is_refused_if_it_was_asked_for_and_done_without_if_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from ostinato.clock import SystemClock
    from tests.tiny import write_tiny_model

    path = write_tiny_model(tmp_path / "tiny", max_position=256)
    base = {"model": str(path), "data_dir": tmp_path, "cache": {"num_blocks": 8}}
    first = build_engine(with_serving_tiers(OstinatoConfig(**base)), clock=SystemClock())
    second = build_engine(with_serving_tiers(OstinatoConfig(**base)), clock=SystemClock())
    names = [[one.tier for one in engine.stats().tiers.tiers] for engine in (first, second)]  # type: ignore[union-attr]
    assert names == [[Tier.RAM, Tier.DISK], [Tier.RAM]]
    assert "no disk tier" in caplog.text
    with pytest.raises(ConfigError, match="in use by process"):
        build_engine(OstinatoConfig(**base, tiers={"disk_bytes": "1MiB"}), clock=SystemClock())
    for engine in (first, second):
        engine._core.close()


def test_an_llm_writes_nothing_unless_asked_and_then_finds_it_again(tmp_path: Path) -> None:
    from tests.tiny import write_tiny_model

    path = write_tiny_model(tmp_path / "tiny", max_position=256)
    params = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    prompt = list(range(100))
    settings: dict[str, Any] = {"data_dir": tmp_path, "cache": {"num_blocks": 32}}
    with LLM(path, **settings) as llm:
        llm.generate(prompt, params, use_tqdm=False)
    assert not (tmp_path / "kv").exists()
    settings["tiers"] = {"disk_bytes": "1MiB", "flush_seconds": 10}
    reports = []
    for _ in range(2):
        with LLM(path, **settings) as llm:
            reports.append(llm.generate(prompt, params, use_tqdm=False)[0].report)
    assert reports[0].read_by_tier == {}
    assert reports[1].read_by_tier == {Tier.DISK: 96}


@pytest.mark.parametrize(
    ("name", "value"), [("ram_bytes", "-1"), ("write_policy", "sometimes"), ("disk_keep_free", "1")]
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"tiers.{name}"):
        load_config({"tiers": {name: value}})


@pytest.mark.parametrize("expire", ["soft", "hard"])
def test_a_promise_of_a_request_reaches_the_tiers_and_ends_as_configured(
    model: LoadedModel, tmp_path: Path, expire: str
) -> None:
    core = tiny_core(model, tmp_path, cache={"expire": expire}, tiers={"ram_bytes": "8MiB"})
    asked = request("kept", PROMPT, max_tokens=1)
    core.add_request(replace(asked, retain=((len(PROMPT), 300.0),)))
    while core.has_work:
        core.step()
    settle(core)  # what is promised is copied at once
    assert core._manager.reset()
    assert {one.retention.until for one in ram_entries(core)} == {core._clock.time() + 300.0}
    core._clock.advance(301.0)  # type: ignore[attr-defined]
    found = serve(core, "late").last.report
    assert found is not None
    assert found.cached_tokens == (192 if expire == "soft" else 0)
    core.close()
