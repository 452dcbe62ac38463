"""Metrics in the Prometheus text format, and as a file for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline_assets.domain.errors import UsageError
from pipeline_assets.inspection.metrics.compute import Sample
from pipeline_assets.inspection.metrics.families import FAMILIES, UP, Family, Kind
from resources.whole_file import write_whole

_BEGINNING = f"# HELP {UP.name} ".encode()
"""Every metrics file of Tidemark begins with this; any other file at the path is not overwritten."""


class _Collector(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._of_family: dict[Family, list[Sample]] = {}
        for sample in samples:
            self._of_family.setdefault(sample.family, []).append(sample)

    def collect(self) -> Iterator[Metric]:
        """Yield every family that has samples, in the order of FAMILIES."""
        for family in FAMILIES:
            samples = self._of_family.get(family)
            if samples is None:
                continue
            kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
            metric = kind(family.name, family.help, labels=family.labels)
            for sample in samples:
                metric.add_metric(sample.labels, sample.value)
            yield metric


def text_of(samples: Iterable[Sample]) -> str:
    """The samples in the exposition format of Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(samples))
    return generate_latest(registry).decode("utf-8")


def write_textfile(text: str, path: Path) -> Path:
    """Write the text to a file, atomically. Returns the absolute path; raises UsageError where it cannot be written."""
    if path.expanduser().exists() and not _is_ours(path.expanduser()):
        raise UsageError(
            str(path), "is there and is no file of figures that Tidemark wrote", "Name another file, or remove this one"
        )
    return write_whole(path, text)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except OSError:
        return False
