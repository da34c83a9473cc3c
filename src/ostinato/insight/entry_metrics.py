"""Metric families of the prompt cache's entries: what was kept from an earlier start, written, lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ostinato.insight.metrics import PREFIX
from ostinato.product.entry_writer import EntryWriterStats


class EntryCollector(Collector):
    """Reads a writer at the moment of the scrape.

    Args:
        stats: takes a snapshot.
        model_name: value of the label `model_name`.
    """

    def __init__(self, stats: Callable[[], EntryWriterStats], model_name: str) -> None:
        self._stats = stats
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        stats = self._stats()
        changes = CounterMetricFamily(
            f"{PREFIX}prompt_cache_entry_changes",
            "Changes of prompt-cache entries by what became of them: written to disk, or lost.",
            labels=["model_name", "result"],
        )
        changes.add_metric([self._model_name, "written"], stats.written)
        changes.add_metric([self._model_name, "lost"], stats.lost)
        yield changes
        for name, text, value in (
            ("write_failures", "Attempts to write entries that failed.", stats.failures),
            ("damaged", "Damaged files and rows of entries that were dropped.", stats.damaged),
        ):
            counter = CounterMetricFamily(
                f"{PREFIX}prompt_cache_entry_{name}", text, labels=["model_name"]
            )
            counter.add_metric([self._model_name], value)
            yield counter
        for name, text, value in (
            ("kept_entries", "Entries that an earlier start has left.", stats.kept),
            ("pending_changes", "Changes of entries that wait to be written.", stats.pending),
        ):
            gauge = GaugeMetricFamily(f"{PREFIX}prompt_cache_{name}", text, labels=["model_name"])
            gauge.add_metric([self._model_name], value)
            yield gauge
