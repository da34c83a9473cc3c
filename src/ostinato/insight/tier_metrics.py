"""Prometheus families of what lies below the device pool: sizes, traffic, and the figures behind each load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from ostinato.cache.tiers.base import TierFailure, TierStats
from ostinato.cache.tiers.hierarchy import HierarchyStats
from ostinato.cache.tiers.transfer import Urgency
from ostinato.cache.types import Tier

_TIER_GAUGES: Sequence[tuple[str, str, Callable[[TierStats], float]]] = (
    ("tier_bytes", "Bytes that a tier holds.", lambda one: one.used_bytes),
    ("tier_capacity_bytes", "Bound of a tier in bytes.", lambda one: one.capacity_bytes),
    ("tier_blocks", "K/V blocks that can be read from a tier.", lambda one: one.num_blocks),
)
_TIER_COUNTERS: Sequence[tuple[str, str, Callable[[TierStats], float]]] = (
    ("tier_stored_blocks", "Blocks that were written to a tier.", lambda one: one.stored_blocks),
    ("tier_loaded_blocks", "Blocks that were read from a tier.", lambda one: one.loaded_blocks),
    ("tier_evicted_blocks", "Blocks of a tier that gave way.", lambda one: one.evicted_blocks),
    ("tier_expired_blocks", "Blocks past a hard deadline.", lambda one: one.expired_blocks),
    ("tier_refused_blocks", "Blocks that a tier had no room for.", lambda one: one.refused_blocks),
)


class TierFamilies:
    """Turns a snapshot into metric families.

    Args:
        prefix: of every name.
        labels: that every sample carries.
    """

    def __init__(self, prefix: str, labels: Mapping[str, str]) -> None:
        self._prefix = prefix
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self, stats: HierarchyStats) -> Iterable[Metric]:
        """All families."""
        for name, text, value in _TIER_GAUGES:
            yield self._gauge(name, text, "tier", {s.tier: value(s) for s in stats.tiers})
        for name, text, value in _TIER_COUNTERS:
            yield self._counter(name, text, "tier", {s.tier: value(s) for s in stats.tiers})
        yield self._failures(stats)
        yield from self._stores(stats)
        yield from self._loads(stats)

    def _failures(self, stats: HierarchyStats) -> Metric:
        family = CounterMetricFamily(
            f"{self._prefix}tier_failures",
            "Blocks that a tier could not keep or give back, by reason; each is a miss.",
            labels=[*self._names, "tier", "reason"],
        )
        for tier in stats.tiers:
            for reason in TierFailure:
                count = tier.failures.get(reason, 0)
                family.add_metric([*self._values, tier.tier.value, reason.value], count)
        return family

    def _stores(self, stats: HierarchyStats) -> Iterable[Metric]:
        stores = stats.stores
        yield self._counter(
            "offloaded_blocks",
            "Blocks that were copied down: before they were evicted, when they were, or from tier to tier.",
            "way",
            {
                "through": stores.written_through,
                "back": stores.written_back,
                "down": stores.written_down,
            },
        )
        yield self._counter(
            "unkept_blocks",
            "Blocks that were evicted and are nowhere else (lost), or not written through (skipped).",
            "what",
            {"lost": stores.lost, "skipped": stores.skipped},
        )
        yield self._gauge(
            "transfer_bytes",
            "Bytes of the transfers that are under way.",
            "kind",
            {urgency.name.lower(): stats.bytes_in_flight[urgency] for urgency in Urgency},
        )

    def _loads(self, stats: HierarchyStats) -> Iterable[Metric]:
        loads = stats.loads
        yield self._counter(
            "load_decisions",
            "Requests that found K/V below the device, by what was done about it.",
            "decision",
            {
                "load": loads.loads - loads.probes,
                "recompute": loads.recomputes,
                "probe": loads.probes,
            },
        )
        stopped = CounterMetricFamily(
            f"{self._prefix}stopped_loads",
            "Loads that turned out slower than computing, so that the rest was computed.",
            labels=self._names,
        )
        stopped.add_metric(self._values, loads.stopped_loads)
        yield stopped
        yield self._counter(
            "load_failed_blocks",
            "Blocks that a request waited for and that did not arrive.",
            "tier",
            {one.tier: loads.failed_blocks[one.tier] for one in stats.tiers},
        )
        yield self._gauge(
            "load_bytes_per_second",
            "Measured rate of loads, by which the next is decided.",
            "tier",
            stats.load_rates,
        )
        prefill = GaugeMetricFamily(
            f"{self._prefix}prefill_tokens_per_second",
            "Measured rate of prefill, against which loads are weighed; 0 before the first.",
            labels=self._names,
        )
        prefill.add_metric(self._values, stats.prefill_rate or 0.0)
        yield prefill

    def _gauge(
        self, name: str, text: str, label: str, values: Mapping[Tier, float] | Mapping[str, float]
    ) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, text, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, str(key)], value)
        return family

    def _counter(
        self, name: str, text: str, label: str, values: Mapping[Tier, float] | Mapping[str, float]
    ) -> Metric:
        family = CounterMetricFamily(self._prefix + name, text, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, str(key)], value)
        return family
