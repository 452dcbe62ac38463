"""Metadata is asked for columns' bytes only where they decide the place of a step."""

from __future__ import annotations

from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_assets.domain.machine import MOST_ITEMS, MOST_READ_BYTES, NewBytes
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.load.file_tasks import Place, read_bytes
from pipeline_assets.tables.events import REFINED_EVENTS
from pipeline_assets.transforms.file_rows import SliceFile
from resources.spark.tasks import Tasks

KEY = Slice(date(2026, 2, 2), "10001")
FOOTERS = 77


@pytest.mark.parametrize(
    ("files", "size", "local_bytes", "is_asked"),
    [
        (1, MOST_READ_BYTES, 1000, False),
        (1, MOST_READ_BYTES + 1, 1000, True),
        (MOST_ITEMS, MOST_READ_BYTES, 1000, True),
        (MOST_ITEMS + 1, MOST_READ_BYTES, 1000, False),
        (1, MOST_READ_BYTES + 1, 0, False),
    ],
)
def test_footers_are_asked_only_where_they_decide(files: int, size: int, local_bytes: int, is_asked: bool) -> None:
    """Scenario: files that are small, large, many and large, too many for this process; a load that must not run here."""

    def no_session() -> Any:
        raise AssertionError("started Spark")

    settings = Settings(landing_url="/a", warehouse_url="/b", spark_master="local[2]", local_bytes=local_bytes)
    runtime: Any = SimpleNamespace(
        tasks=Tasks(no_session, settings, NewBytes()), lakehouse=SimpleNamespace(column_bytes=lambda *_: FOOTERS)
    )
    found = [SliceFile(REFINED_EVENTS.key, KEY, str(number), size, 1) for number in range(files)]
    told = read_bytes(runtime, [Place(REFINED_EVENTS, 1, frozenset([KEY]))], found, ["uuid"])
    assert told == (FOOTERS if is_asked else files * size)
