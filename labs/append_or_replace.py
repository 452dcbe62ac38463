"""Append versus atomic replace: three years of revenue, delivered twice."""

from __future__ import annotations

import gzip
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark.sql.functions as F

from benchmarks.contenders import NaiveAppend
from benchmarks.workload import PROJECT
from labs.story import Deployment, Story, revenue_by_day, total
from pipeline_assets.formats.base import EXTRA_COLUMN
from pipeline_assets.orchestration.health_page import lines
from sample_export.objects import write_export
from sample_export.spec import ExportSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_YEAR, YEARS = 2023, 3
_SPEC = ExportSpec(
    seed=41, projects=(PROJECT,), shards=1, hours=(3,), late_share=0.0, tail_share=0.0, delivery_duplicate_share=0.0,
    send_duplicate_share=0.0, correction_share=0.0, days=1, has_markers=False,
)  # fmt: skip
"""No late events and no duplicates: the first load is the same both ways, so only the second differs."""
_NOW = datetime(2026, 6, 1, tzinfo=UTC)


def append_or_replace(work: Path, months: int = 12 * YEARS, events: int = 150) -> Story:
    """Load one day of each month with `events` events, deliver it again with other bytes, and load it again, both ways."""
    days = [date(FIRST_YEAR + month // 12, month % 12 + 1, 1) for month in range(months)]
    # Most days have no delivery; a sparse project is not reported as missing.
    ours = Deployment(
        work / "replace", "replace", sparse_projects=(PROJECT,), calendar_start=days[0], days_per_run=2000
    )
    naive = NaiveAppend(work / "append", ours.landing, "append")
    naive.start()
    for day in days:
        write_export(replace(_SPEC, first_day=day, events_per_day=events), ours.landing)
    objects = sorted(ours.landing.rglob("*.json.gz"))
    appended, replaced = [], []
    for attempt in (1, 2):
        if attempt == 2:
            _deliver_again(objects)
        naive.load(objects, days)
        ours.load(days[0], days[-1], _NOW)
        held = naive.spark.table(naive.table).withColumn(EXTRA_COLUMN, F.lit(None).cast("string"))
        appended.append(revenue_by_day(held, naive.settings))
        replaced.append(ours.revenue())
    figures = {
        "append_once": total(appended[0]), "append_twice": total(appended[1]),
        "replace_once": total(replaced[0]), "replace_twice": total(replaced[1]),
    }  # fmt: skip
    return Story(
        "append_or_replace",
        "Append or atomic replace: the same three years twice" if months == 12 * YEARS else "Append or atomic replace",
        (
            f"{len(objects)} objects of {months} months hold revenue of {figures['replace_once']:,.2f}. Both ways of loading say "
            f"so after the first load: append {figures['append_once']:,.2f}, replace {figures['replace_once']:,.2f}.",
            "Then the exporter delivers every object again: the same lines, compressed anew, so that no byte tells that they are "
            "known.",
            f"The job that appends now says {figures['append_twice']:,.2f}, "
            f"{figures['append_twice'] / figures['append_once']:.2f} times the truth, and nothing failed.",
            f"Tidemark read the objects again, put their rows in place of those of the same objects, found every day's digest "
            f"unchanged, and says {figures['replace_twice']:,.2f}.",
        ),
        lines(
            "append_or_replace",
            "revenue by month after the second delivery, appended and replaced",
            days,
            [replaced[1], appended[1]],
        ),
        ("Tidemark, after the second delivery", "append, after the second delivery"),
        figures,
    )


def _deliver_again(objects: Sequence[Path]) -> None:
    """Rewrite the objects with the same lines but other bytes."""
    for path in objects:
        draft = path.with_suffix(".part")
        draft.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1))
        draft.replace(path)
