"""Values as Prometheus reads them; the only importer of its library, and imported where metrics are served."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from .measures import Distribution
from .metric_table import METRICS, Kind, Metric
from .samples import Values

_OPENMETRICS: Final = "application/openmetrics-text"


def metrics_text(values: Values, accept: str) -> tuple[bytes, str]:
    """Writes values down.

    Args:
        values: By series.
        accept: Content types that the client prefers: OpenMetrics if it names that, else Prometheus's text.

    Returns:
        The text and its content type.
    """
    is_open = any(kind.split(";")[0].strip() == _OPENMETRICS for kind in accept.split(","))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneLook(values))
    # Not by the client's own words: they would come back in the content type.
    encode, content_type = choose_encoder(_OPENMETRICS if is_open else "")
    return encode(registry), content_type


class _OneLook(Collector):
    """What was seen at one moment."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterator[Family]:
        by_metric: dict[str, list[tuple[tuple[str, ...], float | Distribution]]] = {}
        for (name, labels), value in self._values.items():
            by_metric.setdefault(name, []).append((labels, value))
        for metric in METRICS:
            if metric.name in by_metric:
                yield _family(metric, by_metric[metric.name])


def _family(metric: Metric, samples: Iterable[tuple[tuple[str, ...], float | Distribution]]) -> Family:
    about = (metric.name, metric.meaning)
    family: CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    if metric.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(*about, labels=metric.labels)
    elif metric.kind is Kind.COUNTER:
        family = CounterMetricFamily(*about, labels=metric.labels)
    else:
        family = GaugeMetricFamily(*about, labels=metric.labels)
    for labels, value in samples:
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Distribution)
            family.add_metric(labels, _buckets(value), value.total)
        else:
            assert not isinstance(value, Distribution)
            family.add_metric(labels, value)
    return family


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    """Returns each bucket's upper bound, and how many values are not above it."""
    bounds = [*(str(bound) for bound in value.bounds), "+Inf"]
    return list(zip(bounds, itertools.accumulate(value.counts), strict=True))
