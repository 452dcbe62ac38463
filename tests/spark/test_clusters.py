"""A task that meets many days writes them with one open file.

Lives here: the claim on the table's writer. Put here: another write that must stay bounded. Keep out: the order of rows
(tests/unit/test_clusters.py).
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from pipeline_assets.domain.deliveries import BatchKey, Delivery
from pipeline_assets.domain.slices import Source
from pipeline_assets.tables.raw_events import REGULAR_EVENTS
from pipeline_assets.transforms.parse import event_rows, parse_objects
from pipeline_assets.transforms.spread import distribute
from resources.spark import configure_catalog
from tests.builders import PROJECT

pytestmark = pytest.mark.slow
DAY, DAYS = date(2026, 2, 2), 40

# Spark's workers do not have this module on their path.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class Body:
    """A landing that holds one object."""

    body: bytes

    def open(self, key: str, etag: str) -> IO[bytes]:
        return io.BytesIO(self.body)


@dataclass(frozen=True)
class Gate:
    """Hands on all rows one by one, then waits until it is told to end; of what is on the way only some kilobytes stay behind."""

    folder: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from (batch.slice(place, 1) for place in range(batch.num_rows))
        while not (self.folder / "end").exists():
            time.sleep(0.05)


def test_a_task_of_many_days_has_one_file_open(pipeline: Any, tmp_path: Path) -> None:
    """Scenario: one object holds two rounds of forty days, and its task does not end yet. Outcome: the files of most days are
    finished all the same, so their writers are gone; each day's rows lie in one file, in order."""
    p = pipeline()
    lakehouse, spark = p.lakehouse, p.spark
    configure_catalog(spark, p.settings)
    lines = [{"event_time": f"{DAY - timedelta(days=n % DAYS)} 10:00:00", "event_id": n} for n in range(2 * DAYS)]
    body = gzip.compress("\n".join(map(json.dumps, lines)).encode())
    delivery = Delivery(BatchKey(Source.REGULAR, PROJECT, DAY), 1, 1, "a", "e", len(body))
    parsed = parse_objects(
        distribute(spark, [delivery], 1, {}), Body(body), max_object_bytes=1 << 20, max_line_bytes=1 << 20
    )
    rows = event_rows(parsed, Source.REGULAR)
    gated = rows.mapInArrow(Gate(tmp_path), rows.schema)
    lakehouse.ensure(REGULAR_EVENTS)
    base = lakehouse.head(REGULAR_EVENTS)
    data = p.settings.warehouse_url
    seen: list[int] = []

    def look() -> None:
        for _ in range(600):
            seen.append(len(list(Path(data).rglob("*.parquet"))))
            if seen[-1] > DAYS // 2:
                break
            time.sleep(0.05)
        (tmp_path / "end").touch()

    watcher = threading.Thread(target=look)
    watcher.start()
    staged = lakehouse.stage(REGULAR_EVENTS, base, "t", lambda target: lakehouse.append_in_order(target, gated))
    watcher.join()

    assert seen[-1] > DAYS // 2
    files = lakehouse.slice_files(REGULAR_EVENTS, staged.snapshot_id)
    assert {len(found.paths) for found in files.values()} == {1}
    assert len(files) == DAYS
    written = lakehouse.read(REGULAR_EVENTS, staged.snapshot_id).select("event_date", "_line_number").collect()
    by_day: dict[date, list[int]] = {}
    for row in written:
        by_day.setdefault(row["event_date"], []).append(row["_line_number"])
    assert by_day == {DAY - timedelta(days=n): [n + 1, n + DAYS + 1] for n in range(DAYS)}
    lakehouse.drop(staged)
