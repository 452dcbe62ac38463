"""Pinned jars of other table formats, which only benchmarks need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline_assets.domain.settings import PROJECT_ROOT
from resources.spark.jars import Jar, fetch

_FOLDER = PROJECT_ROOT / ".bench" / "jars"

DELTA_JARS = (
    Jar(
        "io.delta", "delta-spark_4.1_2.13", "4.4.0", "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10"
    ),
    Jar("io.delta", "delta-storage", "4.4.0", "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"),
)


def fetched(jars: Sequence[Jar]) -> list[Path]:
    """Download missing jars; returns the paths of all."""
    fetch(_FOLDER, jars)
    return [_FOLDER / jar.file_name for jar in jars]
