"""Data files that are gone are found by one listing for each day, in folder and bucket, without Spark; a store that does not
answer is no loss."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import obstore
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, NestedField, StringType

from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.refined_events import REFINED_EVENTS
from resources.iceberg.catalog_at_rest import CatalogAtRest, TableAtRest, gone_files, lost_at_rest
from tests.support.s3 import BUCKET

DAYS = [date(2026, 2, day) for day in range(1, 6)]
PROJECTS = ("10001", "10002")


def _lake(folder: Path, warehouse: str) -> tuple[Any, TableAtRest]:
    """A table of refined events as Iceberg writes it: a file for each day and project, in two commits."""
    properties = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL_S3", ""), "warehouse": warehouse}
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", **properties)
    catalog.create_namespace("refined")
    fields = [NestedField(1, "event_date", DateType()), NestedField(2, "project_id", StringType())]
    spec = PartitionSpec(*(PartitionField(n, 1000 + n, IdentityTransform(), fields[n - 1].name) for n in (1, 2)))
    table = catalog.create_table("refined.events", Schema(*fields), partition_spec=spec)
    for days in (DAYS[:2], DAYS[2:]):
        table.append(pa.table({"event_date": days * 2, "project_id": [p for p in PROJECTS for _ in days]}))
    settings = Settings(catalog_url=f"sqlite:///{folder}/catalog.db", catalog_name="lake", warehouse_url=warehouse)
    resting = CatalogAtRest(settings).table(REFINED_EVENTS)
    assert resting is not None
    return table, resting


def _files(table: Any, day: date) -> dict[str, str]:
    found = [task.file for task in table.scan().plan_files()]
    return {f.partition[1]: f.file_path for f in found if f"event_date={day}" in f.file_path}


def test_the_slices_of_files_that_a_person_removed_are_named_in_a_folder(tmp_path: Path) -> None:
    table, resting = _lake(tmp_path, f"file://{tmp_path}/warehouse")
    assert lost_at_rest(resting, DAYS) == {}
    lost = _files(table, DAYS[1])["10002"]
    Path(unquote(urlparse(lost).path)).unlink()
    assert lost_at_rest(resting, DAYS) == {Slice(DAYS[1], "10002"): lost}
    assert lost_at_rest(resting, [DAYS[0], *DAYS[2:]]) == {}


def test_in_a_bucket_a_day_costs_one_listing_and_only_what_it_lacks_is_asked_for(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, resting = _lake(tmp_path, f"s3://{BUCKET}/lake")
    lost = _files(table, DAYS[3])["10001"]
    bucket.Object(urlparse(lost).path.lstrip("/")).delete()
    asked: list[str] = []
    for name in ("list", "get"):
        real = getattr(obstore, name)
        monkeypatch.setattr(obstore, name, lambda *a, _n=name, _real=real, **k: asked.append(_n) or _real(*a, **k))
    assert lost_at_rest(resting, DAYS) == {Slice(DAYS[3], "10001"): lost}
    # The list of manifests, two manifests, and the file that is gone.
    assert sorted(asked) == [*["get"] * 4, *["list"] * len(DAYS)]


def test_a_file_of_another_program_in_a_place_of_its_own_is_asked_for_by_name(tmp_path: Path) -> None:
    there, gone = tmp_path / "a" / "b.parquet", tmp_path / "a" / "c.parquet"
    there.parent.mkdir()
    there.touch()
    assert gone_files([str(there), str(gone)]) == {str(gone)}


def test_a_bucket_that_is_not_there_is_an_error_and_no_loss(bucket: Any) -> None:
    path = "s3://no-such-bucket/lake/refined/events/data/event_date=2026-02-01/project_id=1/a.parquet"
    with pytest.raises(LakehouseError):
        gone_files([path])
