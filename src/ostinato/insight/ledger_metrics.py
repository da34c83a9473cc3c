"""Metric families of the ledger: what was written, what waits, what is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ostinato.insight.metrics import PREFIX
from ostinato.ledger.writer import LedgerStats


class LedgerCollector(Collector):
    """Reads a writer at the moment of the scrape.

    Args:
        stats: takes a snapshot.
        model_name: value of the label `model_name`.
    """

    def __init__(self, stats: Callable[[], LedgerStats], model_name: str) -> None:
        self._stats = stats
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        """Called by the registry at each scrape."""
        stats = self._stats()
        records = CounterMetricFamily(
            f"{PREFIX}ledger_records",
            "Records of requests by what became of them: written to the ledger, or lost.",
            labels=["model_name", "result"],
        )
        records.add_metric([self._model_name, "written"], stats.written)
        records.add_metric([self._model_name, "lost"], stats.lost)
        yield records
        failures = CounterMetricFamily(
            f"{PREFIX}ledger_write_failures",
            "Attempts to write to the ledger that failed and were made again.",
            labels=["model_name"],
        )
        failures.add_metric([self._model_name], stats.failures)
        yield failures
        deleted = CounterMetricFamily(
            f"{PREFIX}ledger_deleted_records",
            "Records that were older than the ledger keeps them.",
            labels=["model_name"],
        )
        deleted.add_metric([self._model_name], stats.deleted)
        yield deleted
        pending = GaugeMetricFamily(
            f"{PREFIX}ledger_pending_records",
            "Records that wait to be written to the ledger.",
            labels=["model_name"],
        )
        pending.add_metric([self._model_name], stats.pending)
        yield pending
