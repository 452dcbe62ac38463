"""A task writes what it reads: each slice into a file of its own, one open at a time, hashes included.

Contains: the writing task without Spark.
Add here: another way for rows to reach a task.
Does not contain: parsing (test_parse.py), the order of rows (test_clusters.py), metrics
(spark/test_data_files.py).
"""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_assets.domain.errors import LakehouseError, ObjectMovedError, error_in
from pipeline_assets.domain.row_hash import row_hash
from pipeline_assets.formats.amplitude.columns import VENDOR_COLUMNS
from pipeline_assets.load.deliveries.read import joined
from pipeline_assets.tables.raw_events import EXTRA, REGULAR_EVENTS, VENDOR
from pipeline_assets.tables.refined_events import BUSINESS_COLUMNS, CONTENT, event_hashes
from pipeline_assets.transforms.data_files import FileLayout
from pipeline_assets.transforms.parse import ObjectWork
from pipeline_assets.transforms.write_objects import _Writing
from resources.iceberg.procedures import is_written
from tests.support.builders import PROJECT

DAY = date(2026, 2, 2)
LAYOUT = FileLayout(
    table_uuid="0d1e6a4e-24c8-4a6a-8d62-3f1b5c7a9e10",
    folder="data",
    field_ids={column.name: at for at, column in enumerate(REGULAR_EVENTS.columns, 1)},
    types={column.name: column.type for column in REGULAR_EVENTS.columns},
    required=frozenset(("event_date", "project_id")),
    exact_bounds=frozenset(("_arrival_date",)),
    many_valued=frozenset(("uuid",)),
    day_column="event_date",
    spec_id=0,
    sort_order_id=1,
)


@dataclass
class Shelf:
    """Landing and warehouse in memory; counts how many files are open for writing at once."""

    url = "shelf:/"
    objects: dict[str, bytes]
    files: dict[str, bytes] = field(default_factory=dict)
    open_now: int = 0
    most_open: int = 0
    full_after: int | None = None

    def open(self, key: str, etag: str = "") -> IO[bytes]:
        if key not in self.objects:
            raise ObjectMovedError(key, "was overwritten", "Load again")
        return io.BytesIO(self.objects[key])

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def create(self, name: str) -> IO[bytes]:
        assert name not in self.files
        if self.full_after is not None and len(self.files) >= self.full_after:
            raise LakehouseError(name, "cannot be written: No space left on device", "Make room")
        shelf = self

        class Body(io.BytesIO):
            def close(self) -> None:
                shelf.files[name] = self.getvalue()
                shelf.open_now -= 1
                super().close()

        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        return Body()


def a_line(number: int, day: date, **more: Any) -> bytes:
    return json.dumps({"event_time": f"{day} 10:00:00", "event_id": number, "uuid": f"u{number}", **more}).encode()


def run(shelf: Shelf, *projects: str, part: int = 0, parts: int = 1) -> list[dict[str, Any]]:
    """Files and summaries that one task tells of; what it says that it wrote is what it wrote."""
    places = [
        {
            "source": "regular",
            "project_id": project,
            "arrival_date": DAY,
            "object_key": key,
            "object_etag": "e",
            "size_bytes": 1,
            "known_sha256": None,
            "part": part,
            "parts": parts,
        }
        for key, project in zip([*shelf.objects, *shelf.missing], projects, strict=True)
    ]
    task = _Writing(ObjectWork(shelf, 1 << 24, 1 << 20), event_hashes(), LAYOUT, shelf)
    *found, last = [row for batch in task([pa.RecordBatch.from_pylist(places)]) for row in batch.to_pylist()]
    assert last["task_rows"] == sum(json.loads(row["file"])["record-count"] for row in found if row["file"])
    return found


Shelf.missing = ()  # type: ignore[attr-defined]


def rows_of(shelf: Shelf) -> list[dict[str, Any]]:
    return [row for body in shelf.files.values() for row in pq.read_table(io.BytesIO(body)).to_pylist()]


def test_a_task_of_many_days_has_one_file_open_and_writes_each_once() -> None:
    """Scenario: two rounds of forty days in one object, then two small objects of another project. Outcome: 41 files, one open at
    a time; each tells day, project, rows; rows keep their order."""
    days = 40
    lines = [a_line(n, DAY - timedelta(days=n % days)) for n in range(2 * days)]
    shelf = Shelf(
        {
            "a": gzip.compress(b"\n".join(lines)),
            "b": gzip.compress(a_line(1, DAY)),
            "c": gzip.compress(a_line(2, DAY)),
        }
    )

    found = run(shelf, PROJECT, "10002", "10002")

    files = [json.loads(row["file"]) for row in found if row["file"]]
    assert {(*file["partition"], file["record-count"]) for file in files} == {
        *((str(DAY - timedelta(days=n)), PROJECT, 2) for n in range(days)),
        (str(DAY), "10002", 2),
    }
    assert len(files) == days + 1 == len(shelf.files)
    assert shelf.most_open == 1
    for file in files:
        body = shelf.files[file["file-path"].removeprefix("shelf://")]
        rows = pq.read_table(io.BytesIO(body)).to_pylist()
        assert len(body) == file["file-size-in-bytes"]
        assert [str(row["event_date"]) for row in rows] == file["partition"][:1] * 2
        assert [row["_line_number"] for row in rows] == sorted(row["_line_number"] for row in rows)
        folder = f"data/event_date={file['partition'][0]}/project_id={file['partition'][1]}/"
        assert folder in file["file-path"]
        # Maintenance knows it by this name should no snapshot ever refer to it.
        assert is_written(file["file-path"].removeprefix("shelf://"), LAYOUT.table_uuid)
    summaries = {row["object_key"]: row["rows"] for row in found if not row["file"]}
    assert summaries == {"a": 2 * days, "b": 1, "c": 1}


def test_parts_of_an_object_are_the_object() -> None:
    """Scenario: an object of thirty thousand lines, some blank, some refused, is read whole, and in one to eight parts. Outcome:
    the parts together hold each row once, with its line, and add up to the same summary."""
    odd = {7: b"   ", 10_001: b"[1]", 25_000: b"{", 29_999: b""}
    lines = [odd.get(n, a_line(n, DAY - timedelta(days=n % 2), city="x" * (n % 50))) for n in range(1, 30_001)]
    body = gzip.compress(b"\n".join(lines), compresslevel=1)
    whole = Shelf({"a": body})
    (summary,) = [row for row in run(whole, PROJECT) if not row["file"]]
    rows = sorted(rows_of(whole), key=lambda row: row["_line_number"])
    assert (summary["lines"], summary["rows"], summary["quarantined"], summary["blank"]) == (30_000, 29_996, 2, 2)
    for parts in (2, 3, 8):
        shelf = Shelf({"a": body})
        found = [run(shelf, PROJECT, part=part, parts=parts) for part in range(parts)]
        summaries = [row for of_part in found for row in of_part if not row["file"]]
        assert len([one for one in summaries if one["rows"]]) > 1
        assert joined(summaries) == summary
        assert sorted(rows_of(shelf), key=lambda row: row["_line_number"]) == rows


def test_a_bad_object_is_bad_in_every_part_and_one_that_moved_between_them_moved() -> None:
    """Outcome: counts of what some parts saw are never told as the object's."""
    good, broken = (gzip.compress(a_line(1, DAY)), gzip.compress(a_line(1, DAY))[:-3])
    parts = [run(Shelf({"a": broken}), PROJECT, part=part, parts=2)[0] for part in range(2)]
    assert joined(parts) == parts[0]
    assert parts[0]["error"] == "truncated_gzip"
    (read,) = [row for row in run(Shelf({"a": good}), PROJECT, part=0, parts=2) if not row["file"]]
    for other in (broken, gzip.compress(a_line(2, DAY))):
        (later,) = run(Shelf({"a": other}), PROJECT, part=1, parts=2)
        moved = joined([read, later])
        assert (moved["error"], moved["rows"], moved["lines"], moved["sha256"]) == ("moved", 0, 0, None)


def test_every_row_carries_the_hashes_of_what_was_parsed() -> None:
    """Outcome: as the reference in Python hashes it; a row that differs in how it travelled shares its meaning only."""
    shelf = Shelf(
        {
            "a": gzip.compress(
                b"\n".join(
                    [
                        a_line(1, DAY, city="Köln", location_lat=1.5),
                        a_line(2, DAY, unknown=1),
                        a_line(1, DAY, city="Köln", location_lat=1.5, processed_time="2026-02-02 11:00:00"),
                    ]
                )
            )
        }
    )

    run(shelf, PROJECT)

    types = {column.name: column.type for column in (*VENDOR, EXTRA)}
    assert list(types) == list(CONTENT)
    assert {*VENDOR_COLUMNS} < set(CONTENT)
    rows = rows_of(shelf)
    for row in rows:
        assert (row["_hash_a"], row["_hash_b"]) == row_hash(row, types)
        assert row["_meaning_hash"] == row_hash(row, {name: types[name] for name in BUSINESS_COLUMNS})[0]
    assert len({(row["_hash_a"], row["_hash_b"]) for row in rows}) == 3
    assert rows[0]["_meaning_hash"] == rows[2]["_meaning_hash"] != rows[1]["_meaning_hash"]


def test_an_object_that_moved_is_told_and_costs_the_others_nothing() -> None:
    shelf = Shelf({"a": gzip.compress(a_line(1, DAY))})
    shelf.missing = ("gone",)  # type: ignore[attr-defined]

    found = run(shelf, PROJECT, PROJECT)

    assert {row["object_key"]: row["error"] for row in found if not row["file"]} == {"a": None, "gone": "moved"}
    assert len(rows_of(shelf)) == 1


def test_a_full_warehouse_fails_the_task_by_its_name_and_leaves_nothing() -> None:
    shelf = Shelf({"a": gzip.compress(b"\n".join(a_line(n, DAY - timedelta(days=n)) for n in range(3)))}, full_after=1)
    with pytest.raises(RuntimeError) as failure:
        run(shelf, PROJECT)
    told = error_in(str(failure.value))
    assert isinstance(told, LakehouseError)
    assert "No space left" in told.reason
    assert not shelf.files
