"""Guards the scrape: names, labels, and numbers that agree with the engine's; latencies from an injected
clock; one registry a server, so that two servers in a process do not mix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from ostinato.api.app import create_app
from ostinato.cache.report import CacheReport
from ostinato.cache.tiers.base import TierFailure, TierStats
from ostinato.cache.tiers.hierarchy import HierarchyStats
from ostinato.cache.tiers.loads import LoadCounters
from ostinato.cache.tiers.stores import StoreCounters
from ostinato.cache.tiers.transfer import Urgency
from ostinato.cache.types import MissReason, Tier
from ostinato.clock import ManualClock
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.insight.metrics import ServerMetrics
from tests.api.fake import CACHED_TOKENS, MODEL, FakeBackend

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == MODEL
            samples[sample.name.removeprefix("ostinato:"), frozenset(labels.items())] = sample.value
            assert sample.name.startswith("ostinato:")
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def delta(
    index: int = 0, tokens: int = 1, report: CacheReport | None = None, *, last: bool = False
) -> OutputDelta:
    return OutputDelta(
        request_id="r",
        index=index,
        text="",
        token_ids=tuple(range(tokens)),
        logprobs=(),
        finish_reason=FinishReason.STOP if last else None,
        stop_reason=None,
        report=report,
        num_output_tokens=tokens,
    )


def test_a_scrape_carries_the_engines_numbers() -> None:
    backend = FakeBackend()
    with TestClient(create_app(backend, clock=ManualClock())) as client:
        response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = parse(response.text)
    expected = {
        "prompt_tokens_total": 1000,
        "prefix_cache_hit_tokens_total": 700,
        "computed_tokens_total": 350,
        "resumed_tokens_total": 20,
        "generation_tokens_total": 40,
        "num_preemptions_total": 4,
        "steps_total": 77,
        "evicted_blocks_total": 6,
        "integrity_errors_total": 0,
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_blocks_capacity": 100,
        "kv_cache_usage_perc": 0.3,
        "kv_waste_ratio": 0.25,
    }
    assert {name: value(samples, name) for name in expected} == expected
    states = ("free", "in_use", "cached", "in_transfer")
    blocks = {state: value(samples, "kv_blocks", state=state) for state in states}
    assert blocks == {"free": 50, "in_use": 30, "cached": 15, "in_transfer": 5}
    assert value(samples, "request_success_total", finished_reason="stop") == 8
    assert value(samples, "request_success_total", finished_reason="abort") == 0
    assert value(samples, "request_success_total", finished_reason="error") == 1


def test_histograms_and_reasons_are_exposed_at_zero_before_the_first_request() -> None:
    backend = FakeBackend()
    metrics = ServerMetrics(backend.stats, MODEL, ManualClock())
    samples = parse(metrics.exposition().decode())
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert value(samples, f"{name}_seconds_count") == 0
    for reason in MissReason:
        assert value(samples, "cache_miss_reason_total", reason=reason.value) == 0


def test_latencies_are_measured_by_answer_with_the_injected_clock() -> None:
    clock = ManualClock()
    metrics = ServerMetrics(FakeBackend().stats, MODEL, clock)
    timer = metrics.start_request()
    clock.advance(2.0)
    timer.observe(0, delta(index=0))
    clock.advance(1.0)
    timer.observe(0, delta(index=1))
    clock.advance(0.5)
    timer.observe(0, delta(index=0, tokens=0))  # held back: no token yet
    clock.advance(0.5)
    timer.observe(0, delta(index=0, last=True))
    timer.finish()
    samples = parse(metrics.exposition().decode())
    assert value(samples, "time_to_first_token_seconds_count") == 2
    assert value(samples, "time_to_first_token_seconds_sum") == 5.0
    assert value(samples, "inter_token_latency_seconds_count") == 1
    assert value(samples, "inter_token_latency_seconds_sum") == 2.0
    assert value(samples, "e2e_request_latency_seconds_sum") == 4.0


def test_a_report_is_counted_once_for_each_prompt() -> None:
    metrics = ServerMetrics(FakeBackend().stats, MODEL, ManualClock())
    report = CacheReport(9, {Tier.DEVICE: 4}, miss_reason=MissReason.NOT_CACHED)
    timer = metrics.start_request()
    for prompt_index in (0, 1):
        for _ in range(3):
            timer.observe(prompt_index, delta(report=report))
    samples = parse(metrics.exposition().decode())
    assert value(samples, "cache_miss_reason_total", reason="not_cached") == 2
    assert value(samples, "cached_tokens_total", cache_source="device") == 8
    assert value(samples, "cached_tokens_total", cache_source="disk") == 0


def test_calls_over_http_are_measured_and_servers_do_not_mix() -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    with (
        TestClient(create_app(FakeBackend(), clock=ManualClock())) as busy,
        TestClient(create_app(FakeBackend(), clock=ManualClock())) as idle,
    ):
        busy.post("/v1/chat/completions", json=body)
        busy.post("/v1/chat/completions", json={**body, "stream": True})
        busy.post("/v1/completions", json={"model": MODEL, "prompt": ["a", "b"]})
        samples, untouched = parse(busy.get("/metrics").text), parse(idle.get("/metrics").text)
    assert value(samples, "time_to_first_token_seconds_count") == 4
    assert value(samples, "e2e_request_latency_seconds_count") == 3
    assert value(samples, "inter_token_latency_seconds_count") == 4 * 3
    assert value(samples, "cached_tokens_total", cache_source="device") == 4 * CACHED_TOKENS
    assert value(samples, "cache_miss_reason_total", reason="diverged") == 4
    assert value(untouched, "time_to_first_token_seconds_count") == 0


def test_a_scrape_says_what_lies_below_the_device_and_how_loads_are_decided() -> None:
    ram = TierStats(Tier.RAM, 1000, 300, 3, 0, 0, {}, stored_blocks=5, evicted_blocks=2)
    disk = TierStats(
        Tier.DISK, 9000, 700, 7, 0, 0, {}, loaded_blocks=4, failures={TierFailure.CORRUPT: 1}
    )
    loads = LoadCounters(Counter({Tier.DISK: 4}), Counter({Tier.DISK: 1}), 6, 3, 1, 2)
    below = HierarchyStats(
        tiers=(ram, disk),
        stores=StoreCounters(11, 12, 13, 14, 15),
        loads=loads,
        load_rates={Tier.RAM: 4e9, Tier.DISK: 1e9},
        prefill_rate=None,
        bytes_in_flight={Urgency.LOAD: 1, Urgency.PREFETCH: 2, Urgency.STORE: 3},
        dirty_blocks=0,
    )
    stats = replace(FakeBackend().stats(), tiers=below, loading=2)
    metrics = ServerMetrics(lambda: stats, MODEL, ManualClock())
    samples = parse(metrics.exposition().decode())
    assert value(samples, "num_requests_loading") == 2
    assert value(samples, "tier_bytes", tier="ram") == 300
    assert value(samples, "tier_capacity_bytes", tier="disk") == 9000
    assert value(samples, "tier_evicted_blocks_total", tier="ram") == 2
    assert value(samples, "tier_failures_total", tier="disk", reason="corrupt") == 1
    assert value(samples, "tier_failures_total", tier="ram", reason="corrupt") == 0
    ways = {way: value(samples, "offloaded_blocks_total", way=way) for way in WAYS}
    assert ways == {"through": 11, "back": 12, "down": 13}
    assert value(samples, "unkept_blocks_total", what="lost") == 14
    decided = {name: value(samples, "load_decisions_total", decision=name) for name in DECISIONS}
    assert decided == {"load": 5, "recompute": 3, "probe": 1}
    assert value(samples, "load_failed_blocks_total", tier="disk") == 1
    assert value(samples, "load_bytes_per_second", tier="disk") == 1e9
    assert value(samples, "prefill_tokens_per_second") == 0
    assert value(samples, "transfer_bytes", kind="store") == 3


WAYS = ("through", "back", "down")
DECISIONS = ("load", "recompute", "probe")
