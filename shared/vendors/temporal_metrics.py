"""The Temporal SDK's own metrics, for the page where this process has its others.

The SDK would open a port of its own for Prometheus; a second page per pod would need a second probe, rule and
discovery. It can hand its updates over instead, and they are summed up here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from temporalio.runtime import (
    BUFFERED_METRIC_KIND_COUNTER,
    BUFFERED_METRIC_KIND_HISTOGRAM,
    BufferedMetricUpdate,
    MetricBuffer,
    MetricBufferDurationFormat,
    Runtime,
    TelemetryConfig,
)
from typing_extensions import override

MOST_UPDATES = 200_000
"""Updates between two drains; more are dropped by the SDK, which says so in the log."""
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LABELS = (
    "namespace", "task_queue", "workflow_type", "activity_type", "operation", "worker_type", "poller_type",
    "status_code", "failure_reason",
)  # fmt: skip
"""What may tell series apart: names of code and of the cluster, never of a run."""
Key = tuple[str, ...]


@dataclass(slots=True)
class _Spread:
    """The observations of one series."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        seen, found = 0, []
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found


class SdkMetrics(Collector):
    """Sums up what the SDK reports. Whoever makes one gives its `runtime` to the client and calls `drain` often."""

    def __init__(self) -> None:
        self._buffer = MetricBuffer(MOST_UPDATES, MetricBufferDurationFormat.SECONDS)
        self.runtime = Runtime(telemetry=TelemetryConfig(metrics=self._buffer, attach_service_name=False))
        self._help: dict[str, str] = {}
        self._sums: dict[str, dict[Key, float]] = {}
        self._levels: dict[str, dict[Key, float]] = {}
        self._spreads: dict[str, dict[Key, _Spread]] = {}

    def drain(self) -> None:
        """Take in what was reported since the last time."""
        for update in self._buffer.retrieve_updates():
            self._take(update)

    def _take(self, update: BufferedMetricUpdate) -> None:
        metric, value = update.metric, float(update.value)
        key = tuple(str(update.attributes.get(name, "")) for name in LABELS)
        self._help.setdefault(metric.name, metric.description or "Of the Temporal SDK.")
        if metric.kind == BUFFERED_METRIC_KIND_COUNTER:
            series = self._sums.setdefault(metric.name, {})
            series[key] = series.get(key, 0.0) + value
        elif metric.kind == BUFFERED_METRIC_KIND_HISTOGRAM:
            self._spreads.setdefault(metric.name, {}).setdefault(key, _Spread()).observe(value)
        else:
            self._levels.setdefault(metric.name, {})[key] = value

    @override
    def collect(self) -> Iterator[Metric]:
        """Counters, gauges and histograms of seconds, named as Prometheus wants them."""
        self.drain()
        for name, sums in self._sums.items():
            counter = CounterMetricFamily(name, self._help[name], labels=LABELS)
            for key, value in sums.items():
                counter.add_metric(key, value)
            yield counter
        for name, levels in self._levels.items():
            gauge = GaugeMetricFamily(name, self._help[name], labels=LABELS)
            for key, value in levels.items():
                gauge.add_metric(key, value)
            yield gauge
        for name, spreads in self._spreads.items():
            histogram = HistogramMetricFamily(f"{name}_seconds", self._help[name], labels=LABELS)
            for key, spread in spreads.items():
                histogram.add_metric(key, spread.buckets(), spread.total)
            yield histogram

    def describe(self) -> list[Metric]:
        """Nothing in advance: the SDK names its metrics as they come."""
        return []
