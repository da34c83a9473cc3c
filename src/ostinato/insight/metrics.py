"""Prometheus metrics. Names and label words follow vLLM's, so that its dashboards need one prefix changed.

Counters and gauges are read from the engine's own statistics at the moment of the scrape; only latencies
and what a `CacheReport` says are collected here, by one `RequestTimer` a call. The registry is our own:
several servers can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ostinato.cache.types import MissReason, Tier
from ostinato.clock import Clock
from ostinato.engine.outputs import FinishReason, OutputDelta
from ostinato.engine.stats import EngineStats
from ostinato.insight.tier_metrics import TierFamilies

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PREFIX = "ostinato:"

TTFT_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0),
)
"""Seconds. From a warm hit on a fast machine to a cold long context on a slow one."""

INTER_TOKEN_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
E2E_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)

StatsSource = Callable[[], EngineStats]


class ServerMetrics:
    """All metrics of one server.

    Args:
        stats: takes a snapshot of the engine.
        model_name: value of the label `model_name`.
        clock: for latencies.
    """

    def __init__(self, stats: StatsSource, model_name: str, clock: Clock) -> None:
        self._clock = clock
        self._labels = {"model_name": model_name}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(EngineCollector(stats, self._labels))
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            TTFT_BUCKETS,
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of one answer.", INTER_TOKEN_BUCKETS
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its end.", E2E_BUCKETS
        )
        self._miss_reasons = Counter(
            f"{PREFIX}cache_miss_reason",
            "Requests by the reason why reuse of their prompt ended where it ended.",
            ["model_name", "reason"],
            registry=self.registry,
        )
        self._hits_by_tier = Counter(
            f"{PREFIX}cached_tokens",
            "Prompt tokens that were reused, by the tier they were found in.",
            ["model_name", "cache_source"],
            registry=self.registry,
        )
        for reason in MissReason:
            self._miss_reasons.labels(reason=reason.value, **self._labels)
        for tier in Tier:
            self._hits_by_tier.labels(cache_source=tier.value, **self._labels)

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format 0.0.4; see `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def start_request(self) -> RequestTimer:
        """Call when a request arrives."""
        return RequestTimer(self, self._clock)

    def observe_first_token(self, seconds: float) -> None:
        self._ttft.labels(**self._labels).observe(seconds)

    def observe_next_tokens(self, seconds: float) -> None:
        self._inter_token.labels(**self._labels).observe(seconds)

    def observe_end(self, seconds: float) -> None:
        self._e2e.labels(**self._labels).observe(seconds)

    def observe_report(self, read_by_tier: Mapping[Tier, int], reason: MissReason) -> None:
        self._miss_reasons.labels(reason=reason.value, **self._labels).inc()
        for tier, tokens in read_by_tier.items():
            self._hits_by_tier.labels(cache_source=tier.value, **self._labels).inc(tokens)

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        metric = Histogram(
            PREFIX + name, text, ["model_name"], buckets=tuple(buckets), registry=self.registry
        )
        metric.labels(**self._labels)  # so that it is exposed, at zero, before the first request
        return metric


class RequestTimer:
    """Latencies of one call. Hand it every delta, then `finish` once if the call came to its end.

    Attributes:
        first_token_at: monotonic seconds of the first token of any answer; None before.
    """

    def __init__(self, metrics: ServerMetrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._start = clock.monotonic()
        self.first_token_at: float | None = None
        self._last_token: dict[tuple[int, int], float] = {}
        self._reported: set[int] = set()

    def observe(self, prompt_index: int, delta: OutputDelta) -> None:
        """Take note of a delta of answer `delta.index` to prompt `prompt_index`."""
        if delta.report is not None and prompt_index not in self._reported:
            self._reported.add(prompt_index)
            self._metrics.observe_report(delta.report.read_by_tier, delta.report.miss_reason)
        if not delta.token_ids:
            return
        now = self._clock.monotonic()
        if self.first_token_at is None:
            self.first_token_at = now
        answer = (prompt_index, delta.index)
        if answer in self._last_token:
            self._metrics.observe_next_tokens(now - self._last_token[answer])
        else:
            self._metrics.observe_first_token(now - self._start)
        self._last_token[answer] = now

    def finish(self) -> None:
        """The call is answered in full."""
        self._metrics.observe_end(self._clock.monotonic() - self._start)


class EngineCollector(Collector):
    """Turns one `EngineStats` snapshot into metric families, so that all numbers of a scrape agree."""

    def __init__(self, stats: StatsSource, labels: Mapping[str, str]) -> None:
        self._stats = stats
        self._names = list(labels)
        self._values = list(labels.values())
        self._tiers = TierFamilies(PREFIX, labels)

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        stats = self._stats()
        yield from self._token_counters(stats)
        yield from self._engine_counters(stats)
        yield from self._gauges(stats)
        if stats.tiers is not None:
            yield from self._tiers.collect(stats.tiers)

    def _token_counters(self, stats: EngineStats) -> Iterable[Metric]:
        yield self._counter(
            "prompt_tokens", "Prompt tokens of admitted requests.", stats.prompt_tokens_total
        )
        yield self._counter(
            "prefix_cache_hit_tokens",
            "Prompt tokens that were reused, once a request, at its first admission.",
            stats.cached_tokens_total,
        )
        yield self._counter(
            "computed_tokens",
            "Tokens that went through the model: prefill, decode and recomputation.",
            stats.computed_tokens_total,
        )
        yield self._counter(
            "resumed_tokens",
            "Tokens that preempted requests found in the cache when they resumed.",
            stats.resumed_tokens_total,
        )
        yield self._counter("generation_tokens", "Sampled tokens.", stats.generated_tokens_total)

    def _engine_counters(self, stats: EngineStats) -> Iterable[Metric]:
        yield self._counter(
            "num_preemptions", "Times a request gave its blocks up.", stats.preemptions_total
        )
        yield self._counter(
            "evicted_blocks", "Cached blocks that made room.", stats.blocks.evicted_total
        )
        yield self._counter("steps", "Engine steps that computed something.", stats.steps_total)
        yield self._counter(
            "integrity_errors", "Broken invariants of the cache.", stats.integrity_errors_total
        )
        finished = CounterMetricFamily(
            f"{PREFIX}request_success",
            "Finished answers by reason.",
            labels=[*self._names, "finished_reason"],
        )
        for reason in FinishReason:
            count = stats.requests_finished_total.get(reason, 0)
            finished.add_metric([*self._values, reason.value], count)
        yield finished

    def _gauges(self, stats: EngineStats) -> Iterable[Metric]:
        yield self._gauge("num_requests_running", "Sequences that hold blocks.", stats.running)
        yield self._gauge("num_requests_waiting", "Sequences that wait.", stats.waiting)
        yield self._gauge(
            "num_requests_loading", "Requests whose K/V comes from a lower tier now.", stats.loading
        )
        blocks = stats.blocks
        by_state = GaugeMetricFamily(
            f"{PREFIX}kv_blocks",
            "Blocks of the K/V pool by state; the states add up to the pool.",
            labels=[*self._names, "state"],
        )
        for state in ("free", "in_use", "cached", "in_transfer"):
            by_state.add_metric([*self._values, state], getattr(blocks, state))
        yield by_state
        yield self._gauge("kv_blocks_capacity", "Blocks in the K/V pool.", blocks.total)
        yield self._gauge(
            "kv_cache_usage_perc",
            "Share of the pool's blocks that are in use, 0 to 1.",
            blocks.in_use / blocks.total if blocks.total else 0.0,
        )
        yield self._gauge(
            "kv_waste_ratio", "Share of the allocated token slots that hold nothing.", stats.waste
        )

    def _counter(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(f"{PREFIX}{name}", text, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=self._names)
        family.add_metric(self._values, value)
        return family
