"""The content of a table's place by names and beginnings of files, without catalog and JVM."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
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

from pipeline_assets.domain.changes import Cause, CauseKind
from pipeline_assets.domain.errors import LakehouseError
from pipeline_assets.domain.settings import Settings
from pipeline_assets.domain.slices import Slice
from pipeline_assets.tables.events import REFINED_EVENTS
from resources.iceberg import catalog_at_rest
from resources.iceberg.lake_objects import LakeObjects
from resources.iceberg.metadata import LiveFiles, SliceFiles, slice_of
from resources.iceberg.slice_changes import SliceChange
from resources.iceberg.upkeep import is_written
from tests.support.cases import cases
from tests.support.s3 import BUCKET


def _write(place: Path, name: str, **changes: Any) -> None:
    found = {
        "format-version": 2,
        "table-uuid": "a",
        "location": "x",
        "last-sequence-number": 1,
        "last-updated-ms": 1000,
    }
    path = place / "metadata" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    body = json.dumps(found | changes | {"schemas": ["x" * 9000]}).encode()
    path.write_bytes(gzip.compress(body) if ".gz." in name else body)


def _read(place: Path) -> list[catalog_at_rest.MetadataFile]:
    objects = LakeObjects(str(place))
    return catalog_at_rest.read_metadata_files(objects, objects.list())


def _log(*names: object) -> dict[str, Any]:
    return {"metadata-log": [{"metadata-file": f"file:/x/metadata/{name}.metadata.json"} for name in names]}


def test_files_are_grouped_by_their_table_newest_first(tmp_path: Path) -> None:
    _write(tmp_path, "00001-x.metadata.json", **{"last-updated-ms": 1000})
    _write(tmp_path, "00003-x.metadata.json", **{"last-updated-ms": 2000})
    # A catalog was set back and went on: the higher number is the older state.
    _write(tmp_path, "00002-y.gz.metadata.json", **{"last-updated-ms": 3000})
    _write(tmp_path, "00002-z.metadata.json", **{"table-uuid": "b"})
    _write(tmp_path, "00000-w.metadata.json", **{"table-uuid": "c", "last-sequence-number": 0})
    (tmp_path / "metadata" / "00009-v.metadata.json").write_bytes(b"")
    (tmp_path / "metadata" / ".00009-v.metadata.json.crc").write_bytes(b"crc")
    found = catalog_at_rest.histories(_read(tmp_path))
    names = {uuid: [one.name.removeprefix("metadata/")[:7] for one in files] for uuid, files in found.items()}
    assert names == {"a": ["00002-y", "00003-x", "00001-x"], "b": ["00002-z"]}


def test_other_writers_order_of_keys_is_read_as_well(tmp_path: Path) -> None:
    (tmp_path / "metadata").mkdir()
    late = {"schemas": ["x" * 9000], "snapshots": [{}], "table-uuid": "a", "last-updated-ms": 5, "format-version": 1}
    (tmp_path / "metadata" / "00001-x.metadata.json").write_text(json.dumps(late))
    (one,) = _read(tmp_path)
    assert (one.table_uuid, one.commits, one.updated_at.timestamp()) == ("a", 1, 0.005)


def test_only_a_creation_that_died_leaves_a_place_free(tmp_path: Path) -> None:
    objects = LakeObjects(str(tmp_path / "place"))
    assert catalog_at_rest.first_use(objects) is None
    _write(tmp_path / "place", "00000-x.metadata.json", **{"last-sequence-number": 0})
    (tmp_path / "place" / "data").mkdir()
    assert catalog_at_rest.first_use(objects) is None
    _write(tmp_path / "place", "00001-x.metadata.json")
    assert catalog_at_rest.first_use(objects) == "metadata/00001-x.metadata.json"
    (tmp_path / "place" / "metadata" / "00001-x.metadata.json").unlink()
    (tmp_path / "place" / "data" / "left.parquet").write_bytes(b"")
    assert catalog_at_rest.first_use(objects) == "data/left.parquet"


def test_what_a_clock_that_was_ahead_wrote_is_left_out_where_there_is_anything_else(tmp_path: Path) -> None:
    now = datetime(2026, 2, 2, tzinfo=UTC)
    for name, ahead in (("1", -60), ("2", 59), ("3", 61), ("4", 10**9)):
        _write(tmp_path, f"{name}.metadata.json", **{"last-updated-ms": round((now.timestamp() + ahead) * 1000)})
    (files,) = catalog_at_rest.histories(_read(tmp_path)).values()
    assert [one.name for one in catalog_at_rest.not_ahead(files, now)] == [
        "metadata/2.metadata.json",
        "metadata/1.metadata.json",
    ]
    assert (catalog_at_rest.not_ahead(files[:2], now), catalog_at_rest.not_ahead([], now)) == (files[:2], [])


def test_a_metadata_file_names_the_one_it_followed(tmp_path: Path) -> None:
    _write(tmp_path, "3.metadata.json", **_log(1, 2))
    _write(tmp_path, "1.metadata.json")
    (tmp_path / "metadata" / "0.metadata.json").write_bytes(b'{"half')
    objects = LakeObjects(str(tmp_path))
    found = [catalog_at_rest.predecessor(objects, f"metadata/{number}.metadata.json") for number in (3, 1, 0, 9)]
    assert found == ["2.metadata.json", None, None, None]


def test_a_metadata_file_follows_all_that_its_history_names(tmp_path: Path) -> None:
    """A file lists the latest ones before it, and the oldest of these lists others."""
    for number in range(1, 9):
        _write(tmp_path, f"{number}.metadata.json", **_log(*range(max(1, number - 2), number)))
    objects, last = LakeObjects(str(tmp_path)), "metadata/7.metadata.json"
    earlier = [number for number in range(10) if catalog_at_rest.follows(objects, last, f"{number}.metadata.json")]
    assert earlier == [1, 2, 3, 4, 5, 6]
    assert not catalog_at_rest.follows(objects, "metadata/gone.metadata.json", "1.metadata.json")


def test_what_is_packed_or_nested_beyond_measure_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcome: a bomb, damage and deep nesting are files without information, and the one beside them is read."""
    monkeypatch.setattr(catalog_at_rest, "_MOST_BYTES", 20_000)
    _write(tmp_path, "00001-x.metadata.json")
    place = tmp_path / "metadata"
    (place / "00002-a.gz.metadata.json").write_bytes(gzip.compress(b" " * 30_000))
    (place / "00003-b.gz.metadata.json").write_bytes(gzip.compress(b"{}")[:-9] + b"123456789")
    (place / "00004-c.metadata.json").write_bytes(b'{"table-uuid": ' + b"[" * 100_000)
    objects = LakeObjects(str(tmp_path))
    told = {one.name[9:14]: one.table_uuid for one in _read(tmp_path)}
    assert told == {"00001": "a", "00002": None, "00003": None, "00004": None}
    assert catalog_at_rest.predecessor(objects, "metadata/00002-a.gz.metadata.json") is None
    with pytest.raises(ValueError, match="object_too_large"):
        catalog_at_rest.content(objects, "metadata/00002-a.gz.metadata.json")


def _state(*publishes: str | None, hours: int = 0, cut: bool = False, staged: str | None = None) -> dict[str, Any]:
    """A table whose main showed these publishes an hour apart, the last at `hours`; `staged`: one on a branch."""
    snapshots: list[dict[str, Any]] = []
    for number, publish in enumerate((*publishes, staged)):
        at = (400_000 + hours + number - len(publishes) + 1) * 3_600_000
        summary = {} if publish is None else {"tidemark.publish-id": publish, "tidemark.published-with": "a,b,gone"}
        snapshots.append(
            {"snapshot-id": number, "parent-snapshot-id": number - 1, "timestamp-ms": at, "summary": summary}
        )
    if not cut:
        del snapshots[0]["parent-snapshot-id"]
    log = [{"snapshot-id": number, "timestamp-ms": 0} for number in (-9, *range(len(publishes)))]
    return {"current-snapshot-id": len(publishes) - 1, "snapshots": snapshots, "snapshot-log": log}


@cases(("b", "half"), {
    "whole": (_state(None, "old", "new"), set()),
    "whole, and older": (_state(None, "old", "new", None, hours=9), set()),
    "half": (_state(None, "old"), {"new"}),
    "half, and older": (_state(None, "old", None, hours=9), {"new"}),
    "on a branch alone": (_state(None, "old", staged="new"), {"new"}),
    "cut off before it": (_state(None, "old", hours=-1, cut=True), {"new"}),
    "cut off since": (_state(None, None, hours=9, cut=True), set()),
})  # fmt: skip
def test_a_publish_counts_where_every_table_that_it_names_showed_it(b: dict[str, Any], half: set[str]) -> None:
    """A table that went on is evidence against it; one with a cut history, or none, is not."""
    assert catalog_at_rest.half_published({"a": _state(None, "old", "new"), "b": b}) == half


def test_tables_that_were_committed_one_by_one_name_nobody() -> None:
    alone = _state(None, "own")
    alone["snapshots"][1]["summary"].pop("tidemark.published-with")
    assert catalog_at_rest.half_published({"a": alone, "b": _state(None)}) == set()


DAYS = [date(2026, 2, day) for day in range(1, 6)]
PROJECTS = ("10001", "10002")


def _lake(folder: Path, warehouse: str) -> tuple[Any, catalog_at_rest.TableAtRest]:
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
    resting = catalog_at_rest.CatalogAtRest(settings).table(REFINED_EVENTS)
    assert resting is not None
    return table, resting


def _files(table: Any, day: date) -> dict[str, str]:
    found = [task.file for task in table.scan().plan_files()]
    return {f.partition[1]: f.file_path for f in found if f"event_date={day}" in f.file_path}


def test_the_slices_of_files_that_a_person_removed_are_named_in_a_folder(tmp_path: Path) -> None:
    table, resting = _lake(tmp_path, f"file://{tmp_path}/warehouse")
    assert catalog_at_rest.lost_at_rest(resting, DAYS) == {}
    lost = _files(table, DAYS[1])["10002"]
    Path(unquote(urlparse(lost).path)).unlink()
    assert catalog_at_rest.lost_at_rest(resting, DAYS) == {Slice(DAYS[1], "10002"): lost}
    assert catalog_at_rest.lost_at_rest(resting, [DAYS[0], *DAYS[2:]]) == {}


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
    assert catalog_at_rest.lost_at_rest(resting, DAYS) == {Slice(DAYS[3], "10001"): lost}
    # The manifest list, two manifests, and the file that is gone.
    assert sorted(asked) == [*["get"] * 4, *["list"] * len(DAYS)]


def test_a_file_of_another_program_in_a_place_of_its_own_is_asked_for_by_name(tmp_path: Path) -> None:
    there, gone = tmp_path / "a" / "b.parquet", tmp_path / "a" / "c.parquet"
    there.parent.mkdir()
    there.touch()
    assert catalog_at_rest.gone_files([str(there), str(gone)]) == {str(gone)}


def test_a_bucket_that_is_not_there_is_an_error_and_no_loss(bucket: Any) -> None:
    path = "s3://no-such-bucket/lake/refined/events/data/event_date=2026-02-01/project_id=1/a.parquet"
    with pytest.raises(LakehouseError):
        catalog_at_rest.gone_files([path])


def test_a_slice_with_a_delete_file_is_another_state_than_its_data_files_alone() -> None:
    """The ledger trusts its rows only while live files are the recorded ones, and a delete file changes the rows."""
    alone = SliceFiles(frozenset({"a", "b"}), 30)
    hidden = replace(alone, deletes=frozenset({"d"}))
    assert hidden.file_hash != alone.file_hash
    assert replace(hidden, deletes=frozenset()).file_hash == alone.file_hash
    files = LiveFiles({"a": 1, "b": 2})
    deleted = LiveFiles(files)
    deleted.deletes = {"a": {"d": 3}}
    assert (files.names, deleted.names) == ({"a", "b"}, {"a", "b", "d"})


def test_the_cause_of_rows_that_came_back_is_read_back_with_its_number() -> None:
    cause = Cause.of(CauseKind.UNDELETED, 3)
    assert (Cause.parse(cause.text), cause.kind, cause.is_found) == (cause, CauseKind.UNDELETED, False)
    assert cause.text.endswith("no way to erase; rows that came back: 3")


@pytest.mark.parametrize("partition", ["PartitionData{}", "PartitionData{event_date=20486}"])
def test_a_file_that_another_program_wrote_without_our_partitions_is_named(partition: str) -> None:
    """Scenario: another program removed a partition field and wrote. Outcome: one sentence with the file."""
    shown = SimpleNamespace(toString=lambda: partition)
    file = SimpleNamespace(partition=lambda: shown, location=lambda: "s3://b/f.parquet")
    with pytest.raises(LakehouseError, match=r"s3://b/f.parquet: lies in no partition of a day and a project"):
        slice_of(file)


def test_a_conflict_names_the_slices_that_were_lost_or_all_where_nobody_knows_which() -> None:
    one, two = (Slice(date(2026, 2, day), "10001") for day in (2, 3))
    change = SliceChange(REFINED_EVENTS, 1, frozenset({one, two}), LiveFiles(), LiveFiles())
    everything, known = change.lost("is gone"), change.lost("is gone", slices={two})
    assert everything.slices == {("refined/events", one), ("refined/events", two)}
    assert (known.slices, known.subject) == ({("refined/events", two)}, f"refined/events {two}")


TABLE = "0d1e6a4e-24c8-4a6a-8d62-3f1b5c7a9e10"
OTHER = "8d2895f4-4e8f-480c-9f36-908f9b5a8b7b"
DAY = "data/event_date=2026-02-02/project_id=10001"


BY_SPARK, META = f"{DAY}/00000-118-{OTHER}-0-00001", "5714608875437899243"
OURS = (
    f"{DAY}/{TABLE}-1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet", f"{BY_SPARK}.parquet", f"{DAY}/00012-3-{OTHER}-00002.parquet",
    f"{BY_SPARK}-deletes.parquet", f"{BY_SPARK}-deletes.puffin",
    f"data/valid_from=2026-02-01/project_id=all/00000-118-{OTHER}-0-00001.parquet", f"metadata/{OTHER}-m0.avro",
    f"metadata/optimized-m-{OTHER}.avro", f"metadata/snap-{META}-1-{OTHER}.avro", f"metadata/00004-{OTHER}.metadata.json",
    f"metadata/00004-{OTHER}.gz.metadata.json", f"metadata/{META}-{OTHER}.stats",
    f"metadata/partition-stats-{META}-{OTHER}.parquet",
)  # fmt: skip
OTHERS = (
    "README.md", "figures.csv", "data/customers.parquet", f"{DAY}/1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet",
    f"{DAY}/{OTHER}-1ea94b7d0c664e0f9d0f4a3f8c2b7d55.parquet", f"{DAY}/part-00000-{OTHER}-c000.snappy.parquet",
    f"{DAY}/20260202_101010_00007_abcde-{OTHER}.parquet", f"data/00000-118-{OTHER}-0-00001.parquet",
    f"data/event_date=2026-02-02/00000-118-{OTHER}-0-00001.parquet", f"{DAY}/more/00000-118-{OTHER}-0-00001.parquet",
    f"{BY_SPARK}.csv", f"metadata/more/{OTHER}-m0.avro", "metadata/v3.metadata.json", "metadata/00001-mine.metadata.json",
    f"metadata/{OTHER}.avro", "", *(other for name in OURS for other in (f"copy/{name}", f"{name}.bak")),
)  # fmt: skip


@pytest.mark.parametrize(("name", "may_go"), [*((name, True) for name in OURS), *((name, False) for name in OTHERS)])
def test_a_name_of_ours_or_icebergs_in_its_place_may_go_and_every_other_stays(name: str, may_go: bool) -> None:
    assert is_written(name, TABLE) is may_go
